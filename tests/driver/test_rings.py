"""Rings, slots and command buffers written by a hostile client: a typed error, a live engine."""

from __future__ import annotations

import struct
from collections.abc import Iterator

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
    """A hand-made session with a queue, a command buffer and some memory."""

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
        """Prove that the queue still works."""
        place = MemoryAt(self.memory.handle, 0)
        assert self.run(cmd.Fill(place, 4096, bytes([value]))) == 0
        assert self.memory.read() == bytes([value]) * 4096


@pytest.fixture
def attack(daemon: Daemon) -> Iterator[_Attack]:
    attack = _Attack(daemon)
    attack.fill(1)
    with _Attack(daemon).wire as other:
        yield attack
        # another session is unaffected
        context = WireContext(other)
        assert context.queue().run(_NOTHING, context.alloc(4096, "control")) == 0
    attack.wire.close()


def _patched(data: bytes, at: int, shape: str, value: int) -> bytes:
    return data[:at] + struct.pack(shape, value) + data[at + struct.calcsize(shape) :]


HANDLES = (0, 1, _TOP, 0x0200000100000063, 0x0100000100000000, 0x0300000100000000, 0xFF00000100000000)
RANGES = (
    (0, 0), (0, 31), (0, 2**32 - 1), (0, (1 << 16) + 1), ((1 << 16) - 8, 40), (1 << 16, 0),
    (_TOP, 40), (_TOP - 39, 40), (2**63, 40), (0, 17 << 20),
)  # fmt: skip
BUFFERS = (
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
)


def test_a_buffer_without_valid_commands_of_the_context(attack: _Attack) -> None:
    queue = attack.queue
    for handle in HANDLES:
        assert queue.wait(queue.submit(handle, 40)) == _BAD, hex(handle)
    attack.buffer.write(_NOTHING)
    for offset, size in RANGES:
        assert queue.wait(queue.submit(attack.buffer, size, offset)) == _BAD, (offset, size)
    for data in BUFFERS:
        assert queue.run(data, attack.buffer) == _BAD, data
    attack.fill(2)


def test_an_invalid_fence(attack: _Attack) -> None:
    attack.buffer.write(_NOTHING)
    no_fence = ZeResult.ERROR_INVALID_SYNCHRONIZATION_OBJECT
    wrong: list[tuple[WireMemory | int, int, ZeResult]] = [
        *((attack.memory, offset, no_fence) for offset in (4096 - 63, 4, _TOP, _TOP - 63)),
        *((handle, 0, _BAD) for handle in (1, _TOP, 0x0200000100000099)),
    ]
    for fence, offset, result in wrong:
        number = attack.queue.submit(attack.buffer, len(_NOTHING), fence=fence, fence_offset=offset)
        assert attack.queue.wait(number) == result, (fence, offset)
    attack.fill(2)


def test_a_command_that_reaches_out_of_bounds(attack: _Attack) -> None:
    def at(offset: int) -> MemoryAt:
        return MemoryAt(attack.memory.handle, offset)

    unaligned, unknown = ZeResult.ERROR_UNSUPPORTED_ALIGNMENT, ZeResult.ERROR_UNINITIALIZED
    commands: dict[cmd.Command, ZeResult] = {
        cmd.Fill(at(0), 4097, b"x"): _BAD,
        cmd.Fill(at(1), 4096, b"x"): _BAD,
        cmd.Fill(at(_TOP), 2, b"x"): _BAD,
        cmd.Fill(at(0), _TOP, b"x"): _BAD,
        cmd.Fill(at(2**63), 2**63, b"x"): _BAD,
        cmd.Copy(at(0), at(4000), 97): _BAD,
        cmd.Copy(at(4000), at(0), 97): _BAD,
        cmd.Copy(MemoryAt(0, 0), at(0), 1): _BAD,
        cmd.Copy(at(0), MemoryAt(0x0200000100000077, 0), 1): _BAD,
        cmd.Timestamp(at(4089)): _BAD,
        cmd.Timestamp(at(4)): unaligned,
        cmd.EventSignal(at(4040)): _BAD,
        cmd.EventWait(at(1)): unaligned,
        cmd.EventReset(MemoryAt(_TOP, 0)): _BAD,
        cmd.GraphInit(0): unknown,
        cmd.GraphExecute(0x0400000100000000, 1, ()): unknown,
    }
    good = cmd.Fill(at(0), 64, b"\x63")
    for bad, result in commands.items():
        assert attack.run(good, bad) == result, bad
    assert attack.memory.read(64) == b"\x01" * 64, "no command of a refused buffer runs"
    attack.fill(2)


def test_an_invalid_tail_or_slot_loses_only_the_queue(attack: _Attack) -> None:
    def lost() -> None:
        wait_until(lambda: attack.queue.lost)
        attack.queue = attack.context.queue()

    for tail in (17, 18, 1000, 2**32, 2**63, _TOP, 0):
        if tail == 0:
            attack.fill(2)  # a tail that moves backwards
        attack.queue.set_tail(tail)
        lost()
    for sequence in (0, 1, 3, 2**63, _TOP):
        attack.fill(3)
        attack.queue.submit(attack.buffer, len(_NOTHING), sequence=sequence)
        lost()
    attack.fill(4)


def test_commands_that_write_into_their_own_ring(attack: _Attack) -> None:
    ring = MemoryAt(attack.queue.ring.handle, 0)
    attack.buffer.write(_buffer(cmd.Fill(ring, records.RING_HEADER, b"\xee")))
    attack.queue.submit(attack.buffer, len(_buffer(cmd.Fill(ring, 1, b"x"))))
    attack.queue = attack.context.queue()
    attack.fill(2)


def test_a_queue_destroyed_by_a_message_read_during_its_own_submission(
    attack: _Attack, daemon: Daemon
) -> None:
    # the engine reads its messages when it meets an unknown handle; there it finds the end of this queue
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
