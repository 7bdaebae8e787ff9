"""Requests and objects that no driver would use: each is answered, and the daemon keeps serving."""

from __future__ import annotations

import fcntl
import mmap
import os
import signal
import socket
import struct
from pathlib import Path

import pytest

from softnpu.driver import ZeResult
from softnpu.emulator.common import linux
from softnpu.emulator.interface import commands as cmd
from softnpu.emulator.interface import messages as msg
from softnpu.emulator.interface import records
from softnpu.emulator.interface.commands import MemoryAt
from softnpu.emulator.interface.frames import MAX_BODY
from softnpu.emulator.supervisor.limits import ResourceLimits
from softnpu.emulator.supervisor.requests.session import _ROUTES
from tests.conftest import StartDaemon
from tests.support.daemon import Daemon, no_descriptors
from tests.support.models import write_chain
from tests.support.waiting import wait_until
from tests.support.wire import NOTHING, OpenWire, Wire, WireContext, WireModel, unread_stream

_LONG = "\0" * 60_000  # its repr is four times as long, more than a frame holds
_HUGETLB = 4
_TOP = 2**64 - 1


@pytest.fixture
def daemon(shared_daemon: Daemon, other_wire: Wire) -> Daemon:
    """Return the daemon; another session must still work at the end."""
    assert other_wire
    return shared_daemon


@pytest.fixture
def wire(daemon: Daemon, wire: Wire) -> Wire:
    assert daemon.alive
    return wire


# ---------------------------------------------------------------- fields


@pytest.mark.quick
def test_every_request_of_a_session_has_one_entry_in_the_table() -> None:
    connection = {
        "Hello", "Status", "Activity", "Stop", "Inject", "InjectStatus", "InjectClear",
        "TraceStart", "TraceRings", "TraceStop", "TraceJoin",
        "LeaseTake",
    }  # fmt: skip
    assert {request.__name__ for request in _ROUTES} == {
        request.__name__ for request in msg.Request.__args__
    } - connection


@pytest.mark.quick
def test_a_refusal_that_quotes_a_long_text_fits_its_frame(
    daemon: Daemon, wire: Wire, wire_context: WireContext
) -> None:
    context = wire_context.handle
    for request in (
        msg.QueueCreate(context=context, slots=4, priority=_LONG),
        msg.MemAlloc(context=context, kind=_LONG, size=1),
        msg.Status(must=(_LONG,)),
    ):
        assert len(wire.info(request).found) < 2000
    tag = b"x" * (MAX_BODY - 6)
    answer = wire.answer(wire.send_body(b"\x81\xa1t\xda" + len(tag).to_bytes(2, "big") + tag))
    assert isinstance(answer, msg.Failed)
    with Wire(daemon.socket) as another:
        assert another.info(msg.Hello(major=1, minor=0, client="x", role=_LONG)).result
        assert another.closed()


def test_names_of_clients_spoil_neither_status_nor_log(daemon: Daemon) -> None:
    before = daemon.status().session_count
    names = ["é" * 30_000, "x\n2026 ERROR forged: line", *["\U0001f600" * 64] * 200]
    wires = [Wire(daemon.socket) for _ in names]
    for wire, name in zip(wires, names, strict=True):
        wire.ask(msg.Hello(major=1, minor=0, client=name), msg.Welcome)
    assert daemon.status().session_count == before + len(names)
    for wire in wires:
        wire.close()
    assert "\n2026 ERROR forged" not in daemon.log


