"""Each fault in the table: OpenVINO's CPU device alone is wrong, and softnpu is right.

A row goes when OpenVINO is right: the test says which. The models are those of docs/upstream and `FAULTS`.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import openvino as ov
import pytest

from softnpu.emulator.common import processor
from softnpu.emulator.openvino.defects.table import DEFECTS
from softnpu.plugin import Core
from tests.openvino.conftest import DIRTY
from tests.openvino.faults import FAULTS

_ROOT = Path(__file__).parents[2]
_REPORTS = {path.stem: path.read_text() for path in sorted((_ROOT / "docs" / "upstream").glob("*.md"))}
_ELSEWHERE = {
    "saturated-sums": "test_saturated_sums.py: it needs a processor without VNNI, or a limit of oneDNN",
    "rounded-states": "tests/plugin/test_states.py: it needs a host with bf16, and shows in last digits",
}
_HOSTS: Mapping[str, str] = {"quantised-subgraphs": "avx512_vnni"}
"""Faults that show only where the processor has this."""
_REFUSED = "deconvolution-output-shape"
"""What softnpu refuses instead of computing it right."""


def _here(names: Mapping[str, object]) -> list[str]:
    return [name for name in names if name not in _HOSTS or _HOSTS[name] in processor.flags()]


def _alone(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run Python in a process with heap memory that is filled, which OpenVINO may end."""
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=_ROOT,
        env={**os.environ, DIRTY: "85"},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


def _listing(report: str, language: str) -> str:
    (text,) = re.findall(rf"^```{language}\n(.*?)^```$", report, re.MULTILINE | re.DOTALL)
    return str(text)


def _is_right(output: str) -> bool:
    expected, found = (line[len("expected ") :] for line in output.splitlines())
    return expected == found


def test_each_row_has_one_model() -> None:
    assert sorted(defect.id for defect in DEFECTS) == sorted([*_REPORTS, *FAULTS, *_ELSEWHERE])


@pytest.mark.parametrize("name", _here(_REPORTS))
def test_a_report_shows_its_fault(name: str) -> None:
    report = _REPORTS[name]
    done = _alone("-c", _listing(report, "python"))
    assert done.returncode <= 0, done.stderr
    is_wrong = done.returncode < 0 or not _is_right(done.stdout)
    assert is_wrong, f"remove {name}: OpenVINO {ov.get_version()} is right"
    quoted, found = _listing(report, "text").splitlines(), done.stdout.splitlines()
    varies = "from run to run" in " ".join(report.split()) or "Segmentation fault" in quoted
    assert quoted[:1] == found[:1]
    assert varies or quoted == found


@pytest.mark.parametrize("name", _REPORTS)
def test_softnpu_is_right_where_a_report_says_wrong(dirty_core: Core, name: str) -> None:
    script = _listing(_REPORTS[name], "python").replace("ov.Core()", "dirty_core").replace('"CPU"', '"NPU"')
    output = io.StringIO()
    with (
        contextlib.redirect_stdout(output),
        pytest.raises(RuntimeError) if name == _REFUSED else contextlib.nullcontext(),
    ):
        exec(script, {"dirty_core": dirty_core})
    assert name == _REFUSED or _is_right(output.getvalue()), output.getvalue()


@pytest.mark.parametrize("name", FAULTS)
def test_openvino_alone_is_wrong(name: str) -> None:
    done = _alone("-m", "tests.openvino.plain", name)
    assert done.returncode <= 0, done.stderr
    assert done.returncode < 0 or done.stdout.strip(), f"remove {name}: OpenVINO {ov.get_version()} is right"


@pytest.mark.parametrize("name", FAULTS)
def test_softnpu_is_right(dirty_core: Core, name: str) -> None:
    def compiled(model: ov.Model, properties: Mapping[str, str]) -> Any:
        return dirty_core.compile_model(model, "NPU", {"NPU_BATCH_MODE": "COMPILER", **properties})

    assert not FAULTS[name](compiled)
