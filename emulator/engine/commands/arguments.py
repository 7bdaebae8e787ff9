"""The arguments of one execution: the memory bound to OpenVINO, and copies before and after.

OpenVINO requires dense tensors, and writes an output while it still reads inputs. So strided arguments and
outputs that overlap an input go through staging. Staging outlives the engine, because copying such an output
overwrites the inputs of this execution.
"""

from __future__ import annotations

import bisect
import itertools
import math
import operator
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from softnpu.emulator.blob.argument_bounds import most_bytes
from softnpu.emulator.blob.container import ArgumentMeta, GraphMeta
from softnpu.emulator.common.arrays import Bytes
from softnpu.emulator.engine.memory.address_space import AddressSpace
from softnpu.emulator.engine.memory.mappings import Range
from softnpu.emulator.engine.memory.staging import StagingBuffer
from softnpu.emulator.interface import commands as cmd
from softnpu.emulator.interface import profiling
from softnpu.emulator.interface.result import Refused, ZeResult, refuse

Copy = Callable[[], None]
_ALIGNMENT = 64


class _Bound(NamedTuple):
    """The client memory of one argument; `strided`: its elements there, if it has strides."""

    argument: ArgumentMeta
    range: Range
    memory: Bytes
    strided: Bytes | None


class _StagedOutput(NamedTuple):
    """An output in staging, at offset `at`; `shape_at`: offset of its shape tensor there, -1 if none."""

    bound: _Bound
    at: int
    shape_at: int