@pytest.mark.quick
def test_handles_and_sizes_that_cannot_be_are_refused(wire: Wire, wire_context: WireContext) -> None:
    invalid, null = ZeResult.ERROR_INVALID_ARGUMENT, ZeResult.ERROR_INVALID_NULL_HANDLE
    context = wire_context.handle
    requests: list[tuple[msg.Message, ZeResult]] = [
        *((msg.ContextCreate(device=device), invalid) for device in (1, -1, _TOP)),
        (msg.ContextDestroy(context=0), null),
        (msg.ContextDestroy(context=_TOP), invalid),
        (msg.ContextMemory(context=-1), invalid),
        (msg.ContextIdle(context=context, after_ms=-1), invalid),
        (msg.ContextRelease(context=_TOP), invalid),
        (msg.MemFree(memory=(2**63,)), invalid),
        (msg.QueueDestroy(queue=0x0300000100000000), invalid),
        (msg.GraphExpected(context=context, hint=b"short"), ZeResult.ERROR_INVALID_SIZE),
        (msg.GraphExpected(context=_TOP, hint=bytes(32)), invalid),
        (msg.GraphInitialize(graph=0x0400000100000000), invalid),
        (msg.GraphDestroy(graph=0), null),
        (msg.MemAlloc(context=context, kind="magic", size=64), ZeResult.ERROR_INVALID_ENUMERATION),
    ]
    for slots in (-1, 0, 1, 3, 100, 8192, 2**63, _TOP):
        requests.append((msg.QueueCreate(context=context, slots=slots), ZeResult.ERROR_INVALID_SIZE))
    for request, result in requests:
        assert wire.info(request).result == result, request
    for number in (0, 1, 99, 2**32, -1):
        wire.ask(msg.Cancel(request=number), msg.Ok)


@pytest.mark.quick
def test_parts_of_files_that_are_none_or_may_be_cut_are_refused(
    wire: Wire, wire_context: WireContext
) -> None:
    page = mmap.PAGESIZE
    sealed, unsealed = linux.memfd("sealed", 4 * page), linux.memfd("unsealed", 4 * page)
    linux.seal(sealed, linux.SEALS_FIXED_SIZE)
    invalid, no_size = ZeResult.ERROR_INVALID_ARGUMENT, ZeResult.ERROR_UNSUPPORTED_SIZE
    for fd, offset, size, result in (
        (unsealed, 0, page, invalid),
        (sealed, 1, page, invalid),
        (sealed, 0, 100, invalid),
        (sealed, -page, page, invalid),
        (sealed, 4 * page, page, invalid),
        (sealed, page, 4 * page, invalid),
        (sealed, 2**63 - page, page, invalid),
        (sealed, page, 2**63 - page, invalid),
        (sealed, 0, 0, no_size),
        (sealed, 0, -page, no_size),
    ):
        request = msg.MemImportPart(context=wire_context.handle, kind="host", offset=offset, size=size)
        assert wire.info(request, [fd]).result == result, (offset, size)
    os.close(sealed)
    os.close(unsealed)


def test_foreign_memory_that_no_engine_could_guard_is_refused(
    wire: Wire, wire_context: WireContext, tmp_path: Path
) -> None:
    size = 10_000
    memory = linux.memfd("foreign", size)
    for_reading = os.open(f"/proc/self/fd/{memory}", os.O_RDONLY)
    unwritable = linux.memfd("unwritable", size)
    linux.seal(unwritable, fcntl.F_SEAL_WRITE)
    read_end, write_end = os.pipe()
    with open(tmp_path / "file", "w+b") as on_disk:
        on_disk.truncate(size)
        for fd, offset, length in (
            (on_disk.fileno(), 0, 4096),
            (for_reading, 0, 4096),
            (read_end, 0, 4096),
            (unwritable, 0, 4096),
            (memory, -1, 4096),
            (memory, size, 1),
            (memory, 0, size + 1),
            (memory, 2**63 - 1, 1),
            (memory, 1, 2**63 - 1),
        ):
            request = msg.MemImportPart(
                context=wire_context.handle, kind="host", offset=offset, size=length, foreign=True
            )
            assert wire.info(request, [fd]).result == ZeResult.ERROR_INVALID_ARGUMENT, (fd, offset, length)
    for fd in (memory, for_reading, unwritable, read_end, write_end):
        os.close(fd)


def test_the_longest_question_to_the_compiler_is_refused_and_nothing_is_left_of_it(wire: Wire) -> None:
    short = len(msg.encode(msg.CompilerOptions(device=0, option="x" * 65_000)))
    question = msg.CompilerOptions(device=0, option="x" * (65_000 + MAX_BODY - short))
    assert len(msg.encode(question)) == MAX_BODY
    numbers = [wire.send(question) for _ in range(8)]
    for number in numbers:
        answer = wire.answer(number)
        assert isinstance(answer, msg.Failed)
        assert answer.info.result == ZeResult.ERROR_INVALID_SIZE
    wire.ask(msg.CompilerOptions(device=0), msg.CompilerOptionsAnswer)


