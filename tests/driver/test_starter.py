"""A starter that begins before its program needs a daemon: used if nothing has changed, else never seen."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from softnpu.driver import Driver, ZeError, starter
from softnpu.driver.launch import DaemonLauncher
from softnpu.emulator.interface import socket_place
from tests.conftest import StartDaemon, StartPython
from tests.support.waiting import wait_gone, wait_until


@pytest.fixture(autouse=True)
def may_start(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("SOFTNPU_AUTOSTART", "1")
    monkeypatch.setenv("SOFTNPU_IDLE_S", "0.5")
    monkeypatch.setattr(starter, "may_begin_early", True)
    yield
    starter.leave_early()


def _begun() -> int:
    """Begin one; return its pid."""
    starter.begin_early()
    (early,) = starter._begun
    pid: int = early._process.pid
    return pid


def _first_platform() -> tuple[int, str]:
    with Driver.open() as driver:
        return driver.daemon_pid, driver.devices[0].info.platform


def test_the_early_starter_starts_the_daemon(private_dir: Path) -> None:
    pid = _begun()
    daemon = wait_until(lambda: psutil.Process(pid).children(), what="the process that becomes a daemon")
    wait_until(lambda: len(daemon[0].children()) == 2, what="its engine and worker")
    assert os.listdir(private_dir) == [], "nothing can be seen"
    found, _ = _first_platform()
    assert found == daemon[0].pid
    wait_gone(pid)
    wait_gone(found)


def test_a_program_that_changes_its_environment_has_a_daemon_with_the_new_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pid = _begun()
    monkeypatch.setenv("SOFTNPU_DEVICES", "5010")
    found, platform = _first_platform()
    assert platform == "5010"
    wait_gone(pid)
    wait_gone(found)


def test_a_program_that_becomes_another_user_has_a_daemon_of_that_user(
    monkeypatch: pytest.MonkeyPatch, private_dir: Path
) -> None:
    pid = _begun()
    monkeypatch.setattr(os, "getresuid", lambda: (1, 1, 1))
    chosen = starter.take(str(private_dir / "other.sock"))
    assert chosen._process.pid != pid
    wait_gone(pid)
    chosen.leave()


@pytest.fixture
def no_children() -> Iterator[None]:
    """Ignore the end of children, as many servers do."""
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGCHLD, before)


@pytest.mark.usefixtures("no_children")
def test_the_daemon_of_a_program_that_ignores_the_end_of_children_keeps_them() -> None:
    with Driver.open() as driver:
        daemon = psutil.Process(driver.daemon_pid)
        ignored = [_ignored(process.pid) for process in (daemon, *daemon.children())]
    assert len(ignored) > 1
    assert not any(signals & 1 << (signal.SIGCHLD - 1) for signals in ignored)
    wait_gone(daemon.pid)


@pytest.mark.usefixtures("no_children")
def test_a_program_that_ignores_the_end_of_children_is_told_why_there_is_no_daemon(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SOFTNPU_DEVICES", "banana")
    with pytest.raises(ZeError, match="'banana'"):
        Driver.open()


def test_the_daemon_of_a_program_that_blocks_signals_can_be_stopped() -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    try:
        with Driver.open() as driver:
            os.kill(driver.daemon_pid, signal.SIGTERM)
            wait_gone(driver.daemon_pid)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _ignored(pid: int) -> int:
    """Return the signals that a process ignores, as bits."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("SigIgn:")[2].split()[0], 16)


@pytest.mark.parametrize("closed", [[0], [1, 2], [0, 1, 2]])
def test_what_the_starter_is_told_by_has_no_number_of_a_closed_stream(
    closed: list[int], tmp_path: Path
) -> None:
    code = """
        import json, os, sys
        from pathlib import Path
        from softnpu.driver import starter
        closed = json.loads(sys.argv[1])
        for stream in closed: os.close(stream)
        starter.begin_early()
        assert starter._begun
        left = [os.path.exists(f"/proc/self/fd/{stream}") for stream in closed]
        Path(sys.argv[2]).write_text(json.dumps(left))
    """
    said = tmp_path / "said"
    words = [sys.executable, "-c", textwrap.dedent(code), json.dumps(closed), str(said)]
    subprocess.run(words, check=True, timeout=60)
    assert json.loads(said.read_text()) == [False] * len(closed)


@pytest.mark.parametrize("is_needed", [False, True])
def test_nobody_waits_for_a_stopped_process_that_would_be_the_daemon(
    private_dir: Path, is_needed: bool
) -> None:
    pid = _begun()
    (daemon,) = wait_until(lambda: psutil.Process(pid).children(), what="the process that becomes a daemon")
    daemon.suspend()

    def end() -> None:
        if is_needed:
            with suppress(TimeoutError):
                starter._begun.pop().start(str(private_dir / "npu.sock"), 0.1)
        starter.leave_early()

    ending = threading.Thread(target=end, daemon=True)
    ending.start()
    try:
        ending.join(20)
        assert not ending.is_alive()
        wait_gone(pid)
    finally:
        daemon.kill()


def test_a_killed_starter_is_replaced() -> None:
    os.kill(_begun(), signal.SIGKILL)
    found, _ = _first_platform()
    wait_gone(found)


def test_nothing_is_left_open_at_the_end_of_a_program() -> None:
    code = "from softnpu.driver import starter; starter.begin_early(); assert starter._begun"
    ended = subprocess.run([sys.executable, "-X", "dev", "-c", code], capture_output=True, check=True)
    assert ended.stderr == b""


def test_it_ends_with_its_program_and_all_that_it_began(start_python: StartPython) -> None:
    code = """
        from softnpu.driver import starter
        starter.begin_early(); say(starter._begun[0]._process.pid); hear()
    """
    client = start_python(code)
    pid = client.hear()
    begun: list[psutil.Process] = []

    def has_begun() -> bool:
        begun[:] = psutil.Process(pid).children(recursive=True)
        return bool(begun) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE  # it was not told in time

    wait_until(has_begun, what="what it begins")
    client.tell()
    client.finish()
    for one in (pid, *(process.pid for process in begun)):
        wait_gone(one)


def test_none_begins_without_need(monkeypatch: pytest.MonkeyPatch, start_daemon: StartDaemon) -> None:
    with monkeypatch.context() as patch:
        patch.setenv("SOFTNPU_AUTOSTART", "0")
        starter.begin_early()
    with monkeypatch.context() as patch:
        patch.setenv("SOFTNPU_LEASE", "some")
        starter.begin_early()
    with monkeypatch.context() as patch:
        patch.setattr(sys, "executable", "/bin/true")  # as of a program that has Python inside
        starter.begin_early()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as claim:
        claim.bind(starter.claim_of(socket_place.place()))  # as one of another program
        starter.begin_early()
    start_daemon()
    starter.begin_early()
    assert not starter._begun


def test_one_that_is_not_needed_ends_when_the_program_connects(start_daemon: StartDaemon) -> None:
    pid = _begun()
    daemon = start_daemon()
    with Driver.open() as driver:
        assert driver.daemon_pid == daemon.pid
    wait_gone(pid)


def test_a_client_gives_up_after_several_daemons_that_ended_without_an_answer() -> None:
    launcher = DaemonLauncher(None, None)
    assert launcher.may_try_again()
    launcher._starts = 3
    assert not launcher.may_try_again()
