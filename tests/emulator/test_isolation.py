"""One session can neither read nor disturb another's objects, whatever ids and descriptors it sends.

Handles are looked up in the tables of the session that names them; here one session tries those of another in
every request, in every field of a ring's slot and in every command. Attacks on the daemon through /proc by
the same user's processes are left to the operating system.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from softnpu.driver import Context, Driver, ZeResult
from softnpu.emulator.common import linux
from softnpu.emulator.interface import commands as cmd
from softnpu.emulator.interface import messages as msg
from softnpu.emulator.interface.commands import MemoryAt
from softnpu.emulator.interface.handles import HandleKind
from tests.support.daemon import Daemon
from tests.support.models import image, on_cpu
from tests.support.wire import Wire, WireContext, WireModel
from tests.support.work import Loaded, same

_SECRET = b"\xa7" * 4096


@pytest.fixture
def daemon(shared_daemon: Daemon) -> Daemon:
    return shared_daemon


class _Victim:
    """A session with many objects, so that some of its handles are unused in a younger session."""

    def __init__(self, context: Context, digits: Path, wire: Wire) -> None:
        self.loaded, self.expected = Loaded(context, digits), on_cpu(digits, image(3))
        self.wire = wire
        for _ in range(3):
            WireContext(wire)
        self.context = WireContext(wire)
        self.buffer = self.context.alloc(4096, "control")
        self.memory = [self.context.alloc(4096) for _ in range(40)]
        self.queues = [self.context.queue() for _ in range(6)]
        for memory in self.memory:
            memory.write(_SECRET)
        self.check()

    def check(self) -> None:
        """Assert that nothing of it has changed, and it still works."""
        for memory in self.memory:
            assert memory.read() == _SECRET, "somebody has written here"
        for queue in self.queues:
            assert not queue.lost
            assert queue.run(_buffer(cmd.Barrier()), self.buffer) == 0
        with self.loaded.context.create_command_queue() as fresh:
            assert same(self.loaded.infer(fresh, image(3)), self.expected)


def _handle(kind: HandleKind, slot: int, generation: int = 1) -> int:
    return int(kind) << 56 | generation << 32 | slot


def _buffer(*commands: cmd.Command) -> bytes:
    """Return a command buffer."""
    return cmd.encode_buffer([cmd.encode_command(command) for command in commands])


@pytest.fixture
def victim(daemon: Daemon, driver: Driver, digits: Path) -> Iterator[_Victim]:
    contexts = [driver.devices[0].create_context() for _ in range(4)]
    with Wire(daemon.socket) as wire:
        wire.hello()
        victim = _Victim(contexts[-1], digits, wire)
        yield victim
        victim.check()


@pytest.fixture
def thief(victim: _Victim, wire: Wire) -> Wire:
    """Return a younger session with only one context."""
    assert victim.queues
    return wire


def _requests(victim: _Victim) -> list[msg.Message]:
    """Return every request that names an object, with objects of the victim."""
    context = victim.context.handle
    memory, queue = victim.memory[-1].handle, victim.queues[-1].handle
    graph = _handle(HandleKind.GRAPH, 0)
    return [
        msg.ContextDestroy(context=context),
        msg.ContextMemory(context=context),
        msg.ContextRelease(context=context),
        msg.ContextIdle(context=context, after_ms=1),
        msg.MemAlloc(context=context, kind="host", size=64),
        msg.MemFree(memory=(memory,)),
        msg.MemFree(memory=tuple(entry.handle for entry in victim.memory[5:])),
        msg.QueueCreate(context=context, slots=2),
        msg.QueueWorkload(queue=queue, background=True),
        msg.QueueDestroy(queue=queue),
        msg.GraphBlob(graph=graph),
        msg.GraphExport(graph=graph),
        msg.GraphExpected(context=context, hint=bytes(32)),
        msg.GraphInitialize(graph=graph),
        msg.GraphDestroy(graph=graph),
        msg.GraphCreate(context=context, name="x", xml_length=1),
        msg.GraphImport(context=context, blob_length=1),
        msg.GraphQuery(context=context, name="x", xml_length=1),
        msg.MemImport(context=context, kind="host"),
        msg.MemImportPart(context=context, kind="host", offset=0, size=4096),
        msg.MetricStreamOpen(context=context, period=10**9),
        msg.MetricStreamClose(stream=_handle(HandleKind.STREAM, 0)),
        msg.KernelHelperOpen(context=context),
    ]


def test_no_request_reaches_the_objects_of_another_session(victim: _Victim, thief: Wire) -> None:
    WireContext(thief)
    tried = set()
    for request in _requests(victim):
        fds = [victim.wire.take_fd()] if "Import" in type(request).__name__ else []
        info = thief.info(request, fds)
        assert info.result == ZeResult.ERROR_INVALID_ARGUMENT, (request, info)
        assert "unknown handle" in info.found, (request, info)
        tried.add(type(request))
    named = {
        request
        for request in msg.Request.__args__
        if {"context", "memory", "queue", "graph", "stream"} & set(request.__struct_fields__)
    }
    assert named <= tried, "a request that names objects is not tried here"


def test_a_handle_that_both_sessions_have_names_ones_own(victim: _Victim, thief: Wire) -> None:
    context = WireContext(thief)
    context.alloc(4096)
    mine = context.alloc(4096)
    assert mine.handle == victim.memory[0].handle, "the second of each session"
    queue, buffer = context.queue(), context.alloc(4096, "control")
    commands = _buffer(cmd.Fill(MemoryAt(mine.handle, 0), 4096, b"\x11"))
    assert queue.run(commands, buffer) == 0
    assert mine.read() == b"\x11" * 4096
    thief.ask(msg.MemFree(memory=(mine.handle,)), msg.Ok)
    thief.ask(msg.QueueDestroy(queue=queue.handle), msg.Ok)
    victim.check()
    thief.ask(msg.ContextDestroy(context=context.handle), msg.Ok)


def _commands(theirs: int, mine: int, graph: int) -> list[cmd.Command]:
    """Return every command with another session's memory or graph in one of its places."""
    at, own = MemoryAt(theirs, 0), MemoryAt(mine, 0)
    return [
        cmd.Fill(at, 64, b"\x00"),
        cmd.Copy(at, own, 64),
        cmd.Copy(own, at, 64),
        cmd.CopyRegion(at, 64, own, 64, 16, 2),
        cmd.CopyRegion(own, 64, at, 64, 16, 2),
        cmd.Timestamp(at),
        cmd.EventSignal(at),
        cmd.EventReset(at),
        cmd.EventWait(at),
        cmd.MetricSnapshot(at),
        cmd.GraphInit(graph),
        cmd.GraphExecute(graph, 1, (own, own)),
    ]


