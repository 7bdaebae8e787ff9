"""Rings, slots and command buffers of a hostile client, rewritten concurrently by another process."""

from __future__ import annotations

import itertools
import os
import signal
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec

from softnpu.emulator.common import linux
from softnpu.emulator.interface import commands as cmd
from softnpu.emulator.interface import messages as msg
from softnpu.emulator.interface import records
from softnpu.emulator.interface.commands import MemoryAt
from softnpu.emulator.interface.result import ErrorInfo, ZeResult
from softnpu.emulator.interface.shared import SharedMapping
from tests.fuzz.attack_frames import Target
from tests.fuzz.commands import PAIR_SIZE, CommandMaker
from tests.fuzz.connection import Connection, Hang, close_all
from tests.fuzz.dice import Dice
from tests.fuzz.hostile_objects import Model
from tests.fuzz.report import Tally, Violation
from tests.support.wire import WireMemory, WireQueue

_END_S = 30.0
_SPINS = 300
_SLICE_NS = 50_000_000
_LOST = int(ZeResult.ERROR_DEVICE_LOST)
_BUFFER = 1 << 16
_GUARD = 192
_KNOWN = {int(result) for result in ZeResult}


class Arena:
    """A session with a queue, a command buffer, memory between unnamed guards, and a graph."""

    def __init__(self, target: Target, dice: Dice, number: int = 0) -> None:
        self.dice = dice
        self.connection = Connection(target.socket)
        self.connection.hello("rings")
        answer, (self.doorbell,) = self.connection.ask(msg.ContextCreate(device=0))
        assert isinstance(answer, msg.ContextCreated)
        self.context = answer.context
        self._segments: dict[int, SharedMapping] = {}
        self._guards: list[tuple[WireMemory, bytes]] = []
        self.guarded(_GUARD)
        self.buffer = self.room(_BUFFER, "control")
        self.guarded(_GUARD, "control")
        self._proof, self._proof_buffer = self.room(4096), self.room(4096, "control")
        self.memory = [self._between_guards(size) for size in (4096, 1000, 64)]
        self.signals = self.room(64 * 8, "control")
        self.guarded(_GUARD, "control")
        self.queue = Queue(self, 1 << dice.randint(1, 4))
        self.model = target.models[number % len(target.models)]
        self.graph = self._load(self.model)
        self.arguments = [self._between_guards(max(64, each.byte_size)) for each in self.model.meta.arguments]

    def close(self) -> None:
        self.connection.close()
        os.close(self.doorbell)

    def room(self, size: int, kind: str = "host") -> WireMemory:
        """Return an allocation, zeroed."""
        made, fds = self.connection.ask(msg.MemAlloc(context=self.context, kind=kind, size=size))
        assert isinstance(made, msg.MemAllocated), made
        room = self.adopt(made, size, fds)
        room.write(bytes(size))
        return room

    def adopt(self, made: msg.MemAllocated, size: int, fds: list[int]) -> WireMemory:
        """Map a finished allocation."""
        if made.fresh:
            self._segments[made.segment] = SharedMapping(fds[0], made.segment_size)
        close_all(fds)
        return WireMemory(made.memory, self._segments[made.segment], made.offset, size)

    def guarded(self, size: int, kind: str = "host") -> None:
        """Allocate memory that must not change."""
        room, content = self.room(size, kind), self.dice.randbytes(size)
        room.write(content)
        self._guards.append((room, content))

    def check_guards(self) -> None:
        for room, content in self._guards:
            if room.read(room.size) != content:
                raise Violation(f"memory {room.handle:#x} was written, which no command named")

    def new_queue(self) -> None:
        """Replace the lost queue by a new one."""
        self.connection.ask(msg.QueueDestroy(queue=self.queue.handle))
        self.queue = Queue(self, 1 << self.dice.randint(1, 4))

    def check_works(self) -> None:
        """Assert that the session itself is served as before."""
        place = MemoryAt(self._proof.handle, 0)
        value = bytes([self.dice.randrange(256)])
        data = cmd.encode_buffer([cmd.encode_command(cmd.Fill(place, 4096, value))])
        self._proof_buffer.write(data)
        result = self.queue.wait(self.queue.submit(self._proof_buffer.handle, len(data)))
        if result:
            raise Violation(f"a good submission ended with {result:#x}: {self.queue.info()}")
        if self._proof.read(4096) != value * 4096:
            raise Violation("a good submission has done nothing")

    def spared(self) -> list[int]:
        """Return handles that no command may name, or the proofs would fail."""
        own = [self._proof.handle, self._proof_buffer.handle, self.queue.ring.handle]
        return own + [room.handle for room, _ in self._guards]

    def _between_guards(self, size: int) -> WireMemory:
        room = self.room(size)
        self.guarded(_GUARD)
        return room

    def _load(self, model: Model) -> int:
        made, fds = self.connection.ask(model.import_request(self.context), model.import_fds)
        close_all(fds)
        assert isinstance(made, msg.GraphCreated), made
        ready, _ = self.connection.ask(msg.GraphInitialize(graph=made.graph))
        assert isinstance(ready, msg.GraphInitialized), ready
        return made.graph