class Arguments:
    """The arguments of one GRAPH_EXECUTE.

    `views`: the memory of each for OpenVINO. `before`, `after`: copies of strided arguments, of `staged`
    bytes; repeatable. `buffer`: staging whose first `size` bytes hold the outputs that overlap inputs; None
    if there are none.
    """

    def __init__(self, space: AddressSpace, command: cmd.GraphExecute, meta: GraphMeta) -> None:
        self._name = f"graph '{meta.name}'"
        self._config = meta.config
        self.before: list[Copy] = []
        self.after: list[Copy] = []
        self.staged = self.size = 0
        self.buffer: StagingBuffer | None = None
        strides = dict(command.strides)
        self._bound = [
            self._bind(space, at, argument, strides.get(index))
            for index, (at, argument) in enumerate(zip(command.arguments, meta.arguments, strict=True))
        ]
        self._outputs = range(len(meta.inputs), len(meta.arguments))
        self._check_outputs([self._minimum(index) for index in self._outputs])
        self._check_profile(space, command)
        self._staged_outputs = self._choose_staged(meta)
        self._dense: dict[int, int] = {}  # where strided arguments lie in staging
        end = self.size
        for index, bound in enumerate(self._bound):
            if bound.strided is not None and index not in self._staged_outputs:
                self._dense[index] = end
                end += _aligned(bound.argument.byte_size)
        self._scratch = np.empty(0, np.uint8)
        if end:
            buffer = space.scratch(end)
            self._scratch = buffer.array
            self.buffer = buffer if self._staged_outputs else None
        self.views = [self._view(index, bound) for index, bound in enumerate(self._bound)]

    @property
    def reads(self) -> list[Range]:
        """The client memory of the inputs."""
        return [bound.range for bound in self._bound if bound.argument.input]

    @property
    def writes(self) -> list[Range]:
        """The client memory of the outputs."""
        return [bound.range for bound in self._bound if not bound.argument.input]

    @property
    def traffic(self) -> tuple[int, int]:
        """Bytes of the inputs and of the outputs, at most the size of the bound memory."""
        sizes = [0, 0]
        for bound in self._bound:
            if not bound.argument.unbounded:
                sizes[not bound.argument.input] += min(bound.argument.byte_size, _length(bound))
        return sizes[0], sizes[1]

    # ------------------------------------------------------------ results in staging

    def check(self, staged: Bytes) -> None:
        """Refuse results with dynamic dimensions if one would overwrite another output."""
        if any(output.shape_at >= 0 for output in self._staged_outputs.values()):
            self._check_outputs([self._used(index, staged) for index in self._outputs])

    def deliver(self, staged: Bytes) -> int:
        """Copy results from staging to the client; return the bytes copied. Repeatable."""
        copied = 0
        for index, (bound, at, _) in self._staged_outputs.items():
            used = self._used(index, staged)
            size = used.end - used.start
            if bound.strided is None:
                np.copyto(bound.memory[:size], staged[at : at + size])
            else:
                size = bound.strided.size
                np.copyto(bound.strided, staged[at : at + size].reshape(bound.strided.shape))
            copied += size
        return copied

    def deliver_shapes(self, staged: Bytes) -> None:
        """Copy the shape tensors of outputs only: the memory of the outputs is too small."""
        for bound, at, _ in self._staged_outputs.values():
            if bound.argument.shape_of >= 0:
                np.copyto(bound.memory, staged[at : at + bound.memory.size])

    # ------------------------------------------------------------ which bytes

    def _minimum(self, index: int) -> Range:
        """Return the bytes that an argument uses with any shape."""
        bound = self._bound[index]
        return bound.range._replace(end=bound.range.start) if bound.argument.is_dynamic else bound.range

    def _used(self, index: int, staged: Bytes) -> Range:
        """Return the bytes that an output uses now; a dynamic shape is known if staged."""
        output = self._staged_outputs.get(index)
        if output is None or output.shape_at < 0:
            return self._minimum(index)
        argument, whole = output.bound.argument, output.bound.range
        tensor = self._bound[self._shape_tensor(index)]
        shape = staged[output.shape_at : output.shape_at + tensor.memory.size].view(np.int32)
        size = math.prod(shape.tolist()) * argument.alignment
        return whole._replace(end=min(whole.end, whole.start + size))

    def _shape_tensor(self, index: int) -> int:
        return next(number for number in self._outputs if self._bound[number].argument.shape_of == index)

    def _choose_staged(self, meta: GraphMeta) -> dict[int, _StagedOutput]:
        """Return the outputs that go through staging, by argument, each dynamic one with its shape tensor.

        They overlap an input, or may grow into another output.
        """
        inputs = _RangeSet(self.reads)
        chosen = {index for index in self._outputs if inputs.overlaps(self._bound[index].range)}
        chosen |= {index for index in self._outputs if self._may_grow_into_another(index)}
        shapes = meta.shape_tensors
        chosen |= {shapes[index] for index in chosen if self._bound[index].argument.is_dynamic}
        at = {}
        for index in sorted(chosen):
            at[index] = self.size
            self.size += _aligned(_length(self._bound[index]))
        return {
            index: _StagedOutput(bound, at[index], at[shapes[index]] if bound.argument.is_dynamic else -1)
            for index, bound in enumerate(self._bound)
            if index in chosen
        }

    def _may_grow_into_another(self, index: int) -> bool:
        """Whether another output lies in the memory that a dynamic output may use."""
        bound = self._bound[index]
        if not bound.argument.is_dynamic:
            return False
        return any(
            bound.range.overlaps(self._bound[other].range) for other in self._outputs if other != index
        )

    # ------------------------------------------------------------ refusals

    def _check_outputs(self, ranges: list[Range]) -> None:
        numbered = sorted(
            (used, index) for index, used in zip(self._outputs, ranges, strict=True) if used.start < used.end
        )
        for (one, first), (other, second) in pairwise(numbered):
            if one.overlaps(other):
                names = [self._bound[index].argument.name for index in sorted((first, second))]
                raise refuse(
                    ZeResult.ERROR_INVALID_ARGUMENT,
                    f"{self._name}, outputs '{names[0]}' and '{names[1]}'",
                    found=f"{min(one.end, other.end) - other.start} bytes of memory that both are bound to",
                    expected="outputs that do not overlap",
                )

    def _check_profile(self, space: AddressSpace, command: cmd.GraphExecute) -> None:
        at = command.profiling
        if at is None:
            return
        profile = space.resolve_target(at, profiling.HEADER.size).range(at.offset, profiling.HEADER.size)
        for index, bound in enumerate(self._bound):
            if profile.overlaps(self._minimum(index)):
                raise refuse(
                    ZeResult.ERROR_INVALID_ARGUMENT,
                    f"{self._name}, profile",
                    found=f"in the memory of argument '{bound.argument.name}'",
                    expected="memory of its own",
                )

    # ------------------------------------------------------------ memory

    def _view(self, index: int, bound: _Bound) -> Bytes:
        """Return the memory that OpenVINO reads or writes for an argument."""
        output = self._staged_outputs.get(index)
        if output is not None:
            return self._scratch[output.at : output.at + _length(bound)]
        if bound.strided is None:
            return bound.memory
        at = self._dense[index]
        between = self._scratch[at : at + bound.argument.byte_size]
        dense = between.reshape(bound.strided.shape)
        if bound.argument.input:
            self.before.append(partial(np.copyto, dense, bound.strided))
        else:
            self.after.append(partial(np.copyto, bound.strided, dense))
        self.staged += bound.strided.size
        return between

    def _bind(
        self,
        space: AddressSpace,
        at: cmd.MemoryAt,
        argument: ArgumentMeta,
        strides: tuple[int, ...] | None,
    ) -> _Bound:
        try:
            size, alignment, steps = _size_in_memory(space, at, argument, strides, self._config)
            find = space.resolve if argument.input else space.resolve_target
            memory = find(at, size, alignment)
        except Refused as error:
            info = error.info
            name = f"{self._name}, argument '{argument.name}', {info.object}"
            raise refuse(
                ZeResult(info.result), name, found=info.found, expected=info.expected, hint=info.hint
            ) from error
        view = memory.array[at.offset : at.offset + size]
        strided = None
        if steps is not None:
            shape = (*argument.shape, alignment)
            strided = np.lib.stride_tricks.as_strided(view, shape, (*steps, 1))
        return _Bound(argument, memory.range(at.offset, size), view, strided)


