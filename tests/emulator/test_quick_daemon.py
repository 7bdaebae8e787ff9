"""A daemon whose socket is taken before anything of it is imported: `softnpu run` starts it."""

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
from softnpu.emulator.common import linux
from softnpu.emulator.interface import endpoint
from softnpu.emulator.interface.environment import of_daemon
from tests.conftest import StartDaemon
from tests.support import program_environment
from tests.support.cli import softnpu
from tests.support.waiting import wait_gone, wait_until
from tests.support.work import check_works

_DEADLINE_S = 60.0
# what `softnpu run` does; a test replaces parts of it
_PROGRAM = """
import os, sys
from softnpu.emulator import descriptor_limit, quick_daemon, socket_files
from softnpu.emulator.interface.environment import of_daemon
{before}
is_taken = quick_daemon.start(sys.argv[1], of_daemon(os.environ))
{after}
sys.exit(0 if is_taken else 3)
"""


@pytest.fixture(autouse=True)
def ends_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOFTNPU_IDLE_S", "0.5")


@pytest.fixture
def place(private_dir: Path) -> Path:
    return private_dir / "npu.sock"


def _started(place: Path, before: str = "", after: str = "", **options: object) -> int:
    """Return the exit code of a program that starts a daemon: 0 if the socket was taken, 3 if not."""
    code = _PROGRAM.format(before=before, after=after)
    done = subprocess.run(
        [sys.executable, "-P", "-c", code, str(place)], timeout=_DEADLINE_S, check=False, **options
    )  # type: ignore[call-overload]
    return int(done.returncode)


def _connected(place: Path) -> tuple[socket.socket, int]:
    """Return a connection, and the process that the kernel says listens there."""
    connection = endpoint.new_socket()
    connection.connect(str(place))
    return connection, linux.peer_of(connection).pid


def test_who_connects_at_once_meets_the_daemon(place: Path) -> None:
    assert _started(place) == 0
    connection, pid = _connected(place)
    with connection, Driver.open() as driver, driver.devices[0].create_context() as context:
        assert driver.daemon_pid == pid
        check_works(context)
    wait_gone(pid)
    assert sorted(os.listdir(place.parent)) == ["npu.sock.log"]


