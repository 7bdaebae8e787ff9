"""A descriptor has one owner at any moment: one that is closed twice may be another file by then."""

from __future__ import annotations

import itertools
import os
import resource
import signal
import socket
import struct
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import cast

import pytest

from softnpu.emulator.common import untrusted_fds
from softnpu.emulator.common.linux import memfd
from softnpu.emulator.interface import frames
from softnpu.emulator.interface import messages as msg
from softnpu.emulator.interface.channel import Packet
from softnpu.emulator.interface.result import Refused
from softnpu.emulator.links.compiler import Compiled, OptionsJob
from softnpu.emulator.supervisor import parked_files
from softnpu.emulator.supervisor.children import child_process
from softnpu.emulator.supervisor.children.child import Child
from softnpu.emulator.supervisor.children.child_process import ChildProcess, ChildProgram
from softnpu.emulator.supervisor.compilers.pool import Compilation, CompilerPool, _Worker
from softnpu.emulator.supervisor.reactor import Reactor
from softnpu.emulator.supervisor.settings import DaemonSettings
from softnpu.emulator.supervisor.state.images import ImageStore
from softnpu.emulator.supervisor.state.memory import ContextMemory
from softnpu.emulator.supervisor.undoing import move
from tests.support.daemon import Daemon
from tests.support.waiting import wait_until
from tests.support.wire import Wire, unread_stream


class _Records:
    """Where an engine would count."""

    def __init__(self) -> None:
        self.free = [3, 2, 1]

    def take_image(self) -> int:
        return self.free.pop()

    def free_image(self, state: int) -> None:
        self.free.append(state)


@pytest.fixture
def store() -> Iterator[ImageStore]:
    store = ImageStore(_Records(), itertools.count(1))
    yield store
    store.close()


def _is_open(fd: int) -> bool:
    return os.path.exists(f"/proc/self/fd/{fd}")


def _blob(name: bytes) -> Compiled:
    return Compiled(blob_digest=name, placement_digest=b"", blob_length=1, placement_length=0, files=())


@pytest.mark.quick
def test_what_is_moved_has_one_owner() -> None:
    mine, yours = [1, 2, 3], [4]
    move(mine, yours, 1)
    assert (mine, yours) == ([1], [4, 2, 3])


@pytest.mark.quick
def test_an_image_takes_the_descriptors_of_new_content_alone(store: ImageStore) -> None:
    first, second = [memfd("first", 1)], [memfd("second", 1)]
    kept = [*first, *second]
    image = store.acquire(_blob(b"a"), (), first, 0)
    image.users += 1
    assert store.acquire(_blob(b"a"), (), second, 0) is image
    image.users += 1
    assert (first, second, image.fds) == ([], kept[1:], kept[:1])
    os.close(second[0])
    assert not store.release(image)
    assert store.release(image)
    assert image.fds == []
    assert not any(map(_is_open, kept))
    image.close()  # which another file may have the number of by now


@pytest.mark.quick
def test_an_image_that_nobody_came_to_use_ends(store: ImageStore) -> None:
    left = [memfd("left", 1)]
    (fd,) = left
    store.acquire(_blob(b"a"), (), left, 0)  # and an error came before it was used
    other = store.acquire(_blob(b"b"), (), [memfd("other", 1)], 0)
    other.users += 1
    store.drop_unused()
    assert not _is_open(fd)
    assert store.all() == [other]


@pytest.mark.quick
def test_a_segment_that_cannot_be_kept_leaves_no_descriptor(monkeypatch: pytest.MonkeyPatch) -> None:
    memory, fd = ContextMemory(), memfd("segment", 4096)
    before = len(os.listdir("/proc/self/fd"))
    with monkeypatch.context() as patched:
        patched.setattr("softnpu.emulator.supervisor.state.memory.Segment", _out_of_memory)
        with pytest.raises(MemoryError):
            memory.adopt(fd, 4096, "host")
    assert len(os.listdir("/proc/self/fd")) == before
    memory.adopt(fd, 4096, "host")
    os.close(fd)
    assert memory.close_some(2) == 1
    assert len(os.listdir("/proc/self/fd")) == before - 1


def _out_of_memory(*_: object) -> None:
    raise MemoryError


