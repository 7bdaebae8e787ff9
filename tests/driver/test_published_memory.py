"""Device memory under a POSIX name: other programs open it, and the name ends with its owner."""

from __future__ import annotations

import mmap
import os
import signal
from functools import partial
from pathlib import Path

import posix_ipc
import psutil

from softnpu.driver import CommandQueue, Context, Driver, ZeResult, name_keeper
from tests.conftest import StartPython
from tests.support.daemon import Daemon
from tests.support.leaks import children_of
from tests.support.waiting import wait_until
from tests.support.work import copy, failure, fill, run


def _exists(name: str) -> bool:
    return Path(f"/dev/shm{name}").exists()


def _keepers(pid: int) -> list[int]:
    """The processes that keep names for a program."""
    found = (process for process in psutil.process_iter(["cmdline"]) if process.info["cmdline"])
    return [
        process.pid
        for process in found
        if name_keeper.__file__ in process.info["cmdline"] and process.info["cmdline"][-1] == str(pid)
    ]


def test_another_program_reads_and_writes_what_the_device_computes(
    context: Context, queue: CommandQueue, posix_name: str
) -> None:
    with context.publish_shared_memory(posix_name, 10_000, 0o640) as memory:
        assert os.stat(f"/dev/shm{posix_name}").st_mode & 0o777 == 0o640
        other = posix_ipc.SharedMemory(posix_name)
        assert other.size == 10_000
        with mmap.mmap(other.fd, other.size) as view:
            os.close(other.fd)
            run(queue, fill(context, memory, 6))
            assert view[:] == b"\6" * 10_000
            view[:3] = b"abc"
            run(queue, copy(context, memory.address + 9000, memory, 3))
            assert bytes(memory.view()[9000:9003]) == b"abc"
            memory.destroy()
            assert not _exists(posix_name)
            assert view[:3] == b"abc", "whoever has it keeps it"


def test_a_name_ends_with_the_last_reference_and_with_the_session(
    daemon: Daemon, context: Context, posix_name: str
) -> None:
    context.publish_shared_memory(posix_name, 100)
    assert not _exists(posix_name)
    with Driver.open(daemon.socket) as driver:
        context = driver.devices[0].create_context()
        memory = context.publish_shared_memory(posix_name, 100)
        assert _exists(posix_name)
    assert not _exists(posix_name)
    failure(memory.view, ZeResult.ERROR_INVALID_NULL_HANDLE)


def test_refused_publications_leave_nothing_behind(context: Context, posix_name: str) -> None:
    publish = context.publish_shared_memory
    theirs = posix_ipc.SharedMemory(posix_name, posix_ipc.O_CREX, size=10)
    os.close(theirs.fd)
    for call, result in (
        (partial(publish, posix_name, 100), ZeResult.ERROR_NOT_AVAILABLE),
        (partial(publish, "no-slash", 100), ZeResult.ERROR_INVALID_ARGUMENT),
        (partial(publish, posix_name + "b", 0), ZeResult.ERROR_UNSUPPORTED_SIZE),
        (partial(publish, posix_name + "b", 1 << 60), ZeResult.ERROR_OUT_OF_HOST_MEMORY),
        (partial(publish, posix_name + "b", 100, 0o400), ZeResult.ERROR_INVALID_ARGUMENT),
    ):
        failure(call, result)
    assert os.stat(f"/dev/shm{posix_name}").st_size == 10, "it is somebody else's"
    assert not _exists(posix_name + "b")
    posix_ipc.unlink_shared_memory(posix_name)


def test_a_name_that_was_reused_for_other_memory_is_kept(context: Context, posix_name: str) -> None:
    memory = context.publish_shared_memory(posix_name, 100)
    posix_ipc.unlink_shared_memory(posix_name)
    theirs = posix_ipc.SharedMemory(posix_name, posix_ipc.O_CREX, size=10)
    os.close(theirs.fd)
    memory.destroy()
    assert _exists(posix_name)
    posix_ipc.unlink_shared_memory(posix_name)


def test_the_end_of_an_older_publication_keeps_the_name_of_a_newer_one(
    daemon: Daemon, context: Context, posix_name: str, start_python: StartPython
) -> None:
    """A consumer that unlinks what it has opened, as consumers of picture queues do."""
    older = context.publish_shared_memory(posix_name, 100)
    posix_ipc.unlink_shared_memory(posix_name)
    newer = context.publish_shared_memory(posix_name, 100)
    older.destroy()
    assert _exists(posix_name)
    (keeper,) = _keepers(os.getpid())
    os.kill(keeper, signal.SIGKILL)
    other = context.publish_shared_memory(posix_name + "b", 100)  # a new keeper, which must learn both
    newer.destroy()
    assert not _exists(posix_name)
    other.destroy()
    client = start_python(
        PUBLISHER + "os.unlink('/dev/shm' + given['names'][0])\n"
        "newer = context.publish_shared_memory(given['names'][0], 100)\n"
        "memory[0].destroy()\nsay(True)\nhear()",
        names=[posix_name],
        socket=str(daemon.socket),
    )
    assert client.hear()
    assert client.hear()
    assert _exists(posix_name)
    client.kill()
    wait_until(lambda: not _exists(posix_name), what="the newer name to end")


PUBLISHER = """
from pathlib import Path
from softnpu.driver import Driver
context = Driver.open(Path(given["socket"])).devices[0].create_context()
memory = [context.publish_shared_memory(name, 100) for name in given["names"]]
say(True)
"""


def test_a_killed_program_leaves_no_name_and_no_process(
    daemon: Daemon, posix_name: str, start_python: StartPython
) -> None:
    names = [f"{posix_name}-{index}" for index in range(3)]
    client = start_python(PUBLISHER + "hear()", names=names, socket=str(daemon.socket))
    assert client.hear()
    assert all(map(_exists, names))
    assert len(_keepers(client.pid)) == 1
    assert not children_of(client.pid), "a program has no child that it did not start"
    client.kill()
    wait_until(lambda: not any(map(_exists, names)), what="the names to end")
    wait_until(lambda: not _keepers(client.pid), what="the process that kept them to end")


def test_a_killed_keeper_is_replaced_with_all_names(context: Context, posix_name: str) -> None:
    one = context.publish_shared_memory(posix_name, 100)
    (keeper,) = _keepers(os.getpid())
    os.kill(keeper, signal.SIGKILL)
    two = context.publish_shared_memory(posix_name + "b", 100)
    assert _exists(posix_name)
    (keeper,) = _keepers(os.getpid())
    one.destroy()
    two.destroy()
    assert not _exists(posix_name)
    wait_until(lambda: not _keepers(os.getpid()), what="the process that kept them to end")


def test_a_forked_child_cannot_remove_a_name(context: Context, posix_name: str) -> None:
    memory = context.publish_shared_memory(posix_name, 100)
    child = os.fork()
    if not child:
        os._exit(0 if not memory._unlink() else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert _exists(posix_name)
    memory.destroy()
