"""What a hostile client may do with objects that others share, found by `tests.fuzz`: the engine stays."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from softnpu.driver import ZeResult
from softnpu.emulator.common import linux
from softnpu.emulator.interface import commands as cmd
from softnpu.emulator.interface import messages as msg
from softnpu.emulator.interface import records
from softnpu.emulator.interface.commands import MemoryAt
from softnpu.emulator.interface.frames import MAX_BODY
from tests.conftest import StartDaemon
from tests.support.daemon import Daemon
from tests.support.models import write_chain
from tests.support.waiting import Stopwatch, wait_until
from tests.support.wire import Wire, WireContext, WireQueue

_HUGETLB = 4
_TOP = 2**64 - 1
_NOTHING = cmd.encode_buffer([cmd.encode_command(cmd.Barrier())])


def _has_completed(queue: WireQueue, count: int) -> bool:
    return queue.completed == count


@pytest.fixture
def daemon(shared_daemon: Daemon) -> Iterator[Daemon]:
    """The engine is the same at the end, and it serves."""
    before = shared_daemon.engine().restarts
    yield shared_daemon
    with Wire(shared_daemon.socket) as wire:
        wire.hello()
        context = WireContext(wire)
        assert context.queue().run(_NOTHING, context.alloc(4096, "control")) == 0
    assert shared_daemon.engine().restarts == before


@pytest.fixture
def wire(daemon: Daemon) -> Iterator[Wire]:
    with Wire(daemon.socket) as wire:
        wire.hello()
        yield wire


def _sealed(seals: int, flags: int = 0, size: int = 1 << 21) -> int:
    fd = os.memfd_create("hostile", os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC | flags)
    os.ftruncate(fd, size)
    linux.seal(fd, seals)
    return fd


def _refused_import(wire: Wire, fd: int) -> str:
    context = WireContext(wire)
    info = wire.info(msg.MemImport(context=context.handle, kind="host"), [fd])
    os.close(fd)
    assert info.result == ZeResult.ERROR_INVALID_ARGUMENT
    assert wire.ask(msg.ContextMemory(context=context.handle), msg.ContextMemoryIs).allocated == 0
    return info.found


def test_memory_sealed_against_writing_is_not_imported(wire: Wire) -> None:
    assert "cannot be mapped for writing" in _refused_import(wire, _sealed(linux.SEALS_IMMUTABLE))


def test_memory_that_was_opened_for_reading_is_not_imported(wire: Wire) -> None:
    writable = _sealed(linux.SEALS_FIXED_SIZE)
    readable = os.open(f"/proc/self/fd/{writable}", os.O_RDONLY)
    os.close(writable)
    assert "cannot be mapped for writing" in _refused_import(wire, readable)


def test_memory_with_huge_pages_that_the_machine_lacks_is_not_imported(wire: Wire) -> None:
    try:
        fd = _sealed(linux.SEALS_FIXED_SIZE, _HUGETLB)
    except OSError as error:
        pytest.skip(f"this kernel has no huge pages: {error}")
    assert "cannot be mapped for writing" in _refused_import(wire, fd)


def test_a_region_of_one_row_may_have_any_pitch(wire: Wire) -> None:
    context = WireContext(wire)
    memory, buffer, queue = context.alloc(64), context.alloc(4096, "control"), context.queue()
    memory.write(b"abcdefgh")
    for pitch in (8, 2**63, _TOP):
        region = cmd.CopyRegion(MemoryAt(memory.handle, 32), pitch, MemoryAt(memory.handle, 0), pitch, 8, 1)
        assert queue.run(cmd.encode_buffer([cmd.encode_command(region)]), buffer) == 0
        assert memory.read(8, 32) == b"abcdefgh"


def test_a_tail_at_the_end_of_all_numbers_and_then_any_other(wire: Wire, daemon: Daemon) -> None:
    queue = WireContext(wire).queue()
    queue.set_tail(_TOP)
    wait_until(lambda: queue.lost)
    for tail in (0, 5, _TOP, 1):
        queue.set_tail(tail)
        wait_until(partial(_has_completed, queue, tail))
    assert daemon.engine().state == "ready"


def test_a_ring_that_was_overwritten_stays_lost_when_the_engine_dies(start_daemon: StartDaemon) -> None:
    daemon = start_daemon()
    with Wire(daemon.socket) as wire:
        wire.hello()
        context = WireContext(wire)
        queue, buffer = context.queue(), context.alloc(4096, "control")
        queue.set_tail(1000)
        wait_until(lambda: queue.lost)
        queue.tail = 1000
        queue.ring.write(bytes(8), records.RING_RESULT)
        queue.ring.write(bytes(4), records.RING_LOST)
        daemon.kill_engine()
        daemon.wait_restarted(1)
        assert queue.run(_NOTHING, buffer) == ZeResult.ERROR_DEVICE_LOST
        assert queue.lost


def test_looking_at_a_broken_ring_is_charged_to_its_session(wire: Wire, daemon: Daemon) -> None:
    """Otherwise its owner would be the one who has had the least time, and come before everybody else."""
    queue = WireContext(wire).queue()
    queue.set_tail(_TOP)
    wait_until(lambda: queue.lost)
    before = daemon.engine().busy_ns
    for tail in range(100, 300):
        queue.set_tail(tail)
        wait_until(partial(_has_completed, queue, tail))
    wait_until(lambda: daemon.engine().busy_ns > before + 100_000)


def test_a_tail_that_never_rests_takes_nobody_else_the_device(wire: Wire, daemon: Daemon) -> None:
    restless = WireContext(wire).queue()
    child = os.fork()
    if not child:
        try:
            linux.die_with_parent(os.getppid())
            number = 17
            while True:
                number = number * 5 % 2**64
                restless.ring.write(struct.pack("=Q", number), records.RING_TAIL)
                if number % 16 == 5:
                    os.eventfd_write(restless.context.doorbell, 1)
        finally:
            os._exit(1)
    try:
        with Wire(daemon.socket) as other:
            other.hello()
            context = WireContext(other)
            queue, buffer = context.queue(), context.alloc(4096, "control")
            watch = Stopwatch()
            for _ in range(50):
                assert queue.run(_NOTHING, buffer) == 0
            assert watch.seconds < 5.0
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)


def test_the_longest_question_to_the_compiler_is_refused_and_nothing_is_left_of_it(
    wire: Wire, daemon: Daemon
) -> None:
    short = len(msg.encode(msg.CompilerOptions(device=0, option="x" * 65_000)))
    question = msg.CompilerOptions(device=0, option="x" * (65_000 + MAX_BODY - short))
    assert len(msg.encode(question)) == MAX_BODY
    numbers = [wire.send(question) for _ in range(8)]
    for number in numbers:
        answer = wire.answer(number)
        assert isinstance(answer, msg.Failed)
        assert answer.info.result == ZeResult.ERROR_INVALID_SIZE
    wire.ask(msg.CompilerOptions(device=0), msg.CompilerOptionsAre)
    assert daemon.alive


def test_a_context_destroyed_while_a_graph_of_it_is_loaded_that_others_share(
    daemon: Daemon, wire: Wire, private_dir: Path
) -> None:
    xml = write_chain(private_dir, 16, 4).read_bytes()
    fd = linux.sealed_copy("xml", xml)

    def create(context: WireContext) -> msg.GraphCreate:
        return msg.GraphCreate(context=context.handle, name="chain", xml_length=len(xml))

    with Wire(daemon.socket) as other:
        other.hello()
        theirs = WireContext(other)
        graph = other.ask(create(theirs), msg.GraphCreated, [fd]).graph
        mine = WireContext(wire)
        own = wire.ask(create(mine), msg.GraphCreated, [fd]).graph
        loading = wire.send(msg.GraphInitialize(graph=own))
        destroying = wire.send(msg.ContextDestroy(context=mine.handle))
        assert {number for number, _ in (wire.receive(), wire.receive())} == {loading, destroying}
        other.ask(msg.GraphInitialize(graph=graph), msg.GraphInitialized)
    os.close(fd)


def test_two_hundred_long_names_do_not_spoil_the_status(daemon: Daemon) -> None:
    wires = [Wire(daemon.socket) for _ in range(200)]
    for wire in wires:
        wire.ask(msg.Hello(major=1, minor=0, client="\U0001f600" * 64), msg.Welcome)
    assert daemon.status().session_count == 200
    for wire in wires:
        wire.close()


def _unread_stream() -> tuple[int, socket.socket]:
    """A TCP socket whose closing waits for bytes that nobody reads, and its other end."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        sender = socket.create_connection(listener.getsockname())
        receiver, _ = listener.accept()
    sender.setblocking(False)
    try:
        while True:
            sender.send(bytes(1 << 20))
    except BlockingIOError:
        sender.setblocking(True)
    sender.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 60))
    return sender.detach(), receiver


