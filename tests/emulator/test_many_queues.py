"""A session with many queues: whatever the engine does for them in parts is done for each of them."""

from __future__ import annotations

import os
import struct
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from softnpu.emulator.common import linux
from softnpu.emulator.interface import commands as cmd
from softnpu.emulator.interface import messages as msg
from softnpu.emulator.interface import records
from softnpu.emulator.interface.commands import MemoryAt
from softnpu.emulator.interface.records import PAGE
from tests.conftest import StartDaemon
from tests.support.daemon import Daemon
from tests.support.waiting import wait_until
from tests.support.wire import NOTHING, OpenWire, WireContext, WireMemory, WireQueue

_MANY = 150
"""More than are looked at in one go, of whatever kind."""


@pytest.fixture
def daemon(start_daemon: StartDaemon) -> Daemon:
    """A daemon that takes no wait for a hang, however busy the machine is."""
    return start_daemon(tdr_ms=60_000)


def _commands(context: WireContext, *each: cmd.Command) -> tuple[WireMemory, int]:
    """A buffer with these commands."""
    data = cmd.encode_buffer([cmd.encode_command(command) for command in each])
    buffer = context.alloc(4096, "control")
    buffer.write(data)
    return buffer, len(data)


def _hand_over(queue: WireQueue, buffer: WireMemory, size: int) -> None:
    """Submit, and do not ring the doorbell."""
    queue.tail += 1
    slot = records.SLOT.pack(queue.tail, buffer.handle, 0, size, 0, 0, 0, queue.tail, 0, 0)
    queue.ring.write(slot, records.RING_HEADER + (queue.tail - 1) % queue.slots * records.SLOT_SIZE)
    queue.ring.write(struct.pack("=Q", queue.tail), records.RING_TAIL)


def _ring(context: WireContext) -> None:
    linux.memory_fence()
    os.eventfd_write(context.doorbell, 1)


class _Waiting:
    """A context whose queues all wait for one event."""

    def __init__(self, daemon: Daemon, open_wire: OpenWire) -> None:
        self.context = WireContext(open_wire(daemon))
        self.events = self.context.alloc(4096, "control")
        self.event = self.events.event()
        self.event.initialize()
        self.queues = [self.context.queue() for _ in range(_MANY)]
        buffer, size = _commands(self.context, cmd.EventWait(MemoryAt(self.events.handle, 0)))
        for queue in self.queues:
            _hand_over(queue, buffer, size)
        _ring(self.context)
        wait_until(lambda: daemon.engine().queued == _MANY, what="queues that wait")


@pytest.mark.parametrize("who", ["the host", "a command"])
def test_a_signal_lets_each_of_many_queues_go_on(daemon: Daemon, open_wire: OpenWire, who: str) -> None:
    waiting = _Waiting(daemon, open_wire)
    context = waiting.context
    if who == "the host":
        waiting.event.host_signal()
        _ring(context)
    else:
        buffer, size = _commands(context, cmd.EventSignal(MemoryAt(waiting.events.handle, 0)))
        signals = context.queue()
        assert signals.wait(signals.submit(buffer, size)) == 0
    assert [queue.wait(1) for queue in waiting.queues] == [0] * _MANY


def test_one_doorbell_is_enough_for_many_queues_that_sleep(daemon: Daemon, open_wire: OpenWire) -> None:
    context = WireContext(open_wire(daemon))
    buffer, size = _commands(context, cmd.Barrier())
    queues = [context.queue() for _ in range(_MANY)]
    for count in (1, 2):
        for queue in queues:
            _hand_over(queue, buffer, size)
        _ring(context)
        assert [queue.wait(count) for queue in queues] == [0] * _MANY


def test_a_context_without_queues_rings_where_nobody_listens(daemon: Daemon, open_wire: OpenWire) -> None:
    engine = daemon.engine().engine_pid

    def heard() -> int:
        listening = 0
        for path in Path(f"/proc/{engine}/fdinfo").iterdir():
            with suppress(FileNotFoundError):
                listening += path.read_text().count("tfd:")
        return listening

    context = WireContext(open_wire(daemon))
    before = heard()
    queue = context.queue()
    wait_until(lambda: heard() == before + 1, what="its doorbell heard")
    second = context.queue()
    context.wire.ask(msg.QueueDestroy(queue=queue.handle), msg.Ok)
    assert heard() == before + 1
    context.wire.ask(msg.QueueDestroy(queue=second.handle), msg.Ok)
    assert heard() == before
    third = context.queue()
    buffer, size = _commands(context, cmd.Barrier())
    _hand_over(third, buffer, size)
    _ring(context)
    assert third.wait(1) == 0


def test_a_neighbour_is_served_and_what_is_closed_given_back(daemon: Daemon, open_wire: OpenWire) -> None:
    waiting, neighbour = _Waiting(daemon, open_wire), WireContext(open_wire(daemon))
    used = daemon.memory_used()
    neighbour.check_works()
    waiting.context.wire.ask(msg.ContextDestroy(context=waiting.context.handle), msg.Ok)
    wait_until(lambda: daemon.memory_used() < used, what="memory given back")
    neighbour.check_works()
    wait_until(lambda: daemon.engine().queued == 0, what="no queue that waits")
    assert daemon.engine().restarts == 0


def test_many_queues_go_on_after_a_reset(daemon: Daemon, open_wire: OpenWire) -> None:
    waiting = _Waiting(daemon, open_wire)
    daemon.kill_engine()
    waiting.event.host_signal()
    _ring(waiting.context)
    assert [queue.wait(1) for queue in waiting.queues] == [0] * _MANY


def test_memory_that_is_freed_is_refused_at_once_in_each_queue_that_used_it(
    daemon: Daemon, open_wire: OpenWire
) -> None:
    context = WireContext(open_wire(daemon))
    queues = [context.queue() for _ in range(20)]
    buffer, other = context.alloc(4096, "control"), context.alloc(4096, "control")
    for each in (buffer, other):
        each.write(NOTHING)
    for queue in queues:
        assert [queue.wait(queue.submit(each, len(NOTHING))) for each in (buffer, other, buffer)] == [0] * 3
    context.wire.ask(msg.MemFree(memory=(buffer.handle,)), msg.Ok)
    for queue in queues:
        assert queue.wait(queue.submit(other, len(NOTHING))) == 0
        assert queue.wait(queue.submit(buffer, len(NOTHING))) != 0


def test_a_queue_whose_ring_cannot_be_mapped_is_lost_alone(daemon: Daemon, open_wire: OpenWire) -> None:
    context, neighbour = WireContext(open_wire(daemon)), WireContext(open_wire(daemon))
    queue, buffer = neighbour.queue(), neighbour.alloc(4096, "control")
    assert queue.run(NOTHING, buffer) == 0
    engine = psutil.Process(daemon.engine().engine_pid)
    before = engine.rlimit(psutil.RLIMIT_AS)
    engine.rlimit(psutil.RLIMIT_AS, (engine.memory_info().vms + PAGE, before[1]))
    refused = context.queue(records.MAX_SLOTS)
    wait_until(lambda: refused.lost, what="a queue that is lost")
    engine.rlimit(psutil.RLIMIT_AS, before)
    assert queue.run(NOTHING, buffer) == 0
    context.check_works()
    context.wire.ask(msg.QueueDestroy(queue=refused.handle), msg.Ok)
    context.check_works()
    assert daemon.engine().restarts == 0