# ---------------------------------------------------------------- objects destroyed while in use


def test_a_queue_and_what_it_needs_may_end_together(wire: Wire, daemon: Daemon) -> None:
    for _ in range(20):
        context = WireContext(wire)
        wire.send(msg.QueueDestroy(queue=context.queue().handle))
        wire.answer(wire.send(msg.ContextDestroy(context=context.handle)))
        with Wire(daemon.socket) as leaving:
            leaving.hello()
            leaving.send(msg.QueueDestroy(queue=WireContext(leaving).queue().handle))
    context = WireContext(wire)
    queue = context.queue()
    destroyed = wire.send(msg.QueueDestroy(queue=queue.handle))
    wire.send(msg.MemFree(memory=(queue.ring.handle,)))
    wire.answer(destroyed)
    assert context.request_memory().allocated == 0
    info = wire.info(msg.MemFree(memory=(context.queue().ring.handle,)))
    assert info.result == ZeResult.ERROR_HANDLE_OBJECT_IN_USE


@pytest.mark.parametrize("destroyed", ["graph", "context", "context of a shared image"])
def test_what_is_destroyed_while_its_graph_is_loaded_answers_both(
    wire: Wire,
    other_wire: Wire,
    daemon: Daemon,
    wire_context: WireContext,
    chain: WireModel,
    destroyed: str,
) -> None:
    shared = destroyed == "context of a shared image"
    theirs = chain.create(WireContext(other_wire)) if shared else 0
    graph = chain.create(wire_context)
    loading = wire.send(msg.GraphInitialize(graph=graph))
    request: msg.Message = msg.ContextDestroy(context=wire_context.handle)
    destroying = wire.send(msg.GraphDestroy(graph=graph) if destroyed == "graph" else request)
    answers = dict([wire.receive(), wire.receive()])
    assert set(answers) == {loading, destroying}
    assert isinstance(answers[destroying], msg.Ok)
    if shared:
        other_wire.ask(msg.GraphInitialize(graph=theirs), msg.GraphInitialized)
        other_wire.ask(msg.GraphDestroy(graph=theirs), msg.Ok)
    assert daemon.engine().images == 0


def test_a_graph_with_a_wrong_number_of_descriptors_is_refused(
    wire: Wire, daemon: Daemon, wire_context: WireContext, chain: WireModel
) -> None:
    before = daemon.base_fd_count()
    for count in (0, 2, 3, 16):
        info = wire.info(chain.request(wire_context), chain.fds * count)
        assert info.result == ZeResult.ERROR_INVALID_ARGUMENT
        assert f"{count} descriptors" in info.found
    wait_until(lambda: daemon.base_fd_count() <= before, what="descriptors closed")


def test_a_compilation_goes_on_under_one_number_only(
    wire: Wire, wire_context: WireContext, private_dir: Path
) -> None:
    with WireModel(write_chain(private_dir, 4, 3000)) as model:  # it takes longer than the second request
        body = msg.encode(model.request(wire_context))
        for _ in range(2):
            wire.channel.send(77, body, model.fds)
    answers: list[msg.Answer] = []
    while len(answers) < 2:
        number, answer = wire.receive()
        assert number == 77
        if not isinstance(answer, msg.Progress):
            answers.append(answer)
    assert {type(answer) for answer in answers} == {msg.Failed, msg.GraphCreated}


# ---------------------------------------------------------------- memory and rings


def _unwritable(kind: str) -> int:
    """Return fixed-size memory that cannot be mapped for writing."""
    flags = os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC | (_HUGETLB if kind == "huge pages" else 0)
    fd = os.memfd_create("hostile", flags)
    os.ftruncate(fd, 1 << 21)
    linux.seal(fd, linux.SEALS_IMMUTABLE if kind == "sealed" else linux.SEALS_FIXED_SIZE)
    if kind != "for reading":
        return fd
    readable = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY)
    os.close(fd)
    return readable


