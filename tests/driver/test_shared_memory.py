"""Memory that other programs publish under a POSIX name: used in place, even when it is truncated."""

from __future__ import annotations

import mmap
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import posix_ipc
import pytest

from softnpu.driver import Allocation, CommandList, CommandQueue, Context, GraphSource, ZeError, ZeResult
from softnpu.emulator.common import linux
from softnpu.emulator.common.native_files import ENV_NATIVE_DIR
from tests.conftest import OpenContext, StartContext
from tests.support.daemon import Daemon
from tests.support.models import image, on_cpu
from tests.support.waiting import wait_stopped, wait_until
from tests.support.work import check_works, copy, execute, failure, fill, lost, recorded, run, signals

PAGE = mmap.PAGESIZE
SIZE = 10_000  # not a multiple of the page size
UNTIL_ASKED = 600_000


class Publisher:
    """A program that publishes memory, without a line of softnpu."""

    def __init__(self, size: int = SIZE) -> None:
        self.name = f"/softnpu-test-{os.getpid()}-{os.urandom(4).hex()}"
        self._memory = posix_ipc.SharedMemory(self.name, posix_ipc.O_CREX, mode=0o600, size=size)
        self.bytes = mmap.mmap(self._memory.fd, size)

    @property
    def fd(self) -> int:
        return int(self._memory.fd)

    def resize(self, size: int) -> None:
        os.ftruncate(self.fd, size)

    def close(self) -> None:
        self.bytes.close()
        os.close(self.fd)
        posix_ipc.unlink_shared_memory(self.name)


@pytest.fixture
def publish() -> Iterator[Callable[..., Publisher]]:
    made: list[Publisher] = []

    def one(size: int = SIZE) -> Publisher:
        made.append(Publisher(size))
        return made[-1]

    yield one
    for publisher in made:
        publisher.close()


Publish = Callable[..., Publisher]


# ---------------------------------------------------------------- in place


def test_the_device_reads_and_writes_what_another_program_has_published(
    context: Context, queue: CommandQueue, publish: Publish
) -> None:
    camera = publish()
    with context.open_shared_memory(camera.name, 5000, 3000) as memory:
        assert memory.size == 3000
        run(queue, fill(context, memory, 7))
        assert camera.bytes[:] == bytes(5000) + b"\7" * 3000 + bytes(2000)
        camera.bytes[5000:5003] = b"abc"
        assert bytes(memory.view()[:3]) == b"abc"
        run(queue, copy(context, memory.address + 10, memory, 3))
        assert camera.bytes[5010:5013] == b"abc"
    with context.open_shared_memory(camera.name, 4096) as rest:
        assert rest.size == SIZE - 4096
    assert os.fstat(camera.fd).st_size == SIZE, "the driver has changed the file"


def test_a_model_computes_in_another_programs_memory_without_a_copy(
    context: Context, queue: CommandQueue, publish: Publish, daemon: Daemon, digits: Path
) -> None:
    frames, results = publish(), publish()
    picture = image()
    frames.bytes[64 : 64 + picture.nbytes] = picture.tobytes()
    with GraphSource.from_ir(digits) as source:
        graph = context.create_graph(source)
    graph.initialize()
    graph.set_argument_value(0, context.open_shared_memory(frames.name, 64, picture.nbytes))
    graph.set_argument_value(1, context.open_shared_memory(results.name, 4096 - 16, 40))
    before = daemon.status().engines[0].staged_bytes
    run(queue, recorded(context, lambda commands: commands.append_graph_execute(graph)))
    found = np.frombuffer(results.bytes, np.float32, 10, 4096 - 16)
    assert found.tobytes() == on_cpu(digits, picture)[0].tobytes()
    assert daemon.status().engines[0].staged_bytes == before
    del found


