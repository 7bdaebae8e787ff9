"""What ends a sleep in C++ at once: the death of the daemon, the end of a session, an ending in this process.

Slices are so long here that a test does not end by one.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import psutil
import pytest

from softnpu.driver import endings, status_page, submit_calls
from softnpu.emulator.common import linux
from softnpu.emulator.interface import records
from softnpu.emulator.interface.shared import FenceRecord, SharedMapping
from softnpu.emulator.supervisor.engines.status_page import StatusPage
from tests.conftest import StartDaemon, StartPython
from tests.support.client import ClientProcess
from tests.support.daemon import Daemon
from tests.support.waiting import DEADLINE_S, wait_stopped, wait_until

pytestmark = pytest.mark.skipif(
    tuple(map(int, os.uname().release.split("-")[0].split(".")[:2])) < (5, 16),
    reason="the kernel watches one word at a time",
)

_FUTEX, _FUTEX_WAITV = "202", "449"
_LONG_NS = 10**15
_RING_AT = 1024
_LOST = 0x70000001

_WAITERS = """
import ctypes, threading
from softnpu.driver import submissions
submissions._SLICE_NS = submissions._LONGEST_SLEEP_NS = given["slice_ns"]
driver = Driver.open(Path(given["socket"]))
context = driver.devices[0].create_context()
event = context.create_event()
gated = [recorded(context, lambda commands: commands.append_wait_on_events([event])) for _ in range(4)]
fences = []
for commands in gated:
    queue = context.create_command_queue()
    fences.append((queue, queue.create_fence()))
    queue.execute_command_lists([commands], fences[-1][1])
if given["refused"]:
    # number 449: an error of the caller's choice; any other call: allowed
    steps = [(0x20, 0, 0, 0), (0x15, 0, 1, 449), (6, 0, 0, 0x50000 | given["refused"]), (6, 0, 0, 0x7FFF0000)]
    import struct
    class Program(ctypes.Structure):
        _fields_ = (("length", ctypes.c_ushort), ("steps", ctypes.c_char_p))
    program = Program(len(steps), b"".join(struct.pack("=HBBI", *step) for step in steps))
    libc = ctypes.CDLL(None)
    assert libc.prctl(38, 1, 0, 0, 0) == 0 and libc.prctl(22, 2, ctypes.byref(program), 0, 0) == 0
ended = []
def wait(fence):
    try:
        fence.host_synchronize()
    except ZeError as failure:
        ended.append(failure.result)
threads = [threading.Thread(target=wait, args=(fence,)) for _, fence in fences]
for thread in threads:
    thread.start()
say([thread.native_id for thread in threads])
for thread in threads:
    thread.join()
