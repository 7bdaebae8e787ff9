"""Ports with dynamic dimensions: tensors of any allowed shape, and the shape tensor that tells the device."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import openvino as ov

from softnpu.driver import Context, ZeError
from softnpu.plugin.errors import InferError, InputError
from softnpu.plugin.signature import PortSpec
from softnpu.plugin.tensors import Shape, Slot, most_elements, reshape, shape_of

EAGER_BYTES = 16 << 20
"""An upper bound of at most this many bytes gets its memory when the request is made."""
FIRST_BYTES = 1 << 20
"""What a port without an upper bound, or with a larger one, begins with; it grows when that is too little."""


def slot_for(context: Context, port: PortSpec, is_input: bool) -> Slot:
    """The slot of a port, by whether it has dynamic dimensions that the device is told."""
    kind = Slot if port.shape_argument < 0 else DynamicSlot
    return kind(context, port, is_input)


class PortTensor(ov.Tensor):  # type: ignore[misc]
    """A port's own tensor. Its shape can be set within the bounds, as far as its memory reaches."""

    port: str
    partial: Any

    @property
    def shape(self) -> Any:
        """The shape now; `InputError` for one that is outside the bounds or too large for the memory."""
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
    """A slot whose tensor may have another shape at every inference.

    Own memory is that of the upper bound, or grows if that is large or missing. A growth replaces the own
    tensor, so a tensor that was asked for before it is not the port's any more.
    """

    def __init__(self, context: Context, port: PortSpec, is_input: bool) -> None:
        self._most = most_elements(port.partial_shape)
        super().__init__(context, port, is_input)
        rank = port.partial_shape.rank.get_length()
        self._checked: Shape = ()
        self._told: npt.NDArray[np.int32] = context.alloc_host(4 * rank).view(np.int32, (rank,))

    def places(self) -> dict[int, Any]:
        return {self.port.argument: self.place, self.port.shape_argument: self._told}

    def set(self, tensor: Any) -> None:
        if tensor is not self.tensor:  # it is smaller than its memory after an inference with a small result
            super().set(tensor)

    def check_shape(self) -> None:
        """Raises `InputError` if the tensor of an input has a shape outside the bounds."""
        shape = self.shape
        if shape != self._checked:
            if not self._takes(shape):
                self._check(self.tensor)
            self._checked = shape

    def tell_shape(self) -> None:
        """Writes the shape of an input that was checked for the device."""
        self._told[:] = self._checked[::-1]

    def stage_out(self) -> int:
        """Gives the tensor of an output the shape of the result; a foreign one its content as well."""
        shape = self._told_shape()
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
        """After a result that did not fit: room for it in own memory; whether there was too little."""
        shape = self._told_shape()
        if self.place is not self._raw or math.prod(shape) * self._type.size <= self._raw.nbytes:
            return False
        self._enlarge(shape, 0)
        return True

    def _told_shape(self) -> Shape:
        return tuple(reversed(self._told.tolist()))

    def _elements_at_first(self) -> int:
        size = int(self._type.size)
        return self._most if 0 < self._most * size <= EAGER_BYTES else FIRST_BYTES // size

    def _own_tensor(self, elements: int) -> Any:
        tensor = PortTensor(self._raw, ov.Shape([elements]), self._type)
        tensor.port = f"{self._kind} '{self.port.name}'"
        tensor.partial = self._partial
        return tensor

    def _enlarge(self, shape: Shape, elements: int) -> None:
        # twice as much: a result that grows step by step is not computed twice at every step
        twice = 2 * self._raw.nbytes // int(self._type.size)
        super()._enlarge(shape, max(elements, min(twice, self._most or twice)))

    def _in_device_memory(self, tensor: Any) -> bool:
        """An output is used in place if it has all the memory that the device might write to."""
        if self._kind == "input":
            return super()._in_device_memory(tensor)
        try:
            block, offset = self._context.memory.resolve("set_tensor", tensor.data)
        except ZeError:
            return False
        room = block.size - offset
        if self._most:
            room = min(room, self._most * int(self._type.size))
        return bool(tensor.byte_size >= room)