def test_no_command_reaches_the_memory_or_a_graph_of_another_session(victim: _Victim, thief: Wire) -> None:
    context, sibling = WireContext(thief), WireContext(thief).alloc(4096)
    mine, buffer, queue = context.alloc(4096), context.alloc(4096, "control"), context.queue()
    sibling.write(_SECRET)
    tried = set()
    # contexts of one session are also isolated
    for theirs in (victim.memory[-1].handle, victim.memory[20].handle, sibling.handle):
        for command in _commands(theirs, mine.handle, _handle(HandleKind.GRAPH, 0)):
            result = queue.run(_buffer(command), buffer)
            expected = ZeResult.ERROR_INVALID_ARGUMENT
            if isinstance(command, cmd.GraphInit | cmd.GraphExecute):
                expected = ZeResult.ERROR_UNINITIALIZED
            assert result == expected, (command, hex(result))
            tried.add(type(command))
    assert mine.read() == bytes(4096), "nothing of the other has come here"
    assert sibling.read() == _SECRET
    assert tried == set(cmd.Command.__args__) - {cmd.Barrier}


def test_no_inference_reads_or_writes_the_memory_of_another_session(
    victim: _Victim, thief: Wire, chain: WireModel
) -> None:
    context = WireContext(thief)
    number = thief.send(chain.request(context), chain.fds)
    for guess in range(number + 2):
        victim.wire.ask(msg.Cancel(request=guess), msg.Ok)  # reaches no other session's compilation
    created = thief.answer(number)
    assert isinstance(created, msg.GraphCreated)
    graph = created.graph
    thief.ask(msg.GraphInitialize(graph=graph), msg.GraphInitialized)
    source, target = context.alloc(4096), context.alloc(4096)
    queue, buffer = context.queue(), context.alloc(4096, "control")
    own, out = MemoryAt(source.handle, 0), MemoryAt(target.handle, 0)
    theirs = MemoryAt(victim.memory[-1].handle, 0)
    assert queue.run(_buffer(cmd.GraphExecute(graph, 1, (own, out))), buffer) == 0
    before = target.read()

    for command in (
        cmd.GraphExecute(graph, 1, (theirs, out)),
        cmd.GraphExecute(graph, 1, (own, theirs)),
        cmd.GraphExecute(graph, 1, (own, out), profiling=theirs),
    ):
        assert queue.run(_buffer(command), buffer) == ZeResult.ERROR_INVALID_ARGUMENT
    assert target.read() == before
    assert queue.run(_buffer(cmd.GraphExecute(graph, 1, (own, out))), buffer) == 0