def test_the_daemon_has_nothing_of_the_program(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in program_environment.intruding(tmp_path).items():
        if name not in ("PYTHONHOME", "LD_PRELOAD", "LD_AUDIT", "PYTHONPATH"):  # of the program itself
            monkeypatch.setenv(name, value)
    given, theirs = os.pipe()  # as of a shell that waits for the end of what is written there
    # how it waits for its children is its own matter: the daemon is none of them
    after = "import subprocess\ntry: os.wait()\nexcept ChildProcessError: pass\nelse: sys.exit(7)"
    with os.fdopen(given, "rb") as reader:
        assert _started(place, after=after, pass_fds=(theirs,), stdout=theirs, stderr=theirs) == 0
        os.close(theirs)
        with Driver.open() as driver:
            pid = driver.daemon_pid
            assert reader.read() == b"", "it has closed what it was given, and said nothing"
            assert os.getsid(pid) == os.getpgid(pid) == pid
            assert program_environment.of_process(pid) == of_daemon(os.environ)
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            assert words[1:6] == [b"-P", b"-m", b"softnpu.emulator.autostart", b"--taken", os.fsencode(place)]
    wait_gone(pid)


@pytest.mark.parametrize(
    "before",
    [
        "import signal; signal.signal(signal.SIGCHLD, signal.SIG_IGN)",
        "fork, program = os.fork, os.getpid()\n"
        "def forked():\n"
        "    child = fork()\n"
        "    if child and os.getpid() != program: os.kill(os.getpid(), 19)\n"
        "    return child\n"
        "os.fork = forked",
    ],
    ids=["its end is ignored", "it is stopped"],
)
def test_the_process_between_program_and_daemon_is_not_waited_for(place: Path, before: str) -> None:
    assert _started(place, before) == 0
    with Driver.open() as driver:
        pid = driver.daemon_pid
        driver.stop_daemon()
    wait_gone(pid)


def test_no_child_of_the_daemon_has_its_socket_or_lock(place: Path) -> None:
    assert _started(place) == 0
    with Driver.open() as driver:
        pid, engine = driver.daemon_pid, driver.status().engines[0].engine_pid
        ours, theirs = (
            {os.readlink(fd) for fd in Path(f"/proc/{each}/fd").iterdir()} for each in (pid, engine)
        )
    assert str(endpoint.lock_path(place)) in ours - theirs
    wait_gone(pid)


def _hold_lock(place: Path, start_daemon: StartDaemon) -> None:
    assert start_daemon(socket=str(place)).alive


def _write_file(place: Path, _: StartDaemon) -> None:
    place.write_text("precious")


def _open_to_all(place: Path, _: StartDaemon) -> None:
    place.parent.chmod(0o777)


def _link_log(place: Path, _: StartDaemon) -> None:
    endpoint.log_path(place).symlink_to(place.parent / "other")


@pytest.mark.parametrize("obstacle", [_hold_lock, _write_file, _open_to_all, _link_log])
def test_nothing_is_taken_where_a_daemon_cannot_serve(
    place: Path, start_daemon: StartDaemon, obstacle: Callable[[Path, StartDaemon], None]
) -> None:
    obstacle(place, start_daemon)
    before = {name for name in os.listdir(place.parent) if not name.endswith(".log")}
    done = subprocess.run(
        [sys.executable, "-P", "-c", _PROGRAM.format(before="", after=""), str(place)],
        capture_output=True,
        timeout=_DEADLINE_S,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (3, b"", b""), "who starts one otherwise says why"
    assert {name for name in os.listdir(place.parent) if not name.endswith(".log")} == before


@pytest.mark.parametrize(
    "defect",
    [
        "import resource; resource.setrlimit(resource.RLIMIT_NOFILE, (20, 20))",
        "socket_files._listen_at = lambda *_, **__: sys.exit(1)",
        "socket_files.DaemonLock.reserve = lambda _: os.write(-1, b'')",
    ],
    ids=["too few descriptors", "no listener", "a full disk"],
)
def test_nothing_is_left_of_a_daemon_that_cannot_begin(place: Path, defect: str) -> None:
    assert _started(place, defect) == 3
    assert {*os.listdir(place.parent)} <= {"npu.sock.log"}


_WAIT = """
def wait():
    with open(os.environ["XDG_GATE"]) as gate:
        gate.read()
descriptor_limit.raise_it = wait
"""


@pytest.fixture
def gate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A pipe for which the process that becomes the daemon waits, as if it had been stopped."""
    path = tmp_path / "gate"
    os.mkfifo(path)
    monkeypatch.setenv("XDG_GATE", str(path))
    return path


def test_nobody_waits_for_a_stopped_process_that_would_be_the_daemon(place: Path, gate: Path) -> None:
    assert _started(place, _WAIT + "quick_daemon._TAKEN_S = 0.05") == 3
    assert not place.exists()
    with open(gate, "w"):  # it goes on, and finds that nobody needs it
        pass
    log = endpoint.log_path(place)
    wait_until(lambda: log.exists() and "Broken pipe" in log.read_text(), what="its end")
    assert sorted(os.listdir(place.parent)) == ["npu.sock.log"]


def test_one_that_cannot_be_executed_is_gone_at_once_and_replaced(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert _started(place, "sys.executable = '/nowhere/python'") == 0
    wait_until(lambda: not endpoint.accepts(place), what="its end")
    assert "'/nowhere/python'" in endpoint.log_path(place).read_text()
    monkeypatch.setenv("SOFTNPU_AUTOSTART", "1")
    with Driver.open() as driver:
        pid = driver.daemon_pid
    wait_gone(pid)


def test_one_that_hangs_before_it_serves_is_killed(place: Path, tmp_path: Path) -> None:
    program = tmp_path / "hangs"
    program.write_text("#!/bin/sh\nexec sleep 1000\n")
    program.chmod(0o755)
    assert _started(place, f"quick_daemon._SERVES_S = 1; sys.executable = {str(program)!r}") == 0
    wait_until(lambda: not endpoint.accepts(place), what="its end")


def test_one_that_does_not_begin_can_be_killed(place: Path, tmp_path: Path) -> None:
    program = tmp_path / "hangs"
    program.write_text("#!/bin/sh\nexec sleep 1000\n")
    program.chmod(0o755)
    assert _started(place, f"sys.executable = {str(program)!r}") == 0
    connection, pid = _connected(place)
    connection.close()
    os.kill(pid, signal.SIGSTOP)  # so that no alarm ends it
    killed = softnpu("stop", "--force", "--socket", str(place))
    assert (killed.code, killed.out.split()[:2]) == (0, ["daemon", str(pid)]), killed.err
    assert sorted(os.listdir(place.parent)) == ["npu.sock.log"]


def test_what_is_left_of_one_that_did_not_begin_is_cleaned(place: Path, tmp_path: Path) -> None:
    assert _started(place, "sys.executable = '/nowhere/python'") == 0
    wait_until(lambda: not endpoint.accepts(place), what="its end")
    assert place.exists()
    assert softnpu("clean", "--socket", str(place), TMPDIR=str(tmp_path)).code == 0
    assert os.listdir(place.parent) == []


def test_a_refused_setting_is_in_the_log(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOFTNPU_IDLE_S", "soon")  # `softnpu run` checks it, as it does all others, before
    assert _started(place) == 0
    wait_until(lambda: not endpoint.accepts(place), what="its end")
    assert "SOFTNPU_IDLE_S: 'soon'" in endpoint.log_path(place).read_text()


def test_a_dead_daemons_socket_is_replaced(place: Path) -> None:
    with endpoint.new_socket() as left:
        left.bind(str(place))
    assert _started(place) == 0
    connection, pid = _connected(place)
    connection.close()
    wait_gone(pid)
