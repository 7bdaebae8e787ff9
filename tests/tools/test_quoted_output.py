"""What the documents quote of commands is what these print, but for figures and names of the machine.

`test_examples.py` does so for hello_npu, `tests/native` for benchmark_app, `test_snippets.py` for Python.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from softnpu.plugin import Core
from softnpu.tools.demo.digits import model_path
from tests.conftest import StartDaemon
from tests.support.cli import softnpu
from tests.support.daemon import Daemon

_DOCUMENTS = Path(__file__).parents[2] / "docs"
_MACHINE = re.compile(r"(?:\d+x)+\d+|\d+(?:[.,:]\d+)*(?:e[-+]\d+)?(?: (?:ms|us|s|[KMG]iB|B)\b)?|/[\w./-]+")
"""Figures with their units, shapes and paths."""


def _quoted(document: str, command: str) -> list[str]:
    """Return the lines that a document quotes of the first command with this beginning."""
    text = (_DOCUMENTS / document).read_text()
    output, *_ = re.findall(rf"^\$ softnpu {re.escape(command)}[^\n]*\n(.*?)^(?:```|\$ )", text, re.M | re.S)
    return [_plain(line) for line in output.splitlines()]


def _printed(output: str) -> list[str]:
    return [_plain(line) for line in output.splitlines()]


def _plain(line: str) -> str:
    return re.sub(r"[\s─]+", " ", _MACHINE.sub("0", line)).strip()


def _contains(printed: list[str], quoted: list[str]) -> None:
    """Check that the quoted lines are printed in this order; `...` stands for any others."""
    rest, is_next = iter(printed), False
    for line in quoted:
        if line == "...":
            is_next = False
            continue
        for found in rest:
            if found == line or (line.endswith("...") and found.startswith(line.removesuffix("...").strip())):
                break
            assert not (is_next and found), f"{found!r} is printed where {line!r} is quoted"
        else:
            pytest.fail(f"{line!r} is quoted, and not in {printed}")
        is_next = True


def test_a_daemon_from_start_to_stop() -> None:
    arguments = ("daemon", "--platform", "4000", "--platform", "3720")
    _contains(_printed(softnpu(*arguments).words), _quoted("observability.md", " ".join(arguments)))
    try:
        _contains(_printed(softnpu("status").words), _quoted("observability.md", "status"))
    finally:
        stopped = softnpu("stop").words
    _contains(_printed(stopped), _quoted("observability.md", "stop"))


def test_injections(start_daemon: StartDaemon) -> None:
    start_daemon()
    slow = "inject slow --value 20ms --count * --probability 0.1 --seed 7"
    for command in ("inject reset --after 100", slow):
        quoted = _quoted("faults.md", command.replace("*", "'*'"))
        _contains(_printed(softnpu(*command.split()).words), quoted)
    states = re.compile("used up|active")  # nothing has run here
    shown = [states.sub("state", line) for line in _printed(softnpu("inject", "status").words)]
    quoted = [states.sub("state", line) for line in _quoted("faults.md", "inject status")]
    _contains(shown, quoted)
    _contains(_printed(softnpu("inject", "clear").words), _quoted("faults.md", "inject clear"))


def test_what_monitors_say_of_two_devices(start_daemon: StartDaemon) -> None:
    daemon = start_daemon(devices=["4000", "3720"])
    core = Core(daemon.socket)
    core.compile_model(model_path(), "NPU").create_infer_request().infer()
    core.unload_plugin()
    _contains(_printed(softnpu("metrics", "--once").words), _quoted("observability.md", "metrics --once"))
    table = softnpu("status", "0.1", "--watch", "--csv", "--count", "2").words
    _contains(_printed(table), _quoted("observability.md", "status 5 --watch --csv"))


@pytest.mark.parametrize(
    ("command", "quoted"),
    [(("infer", "--compare", "CPU"), 'infer "$('), (("compare",), "compare model.onnx --shape")],
)
def test_a_model_beside_the_cpu_device(cli_daemon: Daemon, command: tuple[str, ...], quoted: str) -> None:
    del cli_daemon
    printed = softnpu(*command, model_path()).words
    printed = printed.replace("probabilities", "output0").replace("digits.xml", "model.onnx")
    _contains(_printed(printed), _quoted("compare.md", quoted))


def test_a_prediction(cli_daemon: Daemon) -> None:
    del cli_daemon
    model = softnpu("models", "get", "yolov8n").words.strip()
    for arguments in (("--shape", "images=1,3,320,320"), ("--platform", "4000", "--details")):
        command = f'predict "$(softnpu models get yolov8n)" {" ".join(arguments)}'
        printed = _printed(softnpu("predict", model, *arguments).out)
        _contains(printed, _quoted("prediction.md", command))


def test_a_trace(cli_daemon: Daemon, tmp_path: Path) -> None:
    del cli_daemon
    program = "from softnpu.plugin import Core\nfrom softnpu.tools.demo.digits import model_path\n"
    program += "request = Core().compile_model(model_path(), 'NPU').create_infer_request()\n"
    program += "for _ in range(100): request.infer()\n"
    said = softnpu("trace", "-o", tmp_path / "digits.json", "--layers", "--", sys.executable, "-c", program)
    _contains(_printed(said.err.replace(f"{tmp_path}/", "")), _quoted("trace.md", "trace -o"))