def test_no_slot_of_a_ring_reaches_another_session(victim: _Victim, thief: Wire) -> None:
    context = WireContext(thief)
    queue, buffer = context.queue(), context.alloc(4096, "control")
    commands = _buffer(cmd.Barrier())
    buffer.write(commands)
    victim.memory[-1].write(commands)  # a valid command buffer of the other
    theirs = victim.memory[-1].handle
    assert queue.wait(queue.submit(theirs, len(commands))) == ZeResult.ERROR_INVALID_ARGUMENT
    fence = queue.wait(queue.submit(buffer, len(commands), fence=theirs))
    assert fence in (ZeResult.ERROR_INVALID_ARGUMENT, ZeResult.ERROR_INVALID_SYNCHRONIZATION_OBJECT)
    assert victim.memory[-1].read(len(commands)) == commands
    victim.memory[-1].write(_SECRET)
    assert queue.wait(queue.submit(buffer, len(commands))) == 0


def _strange_descriptors(victim: _Victim) -> Iterator[tuple[str, int]]:
    """Yield descriptors that are no exportable memory; the caller closes them."""
    yield "doorbell", os.dup(victim.context.doorbell)
    yield "status page", os.dup(victim.wire._fds[0])
    yield "socket", os.dup(victim.wire.socket.fileno())
    yield "device", os.open("/dev/zero", os.O_RDWR)
    yield "directory", os.open("/proc/self", os.O_RDONLY)
    with subprocess.Popen(["sleep", "60"]) as ended:
        of_ended = os.open(f"/proc/{ended.pid}/fd", os.O_RDONLY)
        ended.kill()
    yield "directory of an ended process, which has no status", of_ended
    yield "blob", linux.sealed_copy("blob", bytes(8192))
    yield "unsealed", linux.memfd("unsealed", 8192)
    yield "segment for reading", os.open(f"/proc/self/fd/{victim.wire.take_fd()}", os.O_RDONLY)


def test_descriptors_that_are_no_memory_are_refused_and_harm_nobody(
    victim: _Victim, thief: Wire, daemon: Daemon
) -> None:
    context = WireContext(thief)
    pid = daemon.engine().engine_pid
    for name, fd in _strange_descriptors(victim):
        answer = thief.answer(thief.send(msg.MemImport(context=context.handle, kind="host"), [fd]))
        os.close(fd)
        assert isinstance(answer, msg.Failed), name
        assert answer.info.result in (
            ZeResult.ERROR_INVALID_ARGUMENT,
            ZeResult.ERROR_UNSUPPORTED_SIZE,
        ), (name, answer)
    assert daemon.engine().engine_pid == pid
    assert thief.ask(msg.ContextMemory(context=context.handle), msg.ContextMemoryAnswer).allocated == 0
