"""Ports with dynamic dimensions: tensors of any allowed shape, and the shape tensor that the device reads."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import openvino as ov

from softnpu.driver import Context
from softnpu.plugin.errors import InferError, InputError
from softnpu.plugin.signature import PortSpec
from softnpu.plugin.tensors import Shape, Slot, max_elements, reshape, shape_of

EAGER_BYTES = 16 << 20
"""An upper bound of at most this many bytes is allocated when the request is created."""
FIRST_BYTES = 1 << 20
"""The first memory of a port without an upper bound, or with a larger one; it grows on demand."""


def slot_for(context: Context, port: PortSpec, is_input: bool) -> Slot:
    """Return the slot of a port: `DynamicSlot` for one with a shape tensor."""
    kind = Slot if port.shape_argument < 0 else DynamicSlot
    return kind(context, port, is_input)


class PortTensor(ov.Tensor):  # type: ignore[misc]
    """A port's own tensor. Its shape can be set within the bounds and within its memory."""

    def __init__(self, port: str, partial: Any, memory: Any, elements: int, kind: Any) -> None:
        super().__init__(memory, ov.Shape([elements]), kind)
        self.port = port
        self.partial = partial

    @property
    def shape(self) -> Any:
        """The current shape. Setting raises `InputError` outside the bounds, and beyond the memory."""
        return ov.Tensor.shape.fget(self)

    @shape.setter
    def shape(self, shape: Any) -> None:
        wanted = list(shape)
        if not self.partial.compatible(ov.PartialShape(wanted)):
            raise InputError(f"{self.port}: shape {wanted} given; expected {self.partial}")
        try:
            reshape(self, wanted)
        except RuntimeError as failure:
            raise InputError(
                f"{self.port}: shape {wanted} given, too much for the memory of the request's own tensor;"
                " expected a smaller one. Give the array to infer, or set a tensor: the memory grows then"
            ) from failure

    def set_shape(self, shape: Any) -> None:
        """As `shape`."""
        self.shape = shape


class DynamicSlot(Slot):
    """A slot whose tensor may change shape with every inference.

    Its own memory holds the upper bound, or grows if the bound is large or missing. Growth replaces the own
    tensor: one that was returned before no longer belongs to the port.
    """

    def __init__(self, context: Context, port: PortSpec, is_input: bool) -> None:
        self._max_elements = max_elements(port.partial_shape)
        super().__init__(context, port, is_input)
        rank = port.partial_shape.rank.get_length()
        self._checked: Shape = ()
        self._shape_tensor: npt.NDArray[np.int32] = context.alloc_host(4 * rank).view(np.int32, (rank,))

    def bindings(self) -> dict[int, Any]:
        return {self.port.argument: self.memory, self.port.shape_argument: self._shape_tensor}

    def set(self, tensor: Any) -> None:
        # The same tensor keeps its binding: a small result makes its data smaller than the memory behind it.
        if tensor is not self.tensor or self.is_split:
            super().set(tensor)

    def check_shape(self) -> None:
        """Raise `InputError` if an input's tensor has a shape outside the bounds."""
        shape = self.shape
        if shape != self._checked:
            if not self.accepts(shape):
                self._check(self.tensor)
            self._checked = shape

    @property
    def positions(self) -> int:
        """The product of the dynamic dimensions of the current shape."""
        dims = zip(self.shape, self._partial, strict=True)
        return math.prod(size for size, allowed in dims if allowed.is_dynamic)

    def write_shape(self) -> None:
        """Write the checked shape of an input for the device."""
        self._shape_tensor[:] = self._checked[::-1]

    def stage_out(self) -> int:
        """Give an output's tensor the shape of the result; copy the result into a foreign one."""
        shape = self._result_shape()
        if self.shape != shape:
            try:
                reshape(self.tensor, shape)
            except RuntimeError as failure:
                raise InferError(
                    f"output '{self.port.name}': the tensor that was set has no room for the result, shape"
                    f" {list(shape)}; expected a larger one"
                ) from failure
        if self._foreign and shape_of(self._own) != shape:
            reshape(self._own, shape)
        return super().stage_out()

    def grow(self) -> bool:
        """Make room in own memory for a result that did not fit; return whether there was too little."""
        shape = self._result_shape()
        if self.memory is not self._raw or math.prod(shape) * self._type.size <= self._raw.nbytes:
            return False
        self._enlarge(shape, 0)
        return True

    def _result_shape(self) -> Shape:
        return tuple(reversed(self._shape_tensor.tolist()))

    def _initial_elements(self) -> int:
        size = int(self._type.size)
        return self._max_elements if 0 < self._max_elements * size <= EAGER_BYTES else FIRST_BYTES // size

    def _own_tensor(self, elements: int) -> Any:
        return PortTensor(self.name, self._partial, self._raw, elements, self._type)

    def _enlarge(self, shape: Shape, elements: int) -> None:
        # twice as much, so that a gradually growing result is not computed twice at every step
        twice = 2 * self._raw.nbytes // int(self._type.size)
        super()._enlarge(shape, max(elements, min(twice, self._max_elements or twice)))

    def _in_device_memory(self, tensor: Any) -> bool:
        """Return whether a tensor is used in place: an output needs all memory that the device may write."""
        if self._is_input:
            return super()._in_device_memory(tensor)
        room = self._room(tensor)
        if self._max_elements:
            room = min(room, self._max_elements * int(self._type.size))
        return 0 <= room <= int(tensor.byte_size)
