"""Each fault in the table: OpenVINO's CPU device alone is wrong, and softnpu is right.

A row goes when OpenVINO is right: the test says which.
"""

from __future__ import annotations

import json
import os
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
_ELSEWHERE = {
    "saturated-sums": "test_saturated_sums.py: it needs a processor without VNNI, or a limit of oneDNN",
    "rounded-states": "tests/plugin/test_states.py: it needs a host with bf16, and shows in last digits",
}
_HOSTS: Mapping[str, str] = {"quantised-subgraphs": "avx512_vnni"}
"""Faults that show only where the processor has this."""
_HERE = [name for name in FAULTS if name not in _HOSTS or _HOSTS[name] in processor.flags()]


def _plain(name: str) -> str:
    """Return what is wrong on the CPU device alone, which may end its process."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.openvino.plain", name],
        cwd=_ROOT,
        env={**os.environ, DIRTY: "85"},
        stdout=subprocess.PIPE,
        text=True,
        timeout=200,
        check=True,
    )
    wrong: str = json.loads(done.stdout)
    return wrong


def test_each_row_has_a_model() -> None:
    assert {defect.id for defect in DEFECTS} == {*FAULTS, *_ELSEWHERE}
    assert len(DEFECTS) == len(FAULTS) + len(_ELSEWHERE)


@pytest.mark.parametrize("name", _HERE)
def test_openvino_alone_is_wrong(name: str) -> None:
    assert _plain(name), f"remove {name}: OpenVINO {ov.get_version()} is right"


@pytest.mark.parametrize("name", FAULTS)
def test_softnpu_is_right(dirty_core: Core, name: str) -> None:
    def compiled(model: ov.Model, properties: Mapping[str, str]) -> Any:
        return dirty_core.compile_model(model, "NPU", {"NPU_BATCH_MODE": "COMPILER", **properties})

    assert not FAULTS[name](compiled)