@pytest.mark.parametrize("fails", [False, True])
def test_a_packet_owns_its_descriptors_until_they_are_moved(
    fails: bool, monkeypatch: pytest.MonkeyPatch, foreign: Callable[[], int]
) -> None:
    fds = [memfd("memory", 1), foreign(), foreign()]
    packet, mine = Packet(1, memoryview(b""), [*fds]), list[int]()
    before = len(os.listdir("/proc/self/fd"))
    with packet:
        with pytest.raises(Refused):
            packet.check_fds(2)
        theirs = packet.check_fds(3)
        if fails:
            real = parked_files._park
            monkeypatch.setattr(parked_files, "_park", lambda fd: real(fd) if fd == fds[1] else _broken())
            with pytest.raises(OSError, match="too many"):
                parked_files.park(theirs, 0)
        else:
            parked_files.park(theirs, 0)
            move(theirs, mine)
    if fails:
        wait_until(lambda: len(os.listdir("/proc/self/fd")) == before - 3)
        return
    assert mine[0] == fds[0]
    with parked_files.borrowed(mine, 0) as files:
        assert [os.pread(fd, 9, 0) for fd in files[1:]] == [b"foreign"] * 2
    for fd in mine:
        os.close(fd)
    wait_until(lambda: len(os.listdir("/proc/self/fd")) == before - 3)


def _broken() -> int:
    raise OSError(24, "too many")


@pytest.fixture
def foreign(tmp_path: os.PathLike[str]) -> Callable[[], int]:
    """A descriptor of a file on a disk, each time a new one."""
    path = os.path.join(tmp_path, "file")
    with open(path, "wb") as file:
        file.write(b"foreign")
    return lambda: os.open(path, os.O_RDONLY)


# ---------------------------------------------------------------- closing what strangers have sent


def test_what_no_thread_can_be_started_for_is_closed_by_the_one_that_is_kept(
    monkeypatch: pytest.MonkeyPatch, foreign: Callable[[], int]
) -> None:
    def no_thread(*_: object) -> int:
        raise RuntimeError("can't start new thread")

    untrusted_fds.prepare()
    with monkeypatch.context() as patched:
        patched.setattr(untrusted_fds, "_thread", SimpleNamespace(start_new_thread=no_thread))
        for _ in range(3):
            fds = [foreign() for _ in range(100)]
            untrusted_fds.close_untrusted(fds, 7)
            wait_until(lambda: not untrusted_fds._closers, what="all are closed")
            assert not any(map(_is_open, fds))
    fds = [foreign()]
    untrusted_fds.close_untrusted(fds, 7)
    wait_until(lambda: not untrusted_fds._closers)
    assert not _is_open(fds[0])


def test_a_socket_is_closed_without_waiting_for_its_peer() -> None:
    fd, receiver = unread_stream()
    with receiver:
        untrusted_fds.close_untrusted([fd], 7)
        wait_until(lambda: not untrusted_fds._closers, 20, "its closing")


def _hugetlb() -> int:
    return os.memfd_create("huge", os.MFD_HUGETLB)


def _large() -> int:
    fd = memfd("large", 17 << 20)
    os.posix_fallocate(fd, 0, 17 << 20)
    return fd


def _of_a_mounted_tmpfs() -> int:
    fd, path = tempfile.mkstemp(dir="/dev/shm")
    os.unlink(path)
    return fd


