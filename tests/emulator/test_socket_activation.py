"""Socket activation: a daemon on a listening socket that systemd, or the like, owns."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from softnpu.driver import Driver
from tests.support.waiting import wait_until
from tests.support.wire import Wire

DEADLINE_S = 60.0
_ACTIVATE = """
import os, sys
os.dup2(int(sys.argv[1]), 3)
os.environ["LISTEN_PID"] = str(os.getpid())
os.execv(sys.argv[2], sys.argv[2:])
"""
"""The steps of systemd between fork and exec: the socket becomes descriptor 3."""


def _listener(path: Path, mode: int = 0o600, kind: int = socket.SOCK_SEQPACKET) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, kind)
    sock.bind(str(path))
    path.chmod(mode)
    sock.listen(16)
    return sock


def _start(passed: socket.socket, path: Path, *options: str, count: int = 1) -> subprocess.Popen[str]:
    command = [sys.executable, "-P", "-m", "softnpu.tools.cli", "daemon", "--socket", str(path), *options]
    return subprocess.Popen(
        [sys.executable, "-c", _ACTIVATE, str(passed.fileno()), *command],
        env={**os.environ, "LISTEN_FDS": str(count)},
        pass_fds=(passed.fileno(),),
        stderr=subprocess.PIPE,
        text=True,
    )


def _end(daemon: subprocess.Popen[str]) -> str:
    daemon.send_signal(signal.SIGTERM)
    return daemon.communicate(timeout=DEADLINE_S)[1]


def test_clients_wait_for_the_daemon_and_for_the_next_one(private_dir: Path) -> None:
    path = private_dir / "npu.sock"
    with _listener(path) as listener:
        for _ in range(2):
            with Wire(path) as early:  # before there is a daemon
                daemon = _start(listener, path, "--foreground")
                early.hello()
                with Driver.open(path, autostart=False) as driver:
                    assert driver.daemon_pid == daemon.pid
                    environment = Path(f"/proc/{driver.status().engines[0].engine_pid}/environ").read_bytes()
                    assert b"LISTEN_" not in environment
            said = _end(daemon)
            assert daemon.returncode == 0, said
            assert f"passed by process {os.getpid()}" in said
            assert path.is_socket()  # its creator keeps listening
            assert not path.with_name("npu.sock.lock").exists()
    path.unlink()


def test_a_daemon_that_was_idle_leaves_who_comes_to_the_next(private_dir: Path) -> None:
    path = private_dir / "npu.sock"
    with _listener(path) as listener:
        first = _start(listener, path, "--foreground", "--idle-timeout", "0.1")
        first.communicate(timeout=DEADLINE_S)
        with Wire(path) as waiting:
            second = _start(listener, path, "--foreground")
            waiting.hello()
        _end(second)
        assert (first.returncode, second.returncode) == (0, 0)
    path.unlink()


def _stream(path: Path) -> socket.socket:
    return _listener(path, kind=socket.SOCK_STREAM)


def _public(path: Path) -> socket.socket:
    return _listener(path, mode=0o666)


def _elsewhere(path: Path) -> socket.socket:
    return _listener(path.with_name("other.sock"))


def _silent(path: Path) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sock.bind(str(path))
    return sock


@pytest.mark.parametrize(
    ("make", "options", "count", "words"),
    [
        (_stream, ("--foreground",), 1, "another kind of socket"),
        (_public, ("--foreground",), 1, "mode 666"),
        (_elsewhere, ("--foreground",), 1, "other.sock"),
        (_silent, ("--foreground",), 1, "does not listen"),
        (_listener, ("--foreground",), 2, "2 descriptors"),
        (_listener, (), 1, "Start it with --foreground"),
    ],
)
def test_what_cannot_be_served_is_refused_and_stays_as_it_was(
    private_dir: Path,
    make: Callable[[Path], socket.socket],
    options: tuple[str, ...],
    count: int,
    words: str,
) -> None:
    path = private_dir / "npu.sock"
    with make(path) as passed:
        daemon = _start(passed, path, *options, count=count)
        said = daemon.communicate(timeout=DEADLINE_S)[1]
        assert daemon.returncode == 2
        assert "passed socket (LISTEN_FDS)" in said
        assert words in said
        assert "Traceback" not in said
        place = Path(passed.getsockname())
        assert place.is_socket()
        place.unlink()


def test_variables_for_another_process_are_not_followed(private_dir: Path) -> None:
    path = private_dir / "npu.sock"
    daemon = subprocess.Popen(
        [sys.executable, "-P", "-m", "softnpu.tools.cli", "daemon", "--socket", str(path), "--foreground"],
        env={**os.environ, "LISTEN_FDS": "1", "LISTEN_PID": "1"},
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_until(path.is_socket)
    with Driver.open(path, autostart=False) as driver:
        assert driver.daemon_pid == daemon.pid
    _end(daemon)
    assert not path.exists()