class Queue(WireQueue):
    """A queue that is waited for as drivers do it."""

    def __init__(self, arena: Arena, slots: int) -> None:
        made, fds = arena.connection.ask(msg.QueueCreate(context=arena.context, slots=slots))
        assert isinstance(made, msg.QueueCreated), made
        self.handle, self.slots, self.doorbell, self.tail = made.queue, slots, arena.doorbell, 0
        self.ring = arena.adopt(made.ring, records.ring_size(slots), fds)

    def wait(self, number: int) -> int:
        """Return the result of a submission, once it has ended."""
        end = time.monotonic() + _END_S
        spins = 0
        while (completed := self.completed) < number:
            spins += 1
            if spins < _SPINS:
                continue
            if time.monotonic() > end:
                raise Hang(f"submission {number} has not ended; completed is {completed}")
            self.ring.write(b"\1\0\0\0", records.RING_WAITERS)
            linux.memory_fence()
            if self.completed == completed:
                place = self.ring.mapping.address + self.ring.offset + records.RING_COMPLETED
                linux.futex_wait(place, completed & 0xFFFFFFFF, _SLICE_NS)
        return self._word("=I", records.RING_RESULT) if self._word("=Q", records.RING_FAILED) == number else 0

    def info(self) -> ErrorInfo:
        """Return the engine's error for the last failed submission."""
        size = min(records.RING_TEXT_MAX, self._word("=I", records.RING_TEXT_SIZE))
        text = self.ring.read(size, records.RING_TEXT)
        try:
            return msgspec.msgpack.decode(text, type=ErrorInfo)
        except msgspec.DecodeError as error:
            raise Violation(f"the fault in the ring is none: {text!r}") from error


def rings_round(target: Target, dice: Dice, count: int, tally: Tally, number: int) -> None:
    """Make `count` submissions in one session; every fourth round a process rewrites them continuously."""
    arena = Arena(target, dice, number)
    try:
        rooms = [*arena.memory, arena.buffer]
        maker = CommandMaker(dice, rooms, arena.signals, arena.graph, arena.arguments, arena.model.meta)
        if number % 4 == 1:
            with _flipping(arena, maker):
                _submissions(arena, maker, count, tally, steady=False)
        else:
            _submissions(arena, maker, count, tally, steady=True)
        if arena.queue.lost:
            arena.new_queue()
        arena.check_works()
        arena.check_guards()
    finally:
        arena.close()


def _submissions(arena: Arena, maker: CommandMaker, count: int, tally: Tally, steady: bool) -> None:
    dice = arena.dice
    for number in range(count):
        if arena.queue.lost:
            arena.new_queue()
        way = dice.random()
        if way < 0.04:
            _spoil_ring(arena, dice, tally)
        else:
            _submit_one(arena, maker, tally, steady)
        if number % 50 == 49:
            arena.check_guards()


def _submit_one(arena: Arena, maker: CommandMaker, tally: Tally, steady: bool) -> None:
    dice = arena.dice
    names, data, right = maker.buffer(arena.spared())
    slot: dict[str, int] = {"buffer": arena.buffer.handle, "offset": 0, "size": len(data)}
    if dice.chance(0.3):
        arena.signals.fence(0).arm(arena.queue.tail + 1)
        slot |= {"fence": arena.signals.handle, "fence_offset": 0}
    if dice.chance(0.12):
        right = None
        name = dice.pick(("buffer", "offset", "size", "flags", "fence", "fence_offset"))
        slot[name] = dice.unsigned(32 if name in ("size", "flags") else 64)
    if not steady and dice.chance(0.7):
        slot["size"] = PAIR_SIZE  # written by the other process
    elif len(data) <= _BUFFER:
        arena.buffer.write(data)
    else:
        right = None
        slot["size"] = len(data)
    arena.signals.event(64).host_reset()
    arena.signals.event(128).host_signal()
    result = arena.queue.wait(arena.queue.submit(**slot))
    for name in set(names):
        (tally.refused if result else tally.accepted)[name] += 1
    if result not in _KNOWN:
        raise Violation(f"result {result:#x} of {names}")
    if result:
        tally.info(arena.queue.info())
    else:
        tally.results["SUCCESS"] += 1
    tally.deep["rings"] += not result or "header" not in str(arena.queue.info().object)
    if not steady or right is None:
        return
    if right and result and not (result == _LOST and "EventWait" in names):
        raise Violation(f"refused although nothing is wrong: {data.hex()}: {arena.queue.info()}")
    if right is False and not result:
        raise Violation(f"executed although wrong: {names}: {data.hex()}")