@pytest.mark.parametrize("kind", ["sealed", "for reading", "huge pages"])
def test_memory_that_cannot_be_mapped_for_writing_is_not_imported(
    wire: Wire, wire_context: WireContext, kind: str
) -> None:
    try:
        fd = _unwritable(kind)
    except OSError as error:
        pytest.skip(f"this kernel has no huge pages: {error}")
    info = wire.info(msg.MemImport(context=wire_context.handle, kind="host"), [fd])
    os.close(fd)
    assert info.result == ZeResult.ERROR_INVALID_ARGUMENT
    assert "cannot be mapped for writing" in info.found
    assert wire_context.request_memory().allocated == 0


def test_a_region_of_one_row_may_have_any_pitch(wire_context: WireContext) -> None:
    memory, buffer, queue = wire_context.alloc(64), wire_context.alloc(4096, "control"), wire_context.queue()
    memory.write(b"abcdefgh")
    for pitch in (8, 2**63, _TOP):
        region = cmd.CopyRegion(MemoryAt(memory.handle, 32), pitch, MemoryAt(memory.handle, 0), pitch, 8, 1)
        assert queue.run(cmd.encode_buffer([cmd.encode_command(region)]), buffer) == 0
        assert memory.read(8, 32) == b"abcdefgh"


def test_looking_at_a_broken_ring_is_charged_to_its_session(
    wire_context: WireContext, daemon: Daemon
) -> None:
    """Otherwise its session would have the least time, and precede all others."""
    queue = wire_context.queue()
    queue.set_tail(_TOP)
    wait_until(lambda: queue.lost)
    before = daemon.engine().busy_ns
    for tail in (0, 5, _TOP, 1, *range(100, 200)):
        queue.set_tail(tail)
        wait_until(lambda tail=tail: queue.completed == tail)  # type: ignore[misc]
    wait_until(lambda: daemon.engine().busy_ns > before + 100_000)


def test_a_ring_that_was_overwritten_stays_lost_when_the_engine_dies(
    start_daemon: StartDaemon, open_wire: OpenWire
) -> None:
    daemon = start_daemon(tdr_ms=200)
    context = WireContext(open_wire(daemon))
    buffer, overwritten, aborted = context.alloc(4096, "control"), context.queue(), context.queue()
    overwritten.set_tail(1000)
    wait_until(lambda: overwritten.lost)
    overwritten.tail = 1000
    never = cmd.encode_buffer([cmd.encode_command(cmd.EventWait(MemoryAt(buffer.handle, 2048)))])
    assert aborted.run(never, buffer) == ZeResult.ERROR_DEVICE_LOST
    for queue in (overwritten, aborted):
        queue.ring.write(bytes(8), records.RING_RESULT)
        queue.ring.write(bytes(4), records.RING_LOST)
    daemon.kill_engine()
    daemon.wait_restarted(1)
    for queue in (overwritten, aborted):
        assert queue.run(NOTHING, buffer) == ZeResult.ERROR_DEVICE_LOST
        assert queue.lost


def test_a_tail_that_never_rests_takes_nobody_else_the_device(
    wire_context: WireContext, other_wire: Wire
) -> None:
    restless = wire_context.queue()
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
        context = WireContext(other_wire)
        queue, buffer = context.queue(), context.alloc(4096, "control")
        for _ in range(50):
            assert queue.run(NOTHING, buffer) == 0
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)


# ---------------------------------------------------------------- descriptors


@pytest.mark.parametrize(("count", "waits"), [(1, True), (17, True), (17, False)])
def test_a_descriptor_whose_closing_takes_a_minute_stops_nobody(
    daemon: Daemon, count: int, waits: bool
) -> None:
    descriptors = daemon.base_fd_count()
    fd, receiver = unread_stream()
    with receiver:
        hostile = Wire(daemon.socket)
        hostile.hello()
        frame = b"SNPU" + struct.pack("<HHII", 1, count, 5, 0)
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("i", fd) * count)]
        hostile.socket.sendmsg([frame], rights)
        os.close(fd)
        if waits:
            hostile.receive()
        hostile.close()
        assert daemon.engine().state == "ready"
        wait_until(lambda: daemon.base_fd_count() <= descriptors)


