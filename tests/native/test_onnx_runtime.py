"""ONNX Runtime's OpenVINO provider, unmodified: the table of docs/native.md, for its last release."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import StartDaemon
from tests.native import onnx_runtime
from tests.native.conftest import ROOT

_HEAD = "| ONNX Runtime | "


def documented() -> dict[str, dict[str, str]]:
    """Return the columns of the document's table by release."""
    text = (ROOT / "docs" / "native.md").read_text()
    head, _, *lines = text[text.index(_HEAD) :].partition("\n\n")[0].splitlines()
    rows = [re.split(r" \| ", line.strip("| ")) for line in lines]
    releases = head.strip("| ").split(" | ")[1:]
    return {release: {row[0]: row[at] for row in rows} for at, release in enumerate(releases, 1)}


@pytest.mark.soak  # it fetches 140 MB
@pytest.mark.timeout(900)
def test_the_last_release_has_the_outcomes_of_the_document(
    start_daemon: StartDaemon, surroundings: dict[str, str], tmp_path: Path
) -> None:
    release = list(documented())[-1]
    packages = tmp_path / "packages"
    requirement = f"onnxruntime-openvino=={release}"
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", packages, requirement],
        check=True,
        timeout=600,
    )
    onnx_runtime.write_models(tmp_path)
    daemon = start_daemon()
    environment = {**surroundings, "PYTHONPATH": str(packages)}  # before the onnxruntime that is installed
    found = onnx_runtime.measured([sys.executable], tmp_path, environment)
    assert found == [release, documented()[release]]
    assert daemon.engine().inferences > len(onnx_runtime.ROWS)