def argument_ranges(
    space: AddressSpace, command: cmd.GraphExecute, meta: GraphMeta
) -> list[tuple[ArgumentMeta, cmd.MemoryAt, Range]]:
    """Return the arguments of an execution, where they lie, and the bytes they span at most."""
    strides = dict(command.strides)
    found = []
    for index, (at, argument) in enumerate(zip(command.arguments, meta.arguments, strict=True)):
        size = _size_in_memory(space, at, argument, strides.get(index), meta.config)[0]
        found.append((argument, at, space.resolve(at, size).range(at.offset, size)))
    return found


def _size_in_memory(
    space: AddressSpace,
    at: cmd.MemoryAt,
    argument: ArgumentMeta,
    strides: tuple[int, ...] | None,
    config: Mapping[str, str],
) -> tuple[int, int, tuple[int, ...] | None]:
    """Return the most bytes of an argument in client memory, its alignment, and its strides in bytes."""
    if argument.is_dynamic:
        size = min(_dynamic_size(space, at, argument, strides), most_bytes(argument, config))
        return size, argument.alignment, None
    return _extent(argument, strides)


class _RangeSet:
    """A union of byte ranges."""

    def __init__(self, ranges: Iterable[Range]) -> None:
        self._starts: list[tuple[tuple[int, int], int]] = []
        self._ends: list[int] = []
        for file, start, end in sorted(ranges):
            if self._starts and self._starts[-1][0] == file and start <= self._ends[-1]:
                self._ends[-1] = max(self._ends[-1], end)
            else:
                self._starts.append((file, start))
                self._ends.append(end)

    def overlaps(self, other: Range) -> bool:
        """Whether a byte of the range is in the set."""
        index = bisect.bisect_left(self._starts, (other.file, other.end)) - 1
        if index < 0:
            return False
        file, start = self._starts[index]
        return other.overlaps(Range(file, start, self._ends[index]))


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def _length(bound: _Bound) -> int:
    """Return the bytes of an argument in dense memory."""
    return bound.memory.size if bound.strided is None else bound.argument.byte_size


def _dynamic_size(
    space: AddressSpace, at: cmd.MemoryAt, argument: ArgumentMeta, strides: tuple[int, ...] | None
) -> int:
    """Return the size in bytes of the memory for an argument with dynamic dimensions."""
    if strides is not None:
        raise refuse(
            ZeResult.ERROR_INVALID_ARGUMENT,
            "strides",
            found=f"{list(strides)}",
            expected="none with dynamic dimensions",
        )
    return space.resolve(at, 0, argument.alignment).size - at.offset


def _extent(
    argument: ArgumentMeta, strides: tuple[int, ...] | None
) -> tuple[int, int, tuple[int, ...] | None]:
    """Return the span of an argument, its alignment and its strides, in bytes."""
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
    if not argument.byte_size:
        return 0, item, None
    if math.prod(argument.shape) * item != argument.byte_size:
        dense = itertools.accumulate(argument.shape[:0:-1], operator.mul, initial=1)
        if steps[::-1] != tuple(dense):
            raise refuse(
                ZeResult.ERROR_INVALID_ARGUMENT,
                "strides",
                found=f"{list(strides)} elements of {argument.element_type}",
                expected="those of a dense tensor: elements of less than a byte have no addresses",
                hint="copy the tensor into dense memory first",
            )
        return argument.byte_size, item, None
    extent = 1
    for step, dim in sorted(zip(steps, argument.shape, strict=True)):
        if dim > 1 and step < extent and not argument.input:
            raise refuse(
                ZeResult.ERROR_INVALID_ARGUMENT,
                "strides",
                found=f"{list(strides)}: elements that overlap",
                expected="an output of which no two elements share memory",
            )
        extent += (dim - 1) * step
    return extent * item, item, tuple(step * item for step in steps)