@pytest.mark.parametrize("room", [0, 1])
def test_what_has_no_room_is_not_closed_by_the_supervisor(daemon: Daemon, room: int) -> None:
    """The kernel closes what has no room in a process, and that process waits a minute for it."""
    descriptors = daemon.base_fd_count()
    fd, receiver = unread_stream()
    with receiver, Wire(daemon.socket) as innocent, Wire(daemon.socket) as hostile:
        innocent.hello()
        hostile.hello()
        with no_descriptors(daemon, daemon.fd_count + room):
            hostile.send(msg.Status(), [fd] * 2)
            os.close(fd)
            innocent.socket.settimeout(20)
            for _ in range(20):
                innocent.ask(msg.Status(), msg.StatusAnswer)
        _, answer = hostile.receive()
        assert isinstance(answer, msg.Failed)
        assert answer.info.result == ZeResult.ERROR_OUT_OF_HOST_MEMORY
    wait_until(lambda: daemon.base_fd_count() <= descriptors)


def test_descriptors_that_have_just_room_are_taken(daemon: Daemon) -> None:
    with Wire(daemon.socket) as wire:
        wire.hello()
        fd = linux.fixed_memfd("unwanted", 4096)
        with no_descriptors(daemon, daemon.fd_count + 2):
            answer = wire.answer(wire.send(msg.Status(), [fd] * 2))
        os.close(fd)
        assert isinstance(answer, msg.StatusAnswer), answer


def test_descriptors_that_an_export_does_not_want_are_closed(
    daemon: Daemon, wire: Wire, wire_context: WireContext, chain: WireModel
) -> None:
    graph = chain.create(wire_context)
    descriptors = daemon.base_fd_count()
    for _ in range(20):
        info = wire.info(msg.GraphExport(graph=graph), [wire.take_fd()])
        assert "1 descriptors" in info.found
    wait_until(lambda: daemon.base_fd_count() <= descriptors, what="all descriptors are closed")


def test_unread_descriptors_of_a_refused_connection_stop_nobody(
    start_daemon: StartDaemon, open_wire: OpenWire
) -> None:
    daemon = start_daemon(limits=ResourceLimits(user_connections=1))
    innocent = open_wire(daemon)
    fd, receiver = unread_stream()
    frame = b"SNPU" + struct.pack("<HHII", 1, 1, 5, 0)
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack("i", fd))]
    with receiver, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as refused:
        daemon.process.send_signal(signal.SIGSTOP)  # both frames are there when it looks
        refused.connect(str(daemon.socket))
        for _ in range(2):
            refused.sendmsg([frame], rights)
        os.close(fd)
        daemon.process.send_signal(signal.SIGCONT)
        innocent.socket.settimeout(20.0)
        assert refused.recv(70000)
        WireContext(innocent)


# ---------------------------------------------------------------- graphs that kill engines


def test_a_graph_that_ends_every_engine_which_loads_it_is_given_up(
    start_daemon: StartDaemon, open_wire: OpenWire, chain: WireModel
) -> None:
    """It loads well once; then something about it changes, and each engine that reloads it dies."""
    daemon = start_daemon(failpoints="engine.load=kill:*:1")
    wire, context = open_wire(daemon), WireContext(open_wire(daemon))
    load = msg.GraphInitialize(graph=chain.create(WireContext(wire)))
    wire.ask(load, msg.GraphInitialized)

    daemon.kill_engine()
    daemon.wait_restarted(5)  # after the killed engine four more loaded it and died
    context.check_works()
    assert daemon.engine().offences == 0

    assert wire.info(load).result == ZeResult.ERROR_DEVICE_LOST
    daemon.wait_restarted(7)
    context.check_works()
    assert daemon.engine().offences == 1


def test_a_graph_behind_one_that_ends_the_engine_is_loaded_all_the_same(
    start_daemon: StartDaemon, open_wire: OpenWire, chain: WireModel, private_dir: Path
) -> None:
    """Only the graph being loaded is to blame, not those waiting their turn."""
    daemon = start_daemon(failpoints="engine.load=kill:2")
    wire, innocent = open_wire(daemon), open_wire(daemon)
    with WireModel(write_chain(private_dir, 16, 5)) as other:
        graphs = chain.create(WireContext(wire)), other.create(WireContext(innocent))
        first = wire.send(msg.GraphInitialize(graph=graphs[0]))
        second = innocent.send(msg.GraphInitialize(graph=graphs[1]))
        assert isinstance(wire.answer(first), msg.Failed)
        assert isinstance(innocent.answer(second), msg.GraphInitialized)
