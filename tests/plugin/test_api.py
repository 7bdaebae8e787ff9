"""What OpenVINO's own Python tests check, with OpenVINO's CPU device and with the plugin."""

from __future__ import annotations

import re
from pathlib import Path

import openvino
import pytest

import softnpu.plugin
from softnpu.plugin import openvino_runtime
from tests.plugin.api.table import MISSING, Side, behaviours, difference
from tests.support.daemon import Daemon

_DOCUMENT = Path(__file__).parents[2] / "docs" / "plugin.md"


def test_the_plugin_behaves_as_openvino(
    daemon: Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOFTNPU_SOCKET", str(daemon.socket))
    monkeypatch.setattr(openvino_runtime, "_extended", False)  # one behaviour adds extensions: none
    theirs, ours = Side(openvino, "CPU", tmp_path), Side(softnpu.plugin, "NPU", tmp_path)
    found = {name: difference(each, theirs, ours) for name, each in behaviours().items()}
    ours.clear()
    softnpu.plugin.Core().unload_plugin("NPU")
    assert {name: text for name, text in found.items() if text} == {}


def test_the_document_has_the_figure() -> None:
    count = len(behaviours())
    assert f"{count} of {count + len(MISSING)}" in re.sub(r"\s+", " ", _DOCUMENT.read_text())
    assert not behaviours().keys() & MISSING.keys()
