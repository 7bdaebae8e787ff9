"""A call that is prepared once and run often: a kernel on tensors whose places do not change."""

from __future__ import annotations

import os
from typing import NamedTuple

from softnpu.emulator.kernels import abi
from softnpu.emulator.kernels.abi import TensorRecord
from softnpu.emulator.kernels.description import Value
from softnpu.emulator.kernels.errors import Failure, failed
from softnpu.emulator.kernels.instance import Instance
from softnpu.emulator.kernels.linear_memory import PAGE
from softnpu.emulator.kernels.module import KernelModule
from softnpu.emulator.kernels.serving import Place, Ran


class _Bound(NamedTuple):
    """A tensor in linear memory: `mapped` bytes are mapped, the others copied from and to its file."""

    place: Place
    size: int
    at: int
    mapped: int
    copied: memoryview


class PreparedCall:
    """A kernel with its arguments. An instance that was thrown away is replaced at the next run."""

    parts = 1

    def __init__(
        self,
        module: KernelModule,
        implementation: int,
        attributes: list[Value],
        inputs: list[tuple[TensorRecord, Place]],
        outputs: list[tuple[TensorRecord, Place]],
        deadline_ms: int,
    ) -> None:
        """Check the shapes, and bind the tensors. Refuses outputs other than `softnpu_shapes` says."""
        self._module, self._implementation, self._attributes = module, implementation, attributes
        self._tensors = [*inputs, *outputs]
        self._input_count = len(inputs)
        self._deadline_ms = deadline_ms
        described = module.description
        self._function = described.implementations[implementation].run
        self._bounds = [record.shape for record, _ in outputs]
        self._may_shrink = [name in described.dynamic for name in described.outputs]
        self._bind()
        self.staged = sum(len(each.copied) for each in self._bound)

    def _bind(self) -> None:
        instance = self._instance = Instance(self._module, self._deadline_ms)
        records = [record for record, _ in self._tensors]
        inputs, outputs = records[: self._input_count], records[self._input_count :]
        expected, scratch = instance.shapes(self._implementation, inputs, self._attributes)
        for name, given, wanted in zip(self._module.description.outputs, outputs, expected, strict=True):
            if given[:2] != wanted[:2]:
                found = f"output {name}: {given.type} {list(given.shape)}"
                raise failed(Failure.SHAPE, instance.name, found, f"{wanted.type} {list(wanted.shape)}")
        self._scratch = self._room(scratch, "scratch"), scratch
        self._bound = [self._bound_tensor(number) for number in range(len(self._tensors))]
        placed = [record._replace(at=bound.at) for record, bound in zip(records, self._bound, strict=True)]
        self._block = instance.encode(
            placed[: self._input_count], placed[self._input_count :], self._attributes, self._scratch
        )

    def _bound_tensor(self, number: int) -> _Bound:
        record, place = self._tensors[number]
        size = abi.byte_size(record.type, record.shape)
        memory = self._instance.memory
        at = self._room(size, "a tensor")
        mapped = 0 if place.offset % PAGE else size // PAGE * PAGE
        if mapped:
            is_output = number >= self._input_count
            private = self._module.writes_in_bulk and not is_output
            memory.map(at, place.fd, place.offset, mapped, writable=is_output, private=private)
        return _Bound(place, size, at, mapped, memory.view(at + mapped, size - mapped))

    def _room(self, size: int, what: str) -> int:
        at = self._instance.memory.allocate(size)
        if at is None:
            found = f"no room for {what} of {size} bytes"
            raise failed(Failure.MEMORY, self._instance.name, found, "at most 3 GiB of tensors in a call")
        return at

    def run(self, left_ms: int | None = None) -> Ran:
        """Run it once, in less than its deadline if so much is left."""
        if not self._instance.is_usable:
            self._bind()
        instance = self._instance
        for bound in self._bound:
            if bound.copied:
                instance.memory.clear(bound.at + bound.mapped, len(bound.copied))  # with the rest of its page
        for bound in self._bound[: self._input_count]:
            if bound.copied:
                self._copy(bound, len(bound.copied), inward=True)
            if bound.mapped and self._module.writes_in_bulk:
                instance.memory.clear(bound.at, bound.mapped)
        if self._scratch[1]:
            instance.memory.clear(*self._scratch)
        content = instance.run(self._function, self._block, left_ms)
        self._check_inputs()
        staged = self.staged
        smaller = None
        if self._block.has_other_outputs(content):
            smaller = [self._checked(*each) for each in enumerate(self._block.outputs(content))]
        for number, bound in enumerate(self._bound[self._input_count :]):
            size = len(bound.copied)
            if size and smaller is not None:
                record, _ = self._tensors[self._input_count + number]
                size = max(0, abi.byte_size(record.type, smaller[number]) - bound.mapped)
                staged += size - len(bound.copied)
            if size:
                self._copy(bound, size, inward=False)
        return Ran(smaller, staged)

    def _check_inputs(self) -> None:
        """Refuse writes to inputs that did not trap, being in copies of pages."""
        for bound in self._bound[: self._input_count] if self._module.writes_in_bulk else ():
            if bound.mapped and self._instance.memory.is_written(bound.at, bound.mapped):
                raise failed(Failure.BOUNDS, self._instance.name, f"a write to an input, in {self._function}")

    def _copy(self, bound: _Bound, size: int, *, inward: bool) -> None:
        place, view = bound.place, bound.copied[:size]
        call = os.preadv if inward else os.pwritev
        if call(place.fd, [view], place.offset + bound.mapped) != size:
            raise failed(Failure.LOST, self._instance.name, "a tensor's memory has become shorter")

    def _checked(self, number: int, shape: tuple[int, ...] | None) -> tuple[int, ...]:
        """Return the shape of an output after a run; refuse one that it cannot have."""
        bound = self._bounds[number]
        if shape == bound:
            return bound
        name = self._module.description.outputs[number]
        fits = (
            self._may_shrink[number]
            and shape is not None
            and len(shape) == len(bound)
            and all(found <= most for found, most in zip(shape, bound, strict=True))
        )
        if not fits or shape is None:
            found = "an impossible shape" if shape is None else f"{list(shape)}"
            expected = f"at most {list(bound)}" if self._may_shrink[number] else f"{list(bound)}, not dynamic"
            found = f"output {name}: {found} after {self._function}"
            raise failed(Failure.SHAPE, self._instance.name, found, expected)
        return shape
