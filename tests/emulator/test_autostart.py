"""Autostart: one client or many start one daemon; an unused one ends."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from softnpu.driver import Driver, ZeError, ZeResult, launch
from softnpu.emulator.interface import endpoint
from softnpu.emulator.interface.environment import of_daemon
from tests.conftest import StartDaemon, StartPython
from tests.support import program_environment
from tests.support.waiting import wait_gone, wait_until
from tests.support.work import check_works, failure


@pytest.fixture(autouse=True)
def may_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOFTNPU_AUTOSTART", "1")
    monkeypatch.setenv("SOFTNPU_IDLE_S", "0.5")


def test_a_client_starts_a_daemon_that_ends_when_nobody_uses_it(
    private_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOFTNPU_DEVICES", "meteor-lake,5010")
    with Driver.open() as first:
        pid = first.daemon_pid
        assert [device.info.platform for device in first.devices] == ["3720", "5010"]
        with first.devices[0].create_context() as context:
            check_works(context)
        with Driver.open() as second:
            assert second.daemon_pid == pid
        with pytest.raises(AssertionError):
            wait_gone(pid, 0.8)  # longer than the idle time since the last change
        assert first.status().pid == pid
    wait_gone(pid)
    wait_until(lambda: not (private_dir / "npu.sock").exists())
    assert not endpoint.lock_path(private_dir / "npu.sock").exists()


@pytest.fixture
def others_start(private_dir: Path) -> Iterator[None]:
    """Hold the lock of a process that starts a daemon, as one does that was stopped."""
    gate = os.open(private_dir, os.O_RDONLY | os.O_DIRECTORY)
    fcntl.flock(gate, fcntl.LOCK_EX)
    yield
    os.close(gate)


@pytest.mark.usefixtures("others_start")
def test_a_daemon_serves_while_the_process_that_started_it_is_stopped(
    start_daemon: StartDaemon, start_python: StartPython
) -> None:
    client = start_python("say('ready')\nwith Driver.open() as driver: say(driver.daemon_pid); hear()")
    assert client.hear() == "ready"
    daemon = start_daemon()
    assert client.hear() == daemon.pid
    client.tell()
    client.finish()


@pytest.mark.usefixtures("others_start")
def test_a_client_starts_a_daemon_beside_a_process_that_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "_OTHERS_S", 0.1)
    with Driver.open() as driver:
        pid = driver.daemon_pid
    wait_gone(pid)


def test_six_clients_at_once_start_one_daemon(start_python: StartPython) -> None:
    code = """
        say("ready"); hear()
        with Driver.open() as driver:
            say(driver.daemon_pid); hear()
    """
    clients = [start_python(code) for _ in range(6)]
    for client in clients:
        assert client.hear() == "ready"
    for client in clients:
        client.tell()
    pids = {client.hear() for client in clients}
    for client in clients:
        client.tell()
        client.finish()

    assert len(pids) == 1
    wait_gone(pids.pop())


def test_a_daemon_has_nothing_of_the_program_but_a_short_list(
    start_python: StartPython, tmp_path: Path
) -> None:
    code = """
        os.environ.update(given["variables"])
        with Driver.open() as driver, driver.devices[0].create_context():
            engine = driver.status().engines[0].engine_pid
            say([dict(os.environ), driver.daemon_pid, engine]); hear()
    """
    client = start_python(code, variables=program_environment.intruding(tmp_path))
    theirs, pid, engine = client.hear()
    started, behind = program_environment.of_process(pid), program_environment.of_process(engine)
    client.tell()
    client.finish()
    wait_gone(pid)

    assert program_environment.intruders(theirs)
    assert started == of_daemon(theirs)
    assert started.keys() >= {"PATH", "ONEDNN_MAX_CPU_ISA", "LC_ALL", "SOFTNPU_IDLE_S"}
    assert not program_environment.intruders(started.keys() | behind.keys())
    assert not program_environment.marks_in(tmp_path)


@pytest.mark.parametrize(
    "observed",
    [
        pytest.param(
            "background.start_first_children = lambda: end(endpoint.accepts(Path(sys.argv[1])))",
            id="clients wait before the first children begin",
        ),
        pytest.param(
            "background.start_first_children = lambda: None\nSupervisor.run = lambda _: end(gc.isenabled())",
            id="garbage is collected once it serves",
        ),
        pytest.param(
            "background.start_first_children = fail\nSupervisor.run = lambda _: end(True)",
            id="it serves where no process could be forked",
        ),
    ],
)
def test_how_a_daemon_begins(private_dir: Path, observed: str) -> None:
    program = """
import gc, os, sys
from pathlib import Path
from softnpu.emulator import autostart, background, daemon
from softnpu.emulator.interface import endpoint
from softnpu.emulator.supervisor.supervisor import Supervisor

def end(is_right):
    os._exit(0 if is_right else 7)

def fail():
    raise BlockingIOError

gc.disable()
OBSERVED
told = os.open(os.devnull, os.O_WRONLY)
daemon.serve_in_background(autostart.settings(sys.argv[1]), told, engines=False)
"""
    line = [sys.executable, "-c", program.replace("OBSERVED", observed), str(private_dir / "npu.sock")]
    assert subprocess.run(line, timeout=60, check=False).returncode == 0


def test_after_a_kill_the_next_client_starts_another() -> None:
    with Driver.open() as driver:
        killed = driver.daemon_pid
        os.kill(killed, signal.SIGKILL)
        wait_gone(killed)
    with Driver.open() as driver:
        pid = driver.daemon_pid
        assert pid != killed
    wait_gone(pid)


def test_a_missing_daemon_is_an_error_with_the_next_step(
    private_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = private_dir / "npu.sock"
    monkeypatch.setenv("SOFTNPU_AUTOSTART", "0")
    info = failure(Driver.open, ZeResult.ERROR_UNINITIALIZED).info
    assert str(path) in info.object
    assert "softnpu daemon" in info.hint
    assert "SOFTNPU_AUTOSTART" in info.hint
    error = failure(lambda: Driver.open(private_dir / "nowhere" / "s"), ZeResult.ERROR_UNINITIALIZED)
    assert "nowhere" in str(error)
    with endpoint.new_socket() as sock:
        sock.bind(str(path))
    assert "nobody serves" in failure(Driver.open, ZeResult.ERROR_UNINITIALIZED).info.found


@pytest.mark.parametrize(
    ("variable", "text"),
    [("SOFTNPU_DEVICES", "1234"), ("SOFTNPU_IDLE_S", "nan")],
)
def test_why_a_daemon_does_not_come_up_is_in_the_error(
    private_dir: Path, monkeypatch: pytest.MonkeyPatch, variable: str, text: str
) -> None:
    with monkeypatch.context() as patch:
        patch.setenv(variable, text)
        with pytest.raises(ZeError, match=f"'{text}'") as caught:
            Driver.open()
    assert variable == "SOFTNPU_DEVICES" or f"{variable}: '{text}'" in str(caught.value)
    path = private_dir / "npu.sock"
    path.write_text("precious")
    assert str(path) in str(failure(Driver.open, ZeResult.ERROR_UNINITIALIZED))
    assert path.read_text() == "precious"