@pytest.mark.parametrize("count", [1, 17])
@pytest.mark.parametrize("then", ["asks", "leaves"])
def test_a_descriptor_whose_closing_takes_a_minute_stops_nobody(
    daemon: Daemon, count: int, then: str
) -> None:
    descriptors = daemon.base_fd_count()
    fd, receiver = _unread_stream()
    watch = Stopwatch()
    with receiver:
        hostile = Wire(daemon.socket)
        hostile.hello()
        frame = b"SNPU" + struct.pack("<HHII", 1, count, 5, 0)
        hostile.socket.sendmsg(
            [frame], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("i", fd) * count)]
        )
        os.close(fd)
        if then == "asks":
            hostile.receive()
        hostile.close()
        assert daemon.engine().state == "ready"
        wait_until(lambda: daemon.base_fd_count() <= descriptors)
    assert watch.seconds < 20.0


def test_a_graph_that_ends_every_engine_which_loads_it_is_given_up(
    start_daemon: StartDaemon, private_dir: Path
) -> None:
    """It was loaded well once; then something about it changes, and each engine that loads it again dies."""
    daemon = start_daemon(failpoints="engine.load=kill:*:1")
    xml = write_chain(private_dir, 16, 4).read_bytes()
    fd = linux.sealed_copy("xml", xml)
    with Wire(daemon.socket) as wire, Wire(daemon.socket) as innocent:
        wire.hello()
        context = WireContext(wire)
        create = msg.GraphCreate(context=context.handle, name="chain", xml_length=len(xml))
        graph = wire.ask(create, msg.GraphCreated, [fd]).graph
        wire.ask(msg.GraphInitialize(graph=graph), msg.GraphInitialized)
        innocent.hello()
        theirs = WireContext(innocent)
        queue, buffer = theirs.queue(), theirs.alloc(4096, "control")

        daemon.kill_engine()
        daemon.wait_restarted(5)  # after the engine that was killed four more loaded it and died
        assert queue.run(_NOTHING, buffer) == 0
        assert daemon.engine().offences == 0

        info = wire.answer(wire.send(msg.GraphInitialize(graph=graph)))
        assert isinstance(info, msg.Failed)
        assert info.info.result == ZeResult.ERROR_DEVICE_LOST
        daemon.wait_restarted(7)
        assert queue.run(_NOTHING, buffer) == 0
        assert daemon.engine().offences == 1
    os.close(fd)


def test_a_graph_behind_one_that_ends_the_engine_is_loaded_all_the_same(
    start_daemon: StartDaemon, private_dir: Path
) -> None:
    """Only the graph that was being loaded is to blame, not those that wait for their turn."""
    daemon = start_daemon(failpoints="engine.load=kill:2")
    with Wire(daemon.socket) as wire, Wire(daemon.socket) as innocent:
        numbers = []
        fds = []
        for number, each in enumerate((wire, innocent)):
            each.hello()
            context = WireContext(each)
            xml = write_chain(private_dir, 16, 4 + number).read_bytes()
            fds.append(linux.sealed_copy("xml", xml))
            create = msg.GraphCreate(context=context.handle, name="chain", xml_length=len(xml))
            numbers.append(each.ask(create, msg.GraphCreated, fds[-1:]).graph)
        first, second = (
            each.send(msg.GraphInitialize(graph=graph))
            for each, graph in zip((wire, innocent), numbers, strict=True)
        )
        info = wire.answer(first)
        assert isinstance(info, msg.Failed)
        assert isinstance(innocent.answer(second), msg.GraphInitialized)
    for fd in fds:
        os.close(fd)
