"""Command buffers, valid and invalid, and an independent opinion on which is which."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any

from softnpu.emulator.blob.container import GraphMeta
from softnpu.emulator.interface import commands as cmd
from softnpu.emulator.interface.commands import MemoryAt
from softnpu.emulator.interface.metrics import SNAPSHOT
from tests.fuzz.dice import Dice
from tests.support.wire import WireMemory

PAIR_SIZE = cmd.HEADER.size + 72
_SIGNAL = 64


def _inside(at: MemoryAt, size: int, sizes: Mapping[int, int]) -> bool:
    room = sizes.get(at.memory)
    return room is not None and at.offset <= room and size <= room - at.offset


def is_right(command: cmd.Command, sizes: Mapping[int, int]) -> bool | None:
    """Return whether a command with memory of these sizes must be executed or refused; None: unknown."""
    match command:
        case cmd.Barrier():
            return True
        case cmd.Fill(at, size, _):
            return _inside(at, size, sizes)
        case cmd.Copy(target, source, size):
            return _inside(target, size, sizes) and _inside(source, size, sizes)
        case cmd.CopyRegion(target, target_pitch, source, source_pitch, width, rows):
            if not rows or not 0 < width <= target_pitch:
                return False
            return all(
                _inside(at, pitch * (rows - 1) + width, sizes)
                for at, pitch in ((target, target_pitch), (source, source_pitch))
            )
        case cmd.Timestamp(at):
            return _inside(at, 8, sizes) and at.offset % 8 == 0
        case cmd.MetricSnapshot(at):
            return _inside(at, SNAPSHOT.size, sizes) and at.offset % 8 == 0
        case cmd.EventSignal(at) | cmd.EventReset(at) | cmd.EventWait(at):
            return _inside(at, _SIGNAL, sizes) and at.offset % 8 == 0
    return None


def _without(data: bytes, spared: Sequence[int]) -> bytes:
    """Zero each of these handles in the data. Handles lie at multiples of 8."""
    named = {struct.pack("=Q", handle) for handle in spared}
    found = [at for at in range(0, len(data) - 7, 8) if data[at : at + 8] in named]
    changed = bytearray(data)
    for at in found:
        changed[at : at + 8] = bytes(8)
    return bytes(changed)


def _padded(command: cmd.Command) -> bytes:
    parts = [cmd.encode_command(command)]
    left = PAIR_SIZE - cmd.HEADER.size - len(parts[0])
    if left:
        parts.append(struct.pack("=HHI", cmd.CommandType.NOP, 0, left) + bytes(left - 8))
    return cmd.encode_buffer(parts)


class CommandMaker:
    """Makes command buffers for one context."""

    def __init__(
        self,
        dice: Dice,
        memory: list[WireMemory],
        signals: WireMemory,
        graph: int,
        arguments: list[WireMemory],
        meta: GraphMeta,
    ) -> None:
        self._dice = dice
        self._memory = memory[:3]
        self._signals = signals
        self._graph = graph
        self._arguments = arguments
        self._meta = meta
        self._sizes = {room.handle: room.size for room in (*memory, signals, *arguments)}

    def buffer(self, spared: Sequence[int]) -> tuple[list[str], bytes, bool | None]:
        """Return command names, the bytes, and whether all must be executed, or the whole refused.

        `spared`: live handles that it must not name.
        """
        dice = self._dice
        commands = [self._command() for _ in range(dice.pick((1, 1, 2, 3, 8)))]
        right: bool | None = True
        way = dice.random()
        if way < 0.3:
            at = dice.randrange(len(commands))
            commands[at] = self._changed(commands[at])
        for command in commands:
            opinion = is_right(command, self._sizes)
            if opinion is None and way >= 0.3:
                opinion = True  # a valid execution
            right = None if opinion is None and right else right and opinion
        names = [type(command).__name__ for command in commands]
        data = cmd.encode_buffer([cmd.encode_command(command) for command in commands])
        if way > 0.85:
            data, right = self._damaged(data), None
        elif way > 0.8:
            data, right = self._with_noise(commands), None
        return names, _without(data, spared), right

    def pair(self) -> tuple[bytes, bytes]:
        """Return a valid buffer, and a variant that exceeds its memory; both of `PAIR_SIZE` bytes."""
        dice, room = self._dice, self._dice.pick(self._memory)
        near = dice.pick((room.size - 1, room.size, room.size + 64, 2**63, 2**64 - 8))
        here, beyond = MemoryAt(room.handle, 0), MemoryAt(room.handle, near)
        last = MemoryAt(room.handle, room.size - room.size % 8)
        pairs: tuple[tuple[cmd.Command, cmd.Command], ...] = (
            (cmd.Fill(here, 32, b"\x11"), cmd.Fill(beyond, 64, b"\xbd")),
            (cmd.Fill(here, 64, b"\x11"), cmd.Fill(here, room.size + 128, b"\xbd")),
            (cmd.Copy(here, here, 32), cmd.Copy(beyond, here, 64)),
            (cmd.CopyRegion(here, 8, here, 8, 8, 3), cmd.CopyRegion(here, room.size, here, 16, 16, 2)),
            (cmd.Timestamp(here), cmd.Timestamp(last)),
            (cmd.EventSignal(here), cmd.EventSignal(last)),
        )
        right, wrong = dice.pick(pairs)
        return _padded(right), _padded(wrong)

    def _place(self, size: int, alignment: int = 1) -> MemoryAt:
        fitting = [room for room in self._memory if room.size >= size]
        room = self._dice.pick(fitting)
        offset = self._dice.randint(0, room.size - size)
        return MemoryAt(room.handle, offset - offset % alignment)

    def _event(self) -> MemoryAt:
        return MemoryAt(self._signals.handle, 64 * self._dice.randint(3, 7))

    def _command(self) -> cmd.Command:
        dice = self._dice
        way = dice.randrange(20)
        size = dice.pick((0, 1, 8, 63, 64, 200, 500, 1000))
        if way < 3:
            width = dice.pick((1, 2, 4, 8))
            size -= size % width
            return cmd.Fill(self._place(size), size, dice.randbytes(width))
        if way < 6:
            return cmd.Copy(self._place(size), self._place(size), size)
        if way < 9:
            width, rows = dice.randint(1, 16), dice.randint(1, 9)
            pitches = [dice.randint(width, 32), dice.randint(0, 32)]
            extents = [pitch * (rows - 1) + width for pitch in pitches]
            places = [self._place(extent) for extent in extents]
            return cmd.CopyRegion(places[0], pitches[0], places[1], pitches[1], width, rows)
        if way < 10:
            return cmd.Timestamp(self._place(8, 8))
        if way < 11:
            return cmd.MetricSnapshot(self._place(SNAPSHOT.size, 8))
        if way < 12:
            return cmd.EventSignal(self._event())
        if way < 13:
            return cmd.EventReset(self._event())
        if way < 14:
            # signalled before the submission; an unsignalled one costs a tenth of a second
            return cmd.EventWait(MemoryAt(self._signals.handle, 64 if dice.chance(0.02) else 128))
        if way < 15:
            return cmd.Barrier()
        if way < 16:
            return cmd.GraphInit(self._graph)
        return self._execution()

    def _execution(self) -> cmd.GraphExecute:
        for room, argument in zip(self._arguments, self._meta.arguments, strict=True):
            if argument.shape_of >= 0:
                shape = [self._dice.randint(0, 2) for _ in range(argument.shape[0])]
                room.write(struct.pack(f"={len(shape)}i", *[max(1, dim) for dim in shape]))
        return cmd.GraphExecute(self._graph, 1, tuple(MemoryAt(room.handle, 0) for room in self._arguments))

    def _changed(self, command: cmd.Command) -> cmd.Command:
        """Return the command with one field changed."""
        dice = self._dice
        if isinstance(command, cmd.GraphExecute):
            return self._changed_execution(command)
        if not command._fields:
            return command
        name = dice.pick(command._fields)
        value: Any = getattr(command, name)
        if isinstance(value, MemoryAt):
            value = self._changed_place(value)
        elif isinstance(value, bytes):
            value = dice.randbytes(dice.pick((1, 2, 4, 8)))
        else:
            value = dice.unsigned(64)
        return command._replace(**{name: value})

    def _changed_place(self, at: MemoryAt) -> MemoryAt:
        dice = self._dice
        way = dice.randrange(4)
        if way == 0:
            return MemoryAt(dice.unsigned(64), at.offset)
        if way == 1:
            return MemoryAt(at.memory + dice.pick((1, 1 << 32, 1 << 56, -(1 << 32))), at.offset)
        size = self._sizes.get(at.memory, 64)
        near = (size, size - 1, size - 7, size - 8, size - 63, size - 64, size + 1, size + 64)
        return MemoryAt(at.memory, dice.pick(near) % 2**64 if way == 2 else dice.unsigned(64))

    def _changed_execution(self, command: cmd.GraphExecute) -> cmd.GraphExecute:
        dice = self._dice
        way = dice.choices(range(8), (1, 1, 1, 4, 1, 1, 3, 2))[0]
        places = list(command.arguments)
        index = dice.randrange(len(places))
        if way == 0:
            return command._replace(graph=dice.pick((dice.unsigned(64), command.graph + (1 << 32))))
        if way == 1:
            return command._replace(arguments=tuple(places[:-1]))
        if way == 2:
            return command._replace(arguments=(*places, places[0]))
        if way == 3:
            odd = dice.chance(0.4)
            strides = tuple(
                dice.unsigned(32) if odd and dice.chance(0.4) else dice.randint(1, 3) for _ in range(5)
            )
            return command._replace(strides=((index, strides),) * dice.pick((1, 1, len(places))))
        if way == 4:
            return command._replace(profiling=self._changed_place(MemoryAt(self._memory[0].handle, 0)))
        if way == 5:
            return command._replace(profiling=MemoryAt(self._memory[0].handle, dice.randint(0, 4096)))
        if way == 6 and any(argument.shape_of >= 0 for argument in self._meta.arguments):
            for room, argument in zip(self._arguments, self._meta.arguments, strict=True):
                if argument.shape_of >= 0:
                    dims = [dice.unsigned(32) for _ in range(argument.shape[0])]
                    room.write(struct.pack(f"={len(dims)}I", *dims))
            return command
        places[index] = self._changed_place(places[index])
        return command._replace(arguments=tuple(places))

    def _damaged(self, data: bytes) -> bytes:
        dice = self._dice
        if dice.chance(0.3):
            head = bytearray(dice.damaged(data[:32], 2))
            return bytes(head) + data[32:]
        if dice.chance(0.2):
            return data[: dice.randint(0, len(data))]
        return dice.damaged(data, 3)

    def _with_noise(self, commands: list[cmd.Command]) -> bytes:
        """Insert commands of unknown types, NOPs of any length, and wrong argument counts."""
        dice = self._dice
        parts = [cmd.encode_command(command) for command in commands]
        kind = dice.pick((0x001, 0x001, 0x7777, *map(int, cmd.CommandType)))
        size = dice.pick((8, 16, 24, 48, 64, 72, 4096))
        noise = struct.pack("=HHI", kind, dice.pick((0, 0, 1)), size) + dice.randbytes(size - 8)
        if kind == cmd.CommandType.GRAPH_EXECUTE and size >= 48:
            counts = struct.pack("=QQII", self._graph, 1, dice.unsigned(32), dice.unsigned(32))
            noise = noise[:8] + counts + noise[8 + len(counts) :]
        parts.insert(dice.randint(0, len(parts)), noise)
        return cmd.encode_buffer(parts)