def _spoil_ring(arena: Arena, dice: Dice, tally: Tally) -> None:
    """Overwrite an owned ring; only that queue may be lost."""
    victim = Queue(arena, 1 << dice.randint(1, 4))
    way = dice.randrange(6)
    edges = (2**64 - 1, 0, 2**63, 2**40, 2**32, 1, 17)
    if way == 0:
        for _ in range(4):
            victim.set_tail(dice.pick(edges) if dice.chance(0.7) else dice.unsigned(64))
            arena.check_works()
    elif way == 1:
        victim.ring.write(dice.randbytes(victim.ring.size))
        os.eventfd_write(arena.doorbell, 1)
    elif way == 2:
        for _ in range(3):
            victim.ring.write(dice.damaged(victim.ring.read(victim.ring.size), 12))
            os.eventfd_write(arena.doorbell, 1)
    elif way == 3:
        ring = MemoryAt(victim.ring.handle, 0)
        data = cmd.encode_buffer([cmd.encode_command(cmd.Fill(ring, victim.ring.size, b"\xee"))])
        arena.buffer.write(data)
        victim.submit(arena.buffer.handle, len(data))
    elif way == 4:
        victim.tail = dice.pick(edges)
        victim.tail = min(victim.tail, 2**64 - 4)
        for _ in range(3):
            victim.submit(arena.buffer.handle, 64)
    else:
        victim.submit(arena.buffer.handle, 40)
        victim.ring.write(dice.randbytes(records.RING_HEADER))
    arena.check_works()
    tally.accepted[f"ring spoilt {way}"] += 1
    arena.connection.ask(msg.QueueDestroy(queue=victim.handle))


@contextmanager
def _flipping(arena: Arena, maker: CommandMaker) -> Iterator[None]:
    """Run a process that continuously rewrites command buffer, slots, signals and arguments."""
    pairs = [maker.pair() for _ in range(12)]
    noise = arena.dice.randbytes(64)

    def flip() -> None:
        for right, wrong in pairs:
            for _ in range(20):
                arena.buffer.write(wrong)
                arena.buffer.write(right)
            arena.signals.write(noise, 64)
            for room in arena.arguments:
                room.write(wrong[-8:])

    with _again_and_again(flip):
        yield


@contextmanager
def _again_and_again(work: Callable[[], None]) -> Iterator[None]:
    """Run a process that repeats this continuously."""
    parent = os.getpid()
    child = os.fork()
    if not child:
        try:
            linux.die_with_parent(parent)
            while True:
                work()
        finally:
            os._exit(1)
    try:
        yield
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def restless_tail(target: Target, tally: Tally) -> None:
    """Change the tail of a lost ring continuously: everybody else must be served as before."""
    arena, other = Arena(target, Dice("restless")), Arena(target, Dice("honest"))
    restless, numbers = Queue(arena, 2), itertools.count(5, 0x9E3779B97F4A7C15)

    def change() -> None:
        number = next(numbers) % 2**64
        restless.ring.write(struct.pack("=Q", number), records.RING_TAIL)
        if number % 64 != 5:
            os.eventfd_write(arena.doorbell, 1)

    try:
        with _again_and_again(change):
            for _ in range(100):
                start = time.monotonic()
                other.check_works()
                took = time.monotonic() - start
                if took > 2.0:
                    raise Violation(f"an honest submission beside a tail that never rests took {took:.1f} s")
    finally:
        other.close()
        arena.close()
    tally.accepted["restless tail"] += 1


def huge_regions(target: Target, tally: Tally) -> None:
    """Use overlapping regions of hundreds of megabytes: others must not wait for them."""
    arena = Arena(target, Dice("regions"))
    try:
        size = 384 << 20
        made, fds = arena.connection.ask(msg.MemAlloc(context=arena.context, kind="host", size=size))
        close_all(fds)
        if not isinstance(made, msg.MemAllocated):
            return  # this machine has less
        half = size // 2
        region = cmd.CopyRegion(
            MemoryAt(made.memory, 4096), 8192, MemoryAt(made.memory, 0), 8192, 8192, half // 8192
        )
        data = cmd.encode_buffer([cmd.encode_command(region)] * 4)
        arena.buffer.write(data)
        number = arena.queue.submit(arena.buffer.handle, len(data))
        if arena.queue.wait(number):
            raise Violation(f"regions that overlap: {arena.queue.info()}")
    finally:
        arena.close()
    tally.accepted["huge regions"] += 1
