"""The first engine and worker are forked from the daemon, and have nothing of it but what they were given."""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from softnpu.emulator.supervisor.children import forked
from softnpu.emulator.supervisor.children.forked import ForkedProcess

_PROGRAM = """
import json, logging, os, signal, socket, sys

def main(arguments):
    with socket.socket(fileno=int(arguments[0])) as channel:
        fds = {int(fd): os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if
               os.path.exists(f"/proc/self/fd/{fd}")}
        told = {"fds": fds, "group": os.getpgid(0), "variable": os.environ.get("MADE_UP"),
                "logs": len(logging.getLogger().handlers),
                "ends": signal.getsignal(signal.SIGTERM) == signal.SIG_DFL,
                "title": open("/proc/self/cmdline").read().split("\\0"), "arguments": arguments}
        channel.send(json.dumps(told).encode())
        word = channel.recv(10)
    if word == b"raise":
        raise RuntimeError("as told")
    print("last words")
    return 7
"""


Start = Callable[[], tuple[ForkedProcess, socket.socket, int]]


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Start:
    package = tmp_path / "forked_child"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text(_PROGRAM)
    monkeypatch.syspath_prepend(str(tmp_path))

    def start() -> tuple[ForkedProcess, socket.socket, int]:
        output, their_output = os.pipe()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs, capfd.disabled():  # the streams of Python are the descriptors, as in a daemon
            process = forked.start("forked_child", theirs.fileno(), their_output, {"MADE_UP": "yes"})
        os.close(their_output)
        return process, ours, output

    return start


def test_a_child_has_its_channel_its_output_and_a_name_of_its_own(start: Start) -> None:
    process, channel, output = start()
    with channel, os.fdopen(output) as lines:
        told = json.loads(channel.recv(65536))
        others = {
            int(fd): place for fd, place in told["fds"].items() if int(fd) > 2 and "/proc/" not in place
        }
        assert list(others) == [int(told["arguments"][0])], "its channel, and nothing of the test"
        assert told["fds"]["1"] == told["fds"]["2"] == os.readlink(f"/proc/self/fd/{output}")
        assert told["group"] == process.pid
        assert told["variable"] == "yes"
        assert "forked_child" in told["title"]
        assert told["arguments"][1] == str(os.getpid())
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.01)
        channel.send(b"go")
        assert process.wait(30) == process.returncode == 7
        assert lines.read() == "last words\n"
        process.kill()  # harmless: its pid may be another's by now
    assert "MADE_UP" not in os.environ


def test_a_child_has_neither_the_log_of_the_daemon_nor_its_way_to_end(start: Start) -> None:
    handler, before = logging.NullHandler(), signal.signal(signal.SIGTERM, lambda *_: None)
    logging.getLogger().addHandler(handler)
    try:
        process, channel, output = start()
    finally:
        signal.signal(signal.SIGTERM, before)
        logging.getLogger().removeHandler(handler)
    os.close(output)
    with channel:
        told = json.loads(channel.recv(65536))
        assert (told["logs"], told["ends"]) == (0, True)
        process.kill()
        process.wait()


def test_an_exception_is_told_and_a_signal_is_the_code(start: Start) -> None:
    process, channel, output = start()
    with channel, os.fdopen(output) as lines:
        channel.recv(65536)
        channel.send(b"raise")
        assert process.wait(30) == 1
        assert "RuntimeError: as told" in lines.read()
    process, channel, output = start()
    os.close(output)
    with channel:
        channel.recv(65536)
        process.kill()
        assert process.wait() == -signal.SIGKILL
