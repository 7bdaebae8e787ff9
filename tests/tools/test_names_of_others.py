"""Names given by others are shown escaped: control characters and markup in model names."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as ops

from softnpu.emulator.common.printable import printable
from softnpu.emulator.interface import endpoint
from tests.conftest import StartPython
from tests.support.cli import Finished, softnpu
from tests.support.daemon import Daemon

_NAME = "evil\x1b]0;PWNED\x07\x1b[2J[/x][link=file:///]\n2026-01-01 00:00:00,000 ERROR FORGED"
_SHOWN = r"evil\x1b]0;PWNED\x07\x1b[2J[/x][link=file:///]"
_LOADED = """
import openvino as ov
from openvino import opset13 as ops
from softnpu.plugin import Core
x = ops.parameter([1, 4], np.float32)
model = ov.Model([ops.result(ops.relu(x))], [x], given["name"])
compiled = Core().compile_model(model, "NPU")
say("ready")
hear()
"""


def _is_harmless(told: Finished) -> bool:
    text = told.out + told.err
    lines = text.splitlines()
    return all(line.isprintable() for line in lines) and not any(line.startswith("2026") for line in lines)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain é", "plain é"),
        ("a\x1bb\n\x9b\x7f\t", r"a\x1bb\n\x9b\x7f\t"),
        ("\udcff\u202e", r"\udcff\u202e"),
    ],
)
def test_control_characters_become_escapes(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_status_escapes_names(cli_daemon: Daemon, start_python: StartPython) -> None:
    client = start_python(_LOADED, name=_NAME, environment={"SOFTNPU_SOCKET": str(cli_daemon.socket)})
    client.hear()
    told = softnpu("status", COLUMNS="300")
    assert told.code == 0, told
    assert _is_harmless(told), told.out
    client.tell()
    client.finish()


def test_commands_escape_layers_and_outputs(cli_daemon: Daemon, tmp_path: Path) -> None:
    assert cli_daemon.alive
    x = ops.parameter([1, 4], np.float32)
    x.output(0).set_names({"x"})
    layer = ops.relu(x)
    output = ops.matmul(layer, ops.constant(np.ones((4, 2), np.float32)), False, False)
    for node in (layer, output):
        node.set_friendly_name(f"{node.get_type_name()} {_NAME}")
        node.output(0).set_names({f"{node.get_type_name()} {_NAME}"})
    path, blob = tmp_path / "model.xml", tmp_path / "model.blob"
    ov.save_model(ov.Model([ops.result(output)], [x], _NAME), path, compress_to_fp16=False)
    for arguments in (
        ("infer", path, "-n", "1", "--profile", "--compare", "CPU"),
        ("compare", path, "--layers"),
        ("predict", path, "--details"),
        ("compile", path, "-o", blob),
        ("blob", "inspect", blob),
        ("infer", path, "--input", "y=none.npy"),
    ):
        told = softnpu(*arguments, COLUMNS="300")
        assert "Traceback" not in told.err, (arguments, told.err)
        assert _is_harmless(told), (arguments, told.out, told.err)


def test_a_log_is_shown_without_terminal_controls(private_dir: Path) -> None:
    log = endpoint.log_path(private_dir / "npu.sock")
    log.write_text(f"first {_NAME.partition(chr(10))[0]}\nsecond\n")
    assert softnpu("logs").words == f"first {_SHOWN}\nsecond\n"