@pytest.mark.parametrize(
    ("make", "is_at_once"),
    [
        (partial(memfd, "small", 1 << 30), True),
        (_large, False),
        (_hugetlb, False),
        (_of_a_mounted_tmpfs, False),
    ],
)
def test_what_takes_long_to_give_back_is_closed_in_a_thread(
    make: Callable[[], int], is_at_once: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last descriptor of three gigabytes kept all clients of a daemon waiting for two seconds."""
    close, closers = os.close, {}

    def noted(fd: int) -> None:
        closers[fd] = threading.get_ident()
        close(fd)

    fd = make()
    untrusted_fds._device_of_memory_files()
    with monkeypatch.context() as patched:
        patched.setattr("os.close", noted)
        untrusted_fds.close_untrusted([fd], 7)
        wait_until(lambda: not untrusted_fds._closers, what="its closing")
    assert (closers[fd] == threading.get_ident()) == is_at_once


def test_room_for_descriptors_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(untrusted_fds, "_table", -1)
    assert not untrusted_fds.lacks_room(1 << 40), "who is not prepared does not ask"
    table = os.open("/proc/self/fd", os.O_RDONLY)
    monkeypatch.setattr(untrusted_fds, "_table", table)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    room = limits[0] - (len(os.listdir("/proc/self/fd")) - 1)
    assert not untrusted_fds.lacks_room(room)
    assert untrusted_fds.lacks_room(room + 1) == (os.fstat(table).st_size > 0), "since Linux 6.2"
    os.close(table)


@pytest.mark.parametrize("before", [b"none of ours", b""], ids=["malformed", "empty"])
@pytest.mark.parametrize("count", [1, 253])
def test_what_nobody_reads_any_more_is_not_closed_by_the_supervisor(
    daemon: Daemon, before: bytes, count: int
) -> None:
    fd, receiver = unread_stream()
    with receiver, Wire(daemon.socket) as innocent:
        innocent.hello()
        innocent.socket.settimeout(20)
        descriptors = daemon.base_fd_count()
        hostile = Wire(daemon.socket)
        hostile.hello()
        os.kill(daemon.pid, signal.SIGSTOP)  # so that it finds all of it
        for _ in range(3):  # the first one ends the connection
            hostile.send_raw(before)
        hostile.socket.sendmsg([b"1"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("i", fd) * count)])
        os.close(fd)
        os.kill(daemon.pid, signal.SIGCONT)
        innocent.ask(msg.Status(), msg.StatusAnswer)
        hostile.close()
        wait_until(lambda: daemon.base_fd_count() <= descriptors, what="the end of its connection")
        innocent.ask(msg.Status(), msg.StatusAnswer)


@pytest.mark.parametrize("read", [True, False], ids=["read", "left unread"])
def test_what_a_child_sends_is_not_closed_by_the_supervisor(
    monkeypatch: pytest.MonkeyPatch, read: bool
) -> None:
    """A model that has taken over an engine sends a file whose closing takes a minute."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    output, written = os.pipe()
    os.close(written)
    process = subprocess.Popen(["sleep", "600"])
    monkeypatch.setattr(child_process, "take", lambda _program: ChildProcess(process, ours, output))
    reactor = Reactor()
    child = Child(ChildProgram.ENGINE, reactor, lambda *_frame: None, lambda _how: None)
    fd, receiver = unread_stream()
    with receiver, theirs:
        socket.send_fds(theirs, [frames.encode(1, b"x", 1)], [fd])
        os.close(fd)
        closing = threading.Thread(target=_end_of, args=(child, read), daemon=True)
        closing.start()
        closing.join(20)
        assert not closing.is_alive()
        wait_until(lambda: not untrusted_fds._closers, what="its closing")
    reactor.close()


def test_a_compilation_whose_worker_cannot_be_killed_leaves_no_descriptor() -> None:
    reactor, settings = Reactor(), DaemonSettings(socket="unused")
    pool = CompilerPool(reactor, settings.tuning, settings.limits.job_cpu_s)
    fd = memfd("model", 1)
    job = OptionsJob(device=0, platform="4000")
    compilation = Compilation(job, [fd], lambda *_: None, lambda *_: None, lambda *_: None)
    compilation.worker = cast("_Worker", SimpleNamespace(current=compilation, kill=_out_of_memory))
    with pytest.raises(MemoryError):
        pool.abandon(compilation)
    assert compilation.ended
    assert not _is_open(fd)
    pool.close(0)
    reactor.close()


@pytest.mark.parametrize("fails", ["ChildOutput", "Channel", "Outbox"])
def test_a_child_that_cannot_be_kept_ends_and_leaves_no_descriptor(
    monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    output, written = os.pipe()
    process = subprocess.Popen(["sleep", "600"])
    monkeypatch.setattr(child_process, "take", lambda _program: ChildProcess(process, ours, output))
    monkeypatch.setattr(f"{Child.__module__}.{fails}", _out_of_memory)
    reactor = Reactor()
    with theirs, open(written, "wb"), pytest.raises(MemoryError):
        Child(ChildProgram.ENGINE, reactor, lambda *_frame: None, lambda _how: None)
    assert not _is_open(output)
    assert ours.fileno() == -1
    assert process.returncode == -signal.SIGKILL
    reactor.close()


def _end_of(child: Child, read: bool) -> None:
    if read:
        child._read()
    child.close(0.0)