def test_a_missing_name_or_range_is_refused(context: Context, publish: Publish) -> None:
    camera = publish()
    opened = context.open_shared_memory
    for call, result, found in (
        (partial(opened, "/softnpu-nobody"), ZeResult.ERROR_NOT_AVAILABLE, "No such file"),
        (partial(opened, "camera"), ZeResult.ERROR_INVALID_ARGUMENT, "no POSIX name"),
        (partial(opened, "/a/b"), ZeResult.ERROR_INVALID_ARGUMENT, "no POSIX name"),
        (partial(opened, camera.name, 0, SIZE + 1), ZeResult.ERROR_INVALID_SIZE, f"of {SIZE}"),
        (partial(opened, camera.name, SIZE), ZeResult.ERROR_INVALID_SIZE, f"of {SIZE}"),
        (partial(opened, camera.name, -1, 10), ZeResult.ERROR_INVALID_SIZE, f"of {SIZE}"),
        (partial(opened, camera.name, 0, 0), ZeResult.ERROR_INVALID_SIZE, "0 bytes"),
    ):
        assert found in failure(call, result).info.found
    assert os.fstat(camera.fd).st_size == SIZE


def test_memory_truncated_during_import_is_refused_and_does_not_grow(
    context: Context, publish: Publish, monkeypatch: pytest.MonkeyPatch
) -> None:
    camera = publish()
    reserve = linux.reserve_pages

    def cut_first(fd: int, offset: int, size: int) -> None:
        camera.resize(100)
        reserve(fd, offset, size)

    monkeypatch.setattr(linux, "reserve_pages", cut_first)
    error = failure(partial(context.open_shared_memory, camera.name), ZeResult.ERROR_INVALID_ARGUMENT)
    assert "100 bytes" in error.info.found
    assert os.fstat(camera.fd).st_size == 100


def test_opening_a_name_without_posix_ipc_says_what_to_install(
    context: Context, publish: Publish, monkeypatch: pytest.MonkeyPatch
) -> None:
    camera = publish()
    monkeypatch.setitem(sys.modules, "posix_ipc", None)
    error = failure(lambda: context.open_shared_memory(camera.name), ZeResult.ERROR_DEPENDENCY_UNAVAILABLE)
    assert "softnpu[tools]" in error.info.hint
    context.import_memory(camera.fd).destroy()