say(ended)
"""


@pytest.fixture
def start_waiters(start_python: StartPython) -> Callable[..., ClientProcess]:
    """Start a process with four threads that wait for the device, each in this system call."""

    def start(daemon: Daemon, refused: int = 0) -> ClientProcess:
        client = start_python(_WAITERS, socket=str(daemon.socket), slice_ns=_LONG_NS, refused=refused)
        for thread in client.hear():
            call = _FUTEX if refused else _FUTEX_WAITV
            folder = Path(f"/proc/{client.pid}/task/{thread}")
            wait_until(partial(_is_in, folder, call), what="it to sleep")
        return client

    return start


@pytest.mark.parametrize("killed", ["supervisor", "all"])
def test_every_waiter_learns_of_the_death_of_the_daemon(
    start_daemon: StartDaemon, start_waiters: Callable[..., ClientProcess], killed: str
) -> None:
    """In several threads of several processes, one of which continues only afterwards."""
    daemon = start_daemon(tdr_ms=60_000)
    stopped, *clients = [start_waiters(daemon) for _ in range(5)]
    os.kill(stopped.pid, signal.SIGSTOP)
    wait_stopped(stopped.pid)
    children = psutil.Process(daemon.pid).children(recursive=True) if killed == "all" else []
    for process in (psutil.Process(daemon.pid), *children):
        with suppress(psutil.NoSuchProcess):  # the kernel kills the children of a dead supervisor
            process.kill()
    daemon.kill()
    for client in clients:
        assert client.hear() == [_LOST] * 4
        client.finish()
    os.kill(stopped.pid, signal.SIGCONT)
    assert stopped.hear() == [_LOST] * 4


@pytest.mark.parametrize("error", [1, 38], ids=["EPERM", "ENOSYS"])
def test_where_the_call_is_refused_slices_are_short(
    start_daemon: StartDaemon, start_waiters: Callable[..., ClientProcess], error: int
) -> None:
    daemon = start_daemon(tdr_ms=60_000)
    client = start_waiters(daemon, refused=error)
    daemon.kill()
    assert client.hear() == [_LOST] * 4


def _is_in(thread: Path, call: str) -> bool:
    """Whether a thread, by its folder in /proc, is in this system call."""
    return (thread / "syscall").read_text().split()[0] == call


class _Sleeper:
    """A thread that sleeps on a fence, as a driver with session 1 does."""

    def __init__(self, page: StatusPage) -> None:
        self._fd = linux.memfd("test", 4096)
        self._mapping = SharedMapping(self._fd, 4096)
        self.fence = FenceRecord(self._mapping, 0)
        self.fence.arm(5)
        self.peer, self._socket = socket.socketpair()
        self._view = _view(page)
        self._start()
        folder = Path(f"/proc/self/task/{self._thread.native_id}")
        wait_until(partial(_is_in, folder, _FUTEX_WAITV), what="it to sleep")

    def _start(self) -> None:
        assert submit_calls.CALLS is not None
        arguments = (
            self.fence.address, 5, self._mapping.address + _RING_AT, 1, _LONG_NS, _LONG_NS,
            endings.ADDRESS, endings.COUNT.value, self._socket.fileno(), self._view.life_of(1),
        )  # fmt: skip
        self._thread = threading.Thread(target=submit_calls.CALLS.sleep, args=arguments, daemon=True)
        self._thread.start()

    def rearm(self) -> None:
        """Let its submission end, and another one with its fence; then let it sleep again."""
        self.fence.signal(5, 0)
        self._thread.join()
        self._mapping.longs[(_RING_AT + records.RING_COMPLETED) >> 3] = 2
        self.fence.arm(9)
        self.fence.signal(9, 0)
        self._start()

    def has_ended(self) -> bool:
        self._thread.join(DEADLINE_S)
        return not self._thread.is_alive()

    def close(self) -> None:
        self.fence.arm(5)
        self.fence.signal(5, 0)
        self.peer.close()
        self._thread.join(DEADLINE_S)
        self._socket.close()
        os.close(self._fd)


@pytest.fixture
def page() -> Iterator[StatusPage]:
    """A page of this thread, in which session 1 lives."""
    page = StatusPage(1)
    page.lives.hold()
    page.lives.begin(1)
    try:
        yield page
    finally:
        page.close()


@pytest.fixture
def sleeper(page: StatusPage) -> Iterator[_Sleeper]:
    sleeper = _Sleeper(page)
    try:
        yield sleeper
    finally:
        sleeper.close()


def test_nobody_sleeps_whose_submission_has_ended(sleeper: _Sleeper) -> None:
    """Another thread has armed the fence again between the look at it and the sleep."""
    sleeper.rearm()
    assert sleeper.has_ended()


def test_a_sleeper_is_woken_by_the_fence(sleeper: _Sleeper) -> None:
    sleeper.fence.signal(5, 0)
    assert sleeper.has_ended()


def test_a_sleeper_is_woken_by_an_ending_in_its_process(sleeper: _Sleeper) -> None:
    endings.note()
    assert sleeper.has_ended()


def test_a_sleeper_is_woken_by_the_end_of_its_session(page: StatusPage, sleeper: _Sleeper) -> None:
    page.lives.end(1)
    assert sleeper.has_ended()


def test_two_sessions_may_share_a_word(page: StatusPage, sleeper: _Sleeper) -> None:
    """The end of one makes the other look, and not believe that it has ended."""
    other = 1 + records.LIVES
    page.lives.begin(other)
    page.lives.end(other)
    assert sleeper.has_ended()
    after = _Sleeper(page)
    after.close()


def test_a_page_without_lives_has_no_address_of_one(page: StatusPage) -> None:
    older = StatusPage(1)
    try:
        assert _view(older).life_of(1) == 0
    finally:
        older.close()
    addresses = {_view(page).life_of(session) % 4096 for session in range(1024)}
    assert len(addresses) == records.LIVES


@pytest.mark.parametrize("size", [0, 32, 40])
def test_a_file_that_is_no_status_page_is_left_alone(size: int) -> None:
    fd = linux.memfd("page", size)
    assert status_page.mapped(fd) is None
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(fd)


def _view(page: StatusPage) -> status_page.StatusPage:
    view = status_page.mapped(os.dup(page.reader_fd))
    assert view is not None
    return view
