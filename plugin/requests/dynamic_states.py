"""States with a changing shape: two buffers, each with a shape tensor, in memory that grows by replacement.

An inference writes the whole state into the other buffer, which can therefore be replaced by a larger one
first: growth copies nothing.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import openvino as ov

from softnpu.driver import Allocation, Context, ZeError, ZeResult
from softnpu.emulator.blob.container import GraphMeta, StateMeta
from softnpu.plugin.errors import InputError
from softnpu.plugin.tensors import max_elements, reshape

FIRST_BYTES = 64 << 10
"""The first memory of a buffer, unless the state can never need that much."""
GUESSED_BYTES = 64 << 20
"""Maximum memory for a guess; a larger result gets what it needs."""
_BEGINS = -1
_NO_MEMORY = {ZeResult.ERROR_OUT_OF_DEVICE_MEMORY, ZeResult.ERROR_OUT_OF_HOST_MEMORY}


class DynamicStateBuffers:
    """One variable. `rebind`: command lists refer to memory that has been replaced.

    A shape tensor holds the shape of its buffer's content, innermost dimension first, and -1 for every
    dimension of a state that begins with its initial value: then the model computes that.
    """

    pending = False
    """Its initial value is never computed by a separate graph."""

    def __init__(self, context: Context, meta: StateMeta, graph: GraphMeta) -> None:
        argument = graph.arguments[meta.input]
        shape_tensors = graph.shape_tensors
        self.meta = meta
        self._kept: Any = getattr(ov.Type, argument.element_type)
        self.type: Any = getattr(ov.Type, meta.element_type or argument.element_type)
        self.partial = ov.PartialShape(argument.partial_shape)
        self.rebind = False
        self._context = context
        self._item = int(self._kept.size)
        self._limit = max_elements(self.partial) * self._item  # 0: none
        self._shape_tensors_of = shape_tensors[meta.input], shape_tensors[meta.output]
        rank = len(argument.shape)
        first = min(FIRST_BYTES, self._limit or FIRST_BYTES)
        self._memory = [self._allocate(first) for _ in range(2)]
        self._shapes: list[npt.NDArray[np.int32]] = [
            context.alloc_host(4 * rank).view(np.int32, (rank,)) for _ in range(2)
        ]
        self.reset(0)

    @property
    def shape(self) -> Any:
        """The allowed shapes of the state."""
        return self.partial

    def bindings(self, turn: int) -> dict[int, Any]:
        """Return the memory of its four arguments, for the next inference."""
        read, assigned = self._shape_tensors_of
        self.rebind = False
        return {
            self.meta.input: self._memory[turn],
            read: self._shapes[turn],
            self.meta.output: self._memory[1 - turn],
            assigned: self._shapes[1 - turn],
        }

    def tensor(self, turn: int) -> Any:
        """Return a tensor of the buffer; at first zeros, with 0 for dynamic dimensions.

        It is a copy only if the buffer has another type than the model's variable.
        """
        shape = self._shape(turn)
        memory = self._memory[turn]
        if not math.prod(shape):
            return ov.Tensor(self.type, ov.Shape(shape))
        if _BEGINS in self._shapes[turn]:  # the buffer has what it had before a reset
            zeros = ov.Tensor(self.type, ov.Shape(shape))
            zeros.data.reshape(-1).view(np.uint8)[:] = 0
            return zeros
        tensor = ov.Tensor(memory, ov.Shape([memory.nbytes // self._item]), self._kept)
        reshape(tensor, shape)
        if self._kept == self.type:
            return tensor
        with np.errstate(over="ignore"):
            return ov.Tensor(tensor.data.astype(self.type.to_dtype()))

    def reset(self, turn: int) -> int:
        """Make the next inference begin with the initial value. Copies 0 bytes."""
        self._shapes[turn][:] = _BEGINS
        return 0

    def set(self, turn: int, tensor: Any) -> int:
        """Copy a value in; return the number of copied bytes. Raises `InputError` if it does not fit."""
        if not hasattr(tensor, "element_type") or not hasattr(tensor, "data"):
            raise self._wrong_value(type(tensor).__name__)
        shape = tuple(tensor.shape)
        if tensor.element_type != self.type or not self.partial.compatible(ov.PartialShape(list(shape))):
            raise self._wrong_value(f"{tensor.element_type.to_string()}{list(shape)}")
        data = tensor.data
        if self._kept != self.type:
            data = data.astype(self._kept.to_dtype())
        source = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
        target = self._memory[turn]
        if not source.nbytes or target.ctypes.data != source.ctypes.data:
            self._make_room(turn, source.nbytes)
            self._memory[turn][: source.nbytes] = source
        self._shapes[turn][:] = shape[::-1]
        return int(source.nbytes)

    # ------------------------------------------------------------ memory

    def expect(self, turn: int, rows: int) -> None:
        """Make room for a result with `rows` more entries in its dynamic dimensions, if memory allows."""
        static = math.prod(dim.get_length() for dim in self.partial if dim.is_static) * self._item
        now = math.prod(max(0, dim) for dim in self._shapes[turn].tolist()) * self._item
        guess = now + rows * static
        if self._memory[1 - turn].nbytes >= guess or guess > GUESSED_BYTES:
            return
        try:
            self._make_room(1 - turn, guess)
        except ZeError as error:
            if error.result not in _NO_MEMORY:
                raise

    def grow(self, turn: int) -> bool:
        """Make room for a result that did not fit; return whether there was too little."""
        size = math.prod(self._shapes[1 - turn].tolist()) * self._item
        if size <= self._memory[1 - turn].nbytes or 0 < self._limit < size:
            return False
        self._make_room(1 - turn, size)
        return True

    def _make_room(self, turn: int, size: int) -> None:
        """Replace a buffer that is too small; its content is lost."""
        before = self._memory[turn].nbytes
        if size <= before:
            return
        twice = max(size, 2 * before)
        try:
            self._memory[turn] = self._allocate(min(twice, max(size, self._limit)) if self._limit else twice)
        except ZeError as error:
            if error.result not in _NO_MEMORY or twice == size:
                raise
            self._memory[turn] = self._allocate(size)
        self.rebind = True

    def _allocate(self, size: int) -> npt.NDArray[np.uint8]:
        memory: Allocation = self._context.alloc_host(max(1, size))
        return memory.view(np.uint8, (size,))

    def _shape(self, turn: int) -> tuple[int, ...]:
        shape = tuple(self._shapes[turn][::-1].tolist())
        if _BEGINS not in shape:
            return shape
        return tuple(dim.get_length() if dim.is_static else 0 for dim in self.partial)

    def _wrong_value(self, kind: str) -> InputError:
        expected = f"an openvino.Tensor of {self.type.to_string()}{self.partial}"
        return InputError(f"state '{self.meta.variable}': {kind} given; expected {expected}")
