"""Where the arguments of one execution lie: what OpenVINO is given, and what is copied before and after.

OpenVINO takes dense tensors, and writes an output while it still reads inputs. So a strided argument goes
through memory of the engine, and an output that overlaps an input through staging that outlives the engine:
once it is copied, the inputs of this execution are gone.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Callable, Iterable
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from softnpu.emulator.blob.container import ArgumentMeta, GraphMeta
from softnpu.emulator.engine.context import Bytes, EngineContext, Range
from softnpu.emulator.engine.staging import Piece
from softnpu.emulator.interface import commands as cmd
from softnpu.emulator.interface import profiling
from softnpu.emulator.interface.result import Refused, ZeResult, refuse

Copy = Callable[[], None]
_ALIGNMENT = 64


class _Place(NamedTuple):
    """The client memory of one argument, and its elements in it if they are strided."""

    argument: ArgumentMeta
    range: Range
    memory: Bytes
    spread: Bytes | None


class _Apart(NamedTuple):
    """An output in staging, from `at` on; `told`: where its shape tensor is there, -1 if it has none."""

    place: _Place
    at: int
    told: int


class Arguments:
    """The arguments of one GRAPH_EXECUTE.

    `views`: what OpenVINO is given for each. `before`, `after`: copies between client memory and memory of
    this engine, which may be done again, of `staged` bytes. `piece`: staging with the outputs that overlap
    inputs, in `size` bytes; None if there are none.
    """

    def __init__(self, context: EngineContext, command: cmd.GraphExecute, meta: GraphMeta) -> None:
        self._name = f"graph '{meta.name}'"
        self.before: list[Copy] = []
        self.after: list[Copy] = []
        self.staged = self.size = 0
        self.piece: Piece | None = None
        strides = dict(command.strides)
        self._places = [
            self._place(context, at, argument, strides.get(index))
            for index, (at, argument) in enumerate(zip(command.arguments, meta.arguments, strict=True))
        ]
        self._outputs = range(len(meta.inputs), len(meta.arguments))
        self._check_outputs([self._certain(index) for index in self._outputs])
        self._check_profile(context, command)
        self._apart = self._put_apart(meta)
        if self._apart:
            self.piece = context.scratch(self.size)
        self.views = [self._view(index, place) for index, place in enumerate(self._places)]

    @property
    def reads(self) -> list[Range]:
        """The client memory of the inputs."""
        return [place.range for place in self._places if place.argument.input]

    @property
    def writes(self) -> list[Range]:
        """The client memory of the outputs."""
        return [place.range for place in self._places if not place.argument.input]

    # ------------------------------------------------------------ results in staging

    def check(self, staged: Bytes) -> None:
        """Refuses results with dynamic dimensions of which one would overwrite another output."""
        if any(apart.told >= 0 for apart in self._apart.values()):
            self._check_outputs([self._used(index, staged) for index in self._outputs])

    def deliver(self, staged: Bytes) -> int:
        """Copies results from staging to the client; how many bytes. It may be done again."""
        copied = 0
        for index, (place, at, _) in self._apart.items():
            used = self._used(index, staged)
            size = used.end - used.start
            if place.spread is None:
                np.copyto(place.memory[:size], staged[at : at + size])
            else:
                size = place.spread.size
                np.copyto(place.spread, staged[at : at + size].reshape(place.spread.shape))
            copied += size
        return copied

    def tell_shapes(self, staged: Bytes) -> None:
        """Copies the shape tensors of outputs: the memory is too small for what they say."""
        for place, at, _ in self._apart.values():
            if place.argument.shape_of >= 0:
                np.copyto(place.memory, staged[at : at + place.memory.size])

    # ------------------------------------------------------------ which bytes

    def _certain(self, index: int) -> Range:
        """The bytes that an argument has whatever its shape."""
        place = self._places[index]
        return place.range._replace(end=place.range.start) if place.argument.is_dynamic else place.range

    def _used(self, index: int, staged: Bytes) -> Range:
        """The bytes that an output has now; those of an open shape are known if it is in staging."""
        apart = self._apart.get(index)
        if apart is None or apart.told < 0:
            return self._certain(index)
        argument, whole = apart.place.argument, apart.place.range
        told = self._places[self._shape_tensor(index)]
        shape = staged[apart.told : apart.told + told.memory.size].view(np.int32)
        size = math.prod(shape.tolist()) * argument.alignment
        return whole._replace(end=min(whole.end, whole.start + size))

    def _shape_tensor(self, index: int) -> int:
        return next(number for number in self._outputs if self._places[number].argument.shape_of == index)

    def _put_apart(self, meta: GraphMeta) -> dict[int, _Apart]:
        """The outputs that go through staging, by argument, and where they are there.

        Those that overlap an input, or that may grow into another output; with an output its shape tensor.
        """
        inputs = _Covered(self.reads)
        chosen = {index for index in self._outputs if inputs.meets(self._places[index].range)}
        chosen |= {index for index in self._outputs if self._is_crowded(index)}
        told = meta.shape_tensors
        chosen |= {told[index] for index in chosen if self._places[index].argument.is_dynamic}
        at = {}
        for index in sorted(chosen):
            at[index] = self.size
            place = self._places[index]
            length = place.memory.size if place.spread is None else place.argument.byte_size
            self.size += -(-length // _ALIGNMENT) * _ALIGNMENT
        return {
            index: _Apart(place, at[index], at[told[index]] if place.argument.is_dynamic else -1)
            for index, place in enumerate(self._places)
            if index in chosen
        }

    def _is_crowded(self, index: int) -> bool:
        """Whether another output lies in the memory that an output may come to use."""
        place = self._places[index]
        if not place.argument.is_dynamic:
            return False
        return any(place.range.meets(self._places[other].range) for other in self._outputs if other != index)

    # ------------------------------------------------------------ what is refused

    def _check_outputs(self, ranges: list[Range]) -> None:
        numbered = sorted(
            (used, index) for index, used in zip(self._outputs, ranges, strict=True) if used.start < used.end
        )
        for (one, first), (other, second) in pairwise(numbered):
            if one.meets(other):
                names = [self._places[index].argument.name for index in sorted((first, second))]
                raise refuse(
                    ZeResult.ERROR_INVALID_ARGUMENT,
                    f"{self._name}, outputs '{names[0]}' and '{names[1]}'",
                    found=f"{min(one.end, other.end) - other.start} bytes of memory that both are bound to",
                    expected="outputs that do not overlap",
                )

    def _check_profile(self, context: EngineContext, command: cmd.GraphExecute) -> None:
        at = command.profiling
        if at is None:
            return
        profile = context.place(at, profiling.HEADER.size).range(at.offset, profiling.HEADER.size)
        for index, place in enumerate(self._places):
            if profile.meets(self._certain(index)):
                raise refuse(
                    ZeResult.ERROR_INVALID_ARGUMENT,
                    f"{self._name}, profile",
                    found=f"in the memory of argument '{place.argument.name}'",
                    expected="memory of its own",
                )

    # ------------------------------------------------------------ memory

    def _view(self, index: int, place: _Place) -> Bytes:
        """What OpenVINO reads or writes for an argument."""
        apart = self._apart.get(index)
        if apart is not None and self.piece is not None:
            length = place.memory.size if place.spread is None else place.argument.byte_size
            return self.piece.array[apart.at : apart.at + length]
        if place.spread is None:
            return place.memory
        between = np.zeros(place.argument.byte_size, dtype=np.uint8)
        dense = between.reshape(place.spread.shape)
        if place.argument.input:
            self.before.append(partial(np.copyto, dense, place.spread))
        else:
            self.after.append(partial(np.copyto, place.spread, dense))
        self.staged += place.spread.size
        return between

    def _place(
        self,
        context: EngineContext,
        at: cmd.MemoryAt,
        argument: ArgumentMeta,
        strides: tuple[int, ...] | None,
    ) -> _Place:
        try:
            if argument.is_dynamic:
                size, alignment, steps = _room(context, at, argument, strides), argument.alignment, None
            else:
                size, alignment, steps = _extent(argument, strides)
            memory = context.place(at, size, alignment)
        except Refused as error:
            info = error.info
            name = f"{self._name}, argument '{argument.name}', {info.object}"
            raise refuse(
                ZeResult(info.result), name, found=info.found, expected=info.expected, hint=info.hint
            ) from error
        view = memory.array[at.offset : at.offset + size]
        spread = None
        if steps is not None:
            shape = (*argument.shape, alignment)
            spread = np.lib.stride_tricks.as_strided(view, shape, (*steps, 1))
        return _Place(argument, memory.range(at.offset, size), view, spread)


class _Covered:
    """The bytes that some ranges cover together."""

    def __init__(self, ranges: Iterable[Range]) -> None:
        self._starts: list[tuple[tuple[int, int], int]] = []
        self._ends: list[int] = []
        for file, start, end in sorted(ranges):
            if self._starts and self._starts[-1][0] == file and start <= self._ends[-1]:
                self._ends[-1] = max(self._ends[-1], end)
            else:
                self._starts.append((file, start))
                self._ends.append(end)

    def meets(self, other: Range) -> bool:
        """Whether a byte of the range is covered."""
        index = bisect.bisect_left(self._starts, (other.file, other.end)) - 1
        if index < 0:
            return False
        file, start = self._starts[index]
        return other.meets(Range(file, start, self._ends[index]))


def _room(
    context: EngineContext, at: cmd.MemoryAt, argument: ArgumentMeta, strides: tuple[int, ...] | None
) -> int:
    """How many bytes from `at` on an argument with dynamic dimensions may come to use."""
    if strides is not None:
        raise refuse(
            ZeResult.ERROR_INVALID_ARGUMENT,
            "strides",
            found=f"{list(strides)}",
            expected="none with dynamic dimensions",
        )
    size = context.place(at, 0, argument.alignment).size - at.offset
    return size if argument.unbounded else min(size, argument.byte_size)


def _extent(
    argument: ArgumentMeta, strides: tuple[int, ...] | None
) -> tuple[int, int, tuple[int, ...] | None]:
    """The bytes from the first to the last of an argument, its alignment, and its strides in bytes."""
    item = argument.alignment
    if strides is None:
        return argument.byte_size, item, None
    steps = strides[: len(argument.shape)][::-1]
    if len(steps) != len(argument.shape) or not all(steps):
        raise refuse(
            ZeResult.ERROR_INVALID_ARGUMENT,
            "strides",
            found=f"{list(strides)}",
            expected=f"{len(argument.shape)} strides of at least 1, innermost first",
        )
    extent = 1 + sum((dim - 1) * step for dim, step in zip(argument.shape, steps, strict=True))
    return extent * item, item, tuple(step * item for step in steps)
