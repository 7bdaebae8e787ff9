"""The daemon's log: foreign names appear in it, but start no line and control no terminal."""

from __future__ import annotations

import logging
import os
import pty
import select
import socket
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from softnpu.driver import Driver
from softnpu.emulator.common.log_lines import LineFormatter, UnwaitedLines
from softnpu.emulator.interface import messages as msg
from tests.support.daemon import Daemon
from tests.support.waiting import wait_until
from tests.support.wire import Wire, WireContext
from tests.support.work import check_works

_NAME = "evil\x1b]0;PWNED\x07\n2026-01-01 00:00:00,000 ERROR   softnpu: FORGED\r\u2028\x9b2J"
_SHOWN = r"evil\x1b]0;PWNED\x07\n2026-01-01 00:00:00,000 ERROR   softnpu: FORGED\r\u2028\x9b2J"


def _is_harmless(log: str) -> bool:
    lines = log.split("\n")
    return all(not line or line.isprintable() for line in lines) and not any(
        line.startswith("2026-01-01") for line in lines
    )


@pytest.mark.quick
def test_a_record_is_one_line_and_a_traceback_keeps_its_own() -> None:
    try:
        raise ValueError(_NAME)
    except ValueError:
        raised = sys.exc_info()
    record = logging.LogRecord("daemon", logging.ERROR, "", 0, "client %s", (_NAME,), raised)
    first, *others = LineFormatter().format(record).split("\n")
    assert first.endswith(f"ERROR   daemon: client {_SHOWN}")
    assert others[0] == "  Traceback (most recent call last):"
    assert others[-1].startswith("  ")
    assert "FORGED" in "".join(others)
    assert _is_harmless("\n".join(others))


def test_the_name_of_a_model_that_is_refused_is_a_part_of_its_line(daemon: Daemon) -> None:
    with Wire(daemon.socket) as wire:
        wire.hello()
        source = msg.WeightSource(offset=0, length=0)
        request = msg.GraphCreate(
            context=WireContext(wire).handle, name=_NAME, xml_length=1, weights=(source,)
        )
        assert "FORGED" in wire.info(request).object
    assert _SHOWN in daemon.log
    assert _is_harmless(daemon.log), daemon.log


@pytest.mark.quick
@pytest.mark.parametrize("program", ["engine", "openvino.cache_fill", "compiler"])
def test_what_ends_a_process_is_logged_in_lines_of_its_own(program: str) -> None:
    code = (
        f"from softnpu.emulator.{program} import __main__ as program\n"
        "from softnpu.emulator.common import linux\n"
        "import os, socket\n"
        f"def fail(*_, **__): raise ValueError({_NAME!r})\n"
        "linux.die_with_parent = lambda _: None\n"
        "program.Channel = program.open_channel = lambda _: 0\n"
        "program.lean_openvino.leave_out_unused = program.Channel = fail\n"
        "ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)\n"
        "program.main([str(ours.detach()), str(os.getppid())])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "Traceback" in done.stderr
    assert "FORGED" in done.stderr
    assert _is_harmless(done.stderr), done.stderr


def _ends(kind: str) -> tuple[int, int]:
    """Return the ends of a pipe, socket or terminal: to read from, and to write to."""
    if kind == "pipe":
        return os.pipe()
    if kind == "socket":
        return tuple(end.detach() for end in socket.socketpair())  # type: ignore[return-value]
    reader, writer = pty.openpty()
    termios.tcflow(writer, termios.TCOOFF)  # Ctrl-S
    return reader, writer


def _text_in(reader: int) -> str:
    text = b""
    while select.select([reader], [], [], 0)[0]:
        text += os.read(reader, 65536)
    return text.decode()


@pytest.mark.quick
@pytest.mark.parametrize("kind", ["pipe", "socket", "terminal"])
@pytest.mark.parametrize("is_reopened", [True, False])
def test_lines_that_nobody_reads_are_left_out_and_counted(
    kind: str, is_reopened: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_open(*_: object) -> int:
        raise PermissionError

    reader, writer = _ends(kind)
    with monkeypatch.context() as patched:
        if not is_reopened:
            patched.setattr("softnpu.emulator.common.log_lines.os.open", no_open)
        lines = UnwaitedLines(writer)
    record = logging.LogRecord("daemon", logging.ERROR, "", 0, "x" * 900, (), None)
    for _ in range(2000):
        lines.emit(record)
    if kind == "terminal":
        termios.tcflow(writer, termios.TCOON)
    written = _text_in(reader).splitlines()
    for _ in range(2):
        lines.emit(record)
    *cut, told, last, after = _text_in(reader).splitlines()

    assert {*written[:-1], last, after} <= {"x" * 900}, "whole lines"
    assert not any(cut)
    lost = 2000 - written.count("x" * 900)
    assert told == f"({lost} lines were left out before this one: nobody read them)"
    os.close(reader)
    lines.emit(record)
    lines.close()
    os.close(writer)


@pytest.mark.parametrize("kind", ["pipe", "terminal"])
def test_a_daemon_whose_output_nobody_reads_serves(private_dir: Path, kind: str) -> None:
    reader, writer = _ends(kind)
    os.set_blocking(writer, False)
    if kind == "pipe":
        while select.select([], [writer], [], 0)[1]:
            os.write(writer, b"x" * 4096)
    os.set_blocking(writer, True)
    path = private_dir / "npu.sock"
    code = "from softnpu.tools.start import main; main()"
    command = [sys.executable, "-c", code, "daemon", "--foreground", "--socket", str(path)]
    daemon = subprocess.Popen(command, stderr=writer, stdout=subprocess.DEVNULL)
    try:
        wait_until(path.exists, what="its socket")
        with Driver.open(path, autostart=False) as driver:
            check_works(driver.devices[0].create_context())
    finally:
        daemon.terminate()
        daemon.wait(60)
        os.close(reader)
        os.close(writer)
