"""Rings, slots and command buffers as a hostile client would write them: a typed error, a live engine."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import pytest

from softnpu.driver import ZeResult
from softnpu.emulator.interface import commands as cmd
from softnpu.emulator.interface import messages as msg
from softnpu.emulator.interface import records
from softnpu.emulator.interface.commands import MemoryAt
from tests.support.daemon import Daemon
from tests.support.waiting import wait_until
from tests.support.wire import Wire, WireContext, WireMemory, WireQueue

_BAD = ZeResult.ERROR_INVALID_ARGUMENT
_TOP = 2**64 - 1


def _buffer(*commands: cmd.Command) -> bytes:
    return cmd.encode_buffer([cmd.encode_command(command) for command in commands])


_NOTHING = _buffer(cmd.Barrier())


class _Attack:
    """A session by hand with a queue, a command buffer and some memory."""

    def __init__(self, daemon: Daemon) -> None:
        self.wire = Wire(daemon.socket)
        self.wire.hello()
        self.context = WireContext(self.wire)
        self.queue: WireQueue = self.context.queue()
        self.buffer: WireMemory = self.context.alloc(1 << 16, "control")
        self.memory: WireMemory = self.context.alloc(4096)

    def run(self, *commands: cmd.Command) -> int:
        return self.queue.run(_buffer(*commands), self.buffer)

    def fill(self, value: int) -> None:
        """Proof that the queue still works."""
        place = MemoryAt(self.memory.handle, 0)
        assert self.run(cmd.Fill(place, 4096, bytes([value]))) == 0
        assert self.memory.read() == bytes([value]) * 4096


@pytest.fixture
def attack(daemon: Daemon) -> Iterator[_Attack]:
    attack = _Attack(daemon)
    attack.fill(1)
    with _Attack(daemon).wire as other:
        yield attack
        # another session is as well off as before
        context = WireContext(other)
        assert context.queue().run(_NOTHING, context.alloc(4096, "control")) == 0
    attack.wire.close()


@pytest.mark.parametrize(
    "handle",
    [0, 1, _TOP, 0x0200000100000063, 0x0100000100000000, 0x0300000100000000, 0xFF00000100000000],
    ids=hex,
)
def test_a_buffer_that_is_no_memory_of_the_context(attack: _Attack, handle: int) -> None:
    assert attack.queue.wait(attack.queue.submit(handle, 40)) == _BAD
    attack.fill(2)


@pytest.mark.parametrize(
    ("offset", "size"),
    [
        (0, 0),
        (0, 31),
        (0, 2**32 - 1),
        (0, (1 << 16) + 1),
        ((1 << 16) - 8, 40),
        (1 << 16, 0),
        (_TOP, 40),
        (_TOP - 39, 40),
        (2**63, 40),
        (0, 17 << 20),
    ],
)
def test_a_buffer_range_outside_its_memory(attack: _Attack, offset: int, size: int) -> None:
    attack.buffer.write(_NOTHING)
    assert attack.queue.wait(attack.queue.submit(attack.buffer, size, offset)) == _BAD
    attack.fill(2)


@pytest.mark.parametrize(
    ("handle", "offset", "result"),
    [
        (None, 4096 - 63, ZeResult.ERROR_INVALID_SYNCHRONIZATION_OBJECT),
        (None, 4, ZeResult.ERROR_INVALID_SYNCHRONIZATION_OBJECT),
        (None, _TOP, ZeResult.ERROR_INVALID_SYNCHRONIZATION_OBJECT),
        (None, _TOP - 63, ZeResult.ERROR_INVALID_SYNCHRONIZATION_OBJECT),
        (1, 0, _BAD),
        (_TOP, 0, _BAD),
        (0x0200000100000099, 0, _BAD),
    ],
)
def test_a_fence_that_is_none(attack: _Attack, handle: int | None, offset: int, result: ZeResult) -> None:
    attack.buffer.write(_NOTHING)
    fence = attack.memory if handle is None else handle
    number = attack.queue.submit(attack.buffer, len(_NOTHING), fence=fence, fence_offset=offset)
    assert attack.queue.wait(number) == result
    attack.fill(2)


_HERE = MemoryAt(1, 0)  # stands for the good memory


@pytest.mark.parametrize(
    ("command", "result"),
    [
        (cmd.Fill(_HERE, 4097, b"x"), _BAD),
        (cmd.Fill(MemoryAt(1, 1), 4096, b"x"), _BAD),
        (cmd.Fill(MemoryAt(1, _TOP), 2, b"x"), _BAD),
        (cmd.Fill(_HERE, _TOP, b"x"), _BAD),
        (cmd.Fill(MemoryAt(1, 2**63), 2**63, b"x"), _BAD),
        (cmd.Copy(_HERE, MemoryAt(1, 4000), 97), _BAD),
        (cmd.Copy(MemoryAt(1, 4000), _HERE, 97), _BAD),
        (cmd.Copy(MemoryAt(0, 0), _HERE, 1), _BAD),
        (cmd.Copy(_HERE, MemoryAt(0x0200000100000077, 0), 1), _BAD),
        (cmd.Timestamp(MemoryAt(1, 4089)), _BAD),
        (cmd.Timestamp(MemoryAt(1, 4)), ZeResult.ERROR_UNSUPPORTED_ALIGNMENT),
        (cmd.EventSignal(MemoryAt(1, 4040)), _BAD),
        (cmd.EventWait(MemoryAt(1, 1)), ZeResult.ERROR_UNSUPPORTED_ALIGNMENT),
        (cmd.EventReset(MemoryAt(_TOP, 0)), _BAD),
        (cmd.GraphInit(0), ZeResult.ERROR_UNINITIALIZED),
        (cmd.GraphExecute(0x0400000100000000, 1, ()), ZeResult.ERROR_UNINITIALIZED),
    ],
    ids=lambda value: repr(value)[:70],
)
def test_a_command_that_reaches_outside(attack: _Attack, command: cmd.Command, result: ZeResult) -> None:
    def place(value: Any) -> Any:
        if isinstance(value, MemoryAt) and value.memory == 1:
            return MemoryAt(attack.memory.handle, value.offset)
        return value

    good = cmd.Fill(MemoryAt(attack.memory.handle, 0), 64, b"\x63")
    kind: Any = type(command)
    bad = kind(*map(place, command))
    assert attack.run(good, bad) == result
    assert attack.memory.read(64) == b"\x01" * 64, "no command of a refused buffer runs"
    attack.fill(2)


def _patched(data: bytes, at: int, shape: str, value: int) -> bytes:
    return data[:at] + struct.pack(shape, value) + data[at + struct.calcsize(shape) :]


@pytest.mark.parametrize(
    "data",
    [
        _patched(_NOTHING, 0, "=I", 0),
        _patched(_NOTHING, 4, "=H", 9),
        _patched(_NOTHING, 6, "=H", 1),
        _patched(_NOTHING, 8, "=I", 48),
        _patched(_NOTHING, 12, "=I", 2),
        _patched(_NOTHING, 12, "=I", 2**32 - 1),
        _patched(_NOTHING, 12, "=I", 0),
        _patched(_NOTHING, 32, "=H", 0x7777),
        _patched(_NOTHING, 36, "=I", 0),
        _patched(_NOTHING, 36, "=I", 7),
        _patched(_NOTHING, 36, "=I", 2**32 - 8),
        bytes(40),
        b"\xff" * 40,
    ],
)
def test_a_garbage_buffer(attack: _Attack, data: bytes) -> None:
    assert attack.queue.run(data, attack.buffer) == _BAD
    attack.fill(2)


@pytest.mark.parametrize("tail", [17, 18, 1000, 2**32, 2**63, _TOP, 0])
def test_a_tail_that_cannot_be_loses_the_queue_only(attack: _Attack, tail: int) -> None:
    attack.queue.set_tail(tail)
    wait_until(lambda: attack.queue.lost)
    attack.queue = attack.context.queue()
    attack.fill(2)


@pytest.mark.parametrize("sequence", [0, 1, 3, 2**63, _TOP])
def test_a_slot_out_of_order_loses_the_queue_only(attack: _Attack, sequence: int) -> None:
    attack.queue.submit(attack.buffer, len(_NOTHING), sequence=sequence)
    wait_until(lambda: attack.queue.lost)
    attack.queue = attack.context.queue()
    attack.fill(2)


def test_commands_that_write_into_their_own_ring(attack: _Attack) -> None:
    ring = MemoryAt(attack.queue.ring.handle, 0)
    attack.buffer.write(_buffer(cmd.Fill(ring, records.RING_HEADER, b"\xee")))
    attack.queue.submit(attack.buffer, len(_buffer(cmd.Fill(ring, 1, b"x"))))
    attack.queue = attack.context.queue()
    attack.fill(2)


def test_a_queue_destroyed_by_an_order_that_a_submission_makes_the_engine_read(
    attack: _Attack, daemon: Daemon
) -> None:
    # the engine looks into its orders when it meets an unknown handle; there it finds the end of this queue
    event = attack.context.alloc(64, "control")
    guess = event.handle + 1
    busy = _buffer(*[cmd.Fill(MemoryAt(attack.memory.handle, 0), 4096, b"\x01")] * 400)
    for _ in range(20):
        queue = attack.context.queue()
        other = attack.context.queue()
        attack.buffer.write(busy)
        other.submit(attack.buffer, len(busy))
        waiting = attack.context.alloc(4096, "control")
        waiting.write(_buffer(cmd.EventWait(MemoryAt(guess, 0))))
        queue.submit(waiting, 56)
        attack.wire.send(msg.MemAlloc(context=attack.context.handle, kind="control", size=64))
        attack.wire.answer(attack.wire.send(msg.QueueDestroy(queue=queue.handle)))
        guess += 2
    assert daemon.engine().restarts == 0