def test_a_daemon_without_the_guard_refuses_memory_that_can_be_truncated(
    start_context: StartContext, publish: Publish, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(ENV_NATIVE_DIR, str(tmp_path))
    _, context = start_context()
    camera = publish()
    info = failure(lambda: context.open_shared_memory(camera.name), ZeResult.ERROR_UNSUPPORTED_FEATURE).info
    assert "libsoftnpu_guard.so" in info.found
    check_works(context)


# ---------------------------------------------------------------- truncation


def test_truncated_memory_ends_the_submission_and_names_the_sizes(
    context: Context, queue: CommandQueue, publish: Publish, daemon: Daemon, open_context: OpenContext
) -> None:
    camera = publish()
    memory = context.open_shared_memory(camera.name, 100, 9000)
    camera.resize(9099)  # within a page: no access faults
    info = lost(execute(queue, copy(context, context.alloc_host(9000), memory, 9000))).info
    assert info.object == f"shared memory /dev/shm{camera.name}"
    assert (info.found, info.expected[:10]) == ("9099 bytes", "9100 bytes")
    check_works(context)
    check_works(open_context(daemon))
    assert daemon.status().engines[0].restarts == 0


@pytest.fixture
def stopping(start_context: StartContext) -> tuple[Daemon, Context]:
    """An engine that stops itself when a submission has begun, before its first command."""
    return start_context(failpoints="engine.running=stop", tdr_ms=UNTIL_ASKED)


def _cut_meanwhile(daemon: Daemon, cut: Callable[[], None]) -> None:
    engine = daemon.status().engines[0].engine_pid
    wait_stopped(engine)
    cut()
    os.kill(engine, signal.SIGCONT)


def test_truncation_during_a_command_loses_only_the_queue_using_the_memory(
    stopping: tuple[Daemon, Context], publish: Publish, open_context: OpenContext
) -> None:
    daemon, context = stopping
    camera = publish(4 * PAGE)
    memory = context.open_shared_memory(camera.name)
    queue, target, event = (
        context.create_command_queue(),
        context.alloc_host(4 * PAGE),
        context.create_event(),
    )
    reads = signals(context, event, lambda c: c.append_memory_copy(target, memory, 4 * PAGE))
    pid = daemon.status().engines[0].engine_pid
    fence = execute(queue, reads)
    _cut_meanwhile(daemon, lambda: camera.resize(PAGE))
    assert lost(fence).info.found == f"{PAGE} bytes"
    assert not event.query_status(), "signalled for work that was not done"
    failure(lambda: run(queue, reads), ZeResult.ERROR_DEVICE_LOST)

    camera.resize(4 * PAGE)
    again = context.create_command_queue()
    assert "a page was missing" in lost(execute(again, reads)).info.found, "the old mapping is void for good"
    fresh = context.open_shared_memory(camera.name)
    run(context.create_command_queue(), fill(context, fresh, 9))
    assert camera.bytes[:] == b"\x09" * 4 * PAGE
    check_works(open_context(daemon))
    assert daemon.status().engines[0].engine_pid == pid, "the engine has survived"


def test_staged_results_are_void_as_well(stopping: tuple[Daemon, Context], publish: Publish) -> None:
    """A copy onto itself is recorded before it is delivered, so that the next engine can finish it."""
    daemon, context = stopping
    camera = publish(4 * PAGE)
    memory = context.open_shared_memory(camera.name)
    queue = context.create_command_queue()
    fence = execute(queue, copy(context, memory.address + 64, memory, 3 * PAGE))
    _cut_meanwhile(daemon, lambda: camera.resize(2 * PAGE))
    assert lost(fence).info.found == f"{2 * PAGE} bytes"
    assert daemon.status().engines[0].restarts == 0


def test_the_next_engine_accepts_foreign_memory_truncated_meanwhile(
    start_context: StartContext, publish: Publish
) -> None:
    daemon, context = start_context()
    camera, other = publish(), publish()
    cut, whole = context.open_shared_memory(camera.name), context.open_shared_memory(other.name)
    camera.resize(0)
    os.kill(daemon.status().engines[0].engine_pid, signal.SIGKILL)
    run(context.create_command_queue(), fill(context, whole, 3))
    assert other.bytes[:] == b"\3" * SIZE
    assert lost(execute(context.create_command_queue(), fill(context, cut, 3))).info.found == "0 bytes"
    assert daemon.status().engines[0].restarts == 1


def test_repeated_truncation_ends_no_engine(context: Context, publish: Publish, daemon: Daemon) -> None:
    """At any moment: a submission succeeds or ends with a lost device, and the engine continues."""
    size = 1024 * PAGE
    camera = publish(size)
    ended = threading.Event()

    def cut() -> None:
        while not ended.is_set():
            camera.resize(PAGE)
            camera.resize(size)

    before = daemon.status().engines[0]
    cutter = threading.Thread(target=cut)
    cutter.start()
    try:
        for _ in range(4):
            wait_until(lambda: _one_round(context, camera, size), what="a submission that meets a cut")
    finally:
        ended.set()
        cutter.join()
    after = daemon.status().engines[0]
    assert (after.engine_pid, after.restarts) == (before.engine_pid, before.restarts)
    run(context.create_command_queue(), fill(context, context.open_shared_memory(camera.name), 1))


def _one_round(context: Context, camera: Publisher, size: int) -> bool:
    """Open the memory and read all of it; return whether it was truncated while the device had it."""
    try:
        memory = context.open_shared_memory(camera.name, 0, size)
    except ZeError as error:
        if error.result in {ZeResult.ERROR_INVALID_SIZE, ZeResult.ERROR_INVALID_ARGUMENT}:
            return False
        raise
    with memory, context.create_command_queue() as queue, context.alloc_host(size) as target:
        try:
            run(queue, copy(context, target, memory, size))
        except ZeError as error:
            if error.result == ZeResult.ERROR_DEVICE_LOST:
                return True
            raise
    return False


# ---------------------------------------------------------------- trusted memory


def test_commands_and_fences_in_foreign_memory_are_refused(context: Context, publish: Publish) -> None:
    camera = publish()
    memory = context.open_shared_memory(camera.name, 0, 4096)
    commands, queue = fill(context, context.alloc_host(64), 1), context.create_command_queue()
    _move(commands, memory)
    info = failure(lambda: run(queue, commands), ZeResult.ERROR_INVALID_ARGUMENT).info
    assert "shared memory of another program" in info.found
    check_works(context)


def _move(commands: CommandList, memory: Allocation) -> None:
    """Put the commands of a closed list where others can write them, as a hostile client would."""
    submission = commands._submission
    assert submission is not None
    block = submission.buffer
    start = block.offset
    memory.view()[: submission.size] = np.frombuffer(block.mapping.buffer, np.uint8, submission.size, start)
    commands._submission = submission._replace(buffer=memory._block)
