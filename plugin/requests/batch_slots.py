"""Ports with a batch: tensors with any number of samples, and the memory of each sample."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import openvino as ov

from softnpu.driver import Context
from softnpu.plugin.errors import InputError
from softnpu.plugin.requests.dynamic_tensors import EAGER_BYTES, FIRST_BYTES, PortTensor
from softnpu.plugin.requests.executable import Strided
from softnpu.plugin.signature import PortSpec
from softnpu.plugin.tensors import Shape, Slot, max_elements


class BatchSlot(Slot):
    """A slot whose tensor has any number of samples, side by side on `port.batch_axis`.

    The default tensor has the batch of the model, or no samples if that is dynamic.
    """

    def __init__(self, context: Context, port: PortSpec, is_input: bool) -> None:
        dims = list(port.partial_shape)
        self._is_static = dims[port.batch_axis].is_static
        if self._is_static:
            # a static batch is the default of a request, not a bound: the device does not know it
            dims[port.batch_axis] = ov.Dimension(-1)
        self._accepted: Any = ov.PartialShape(dims)
        super().__init__(context, port, is_input)

    @property
    def is_own(self) -> bool:
        """Whether the tensor is the slot's own, not one set by the user."""
        return self.tensor is self._own

    def samples_in(self, shape: Sequence[int]) -> int:
        """Return the number of samples of a tensor with this shape.

        Raises `InputError` for none and for a fraction.
        """
        length, per_sample = shape[self.port.batch_axis], self.port.per_sample
        if length < per_sample or length % per_sample:
            raise InputError(
                f"{self.name}: shape {list(shape)}, {length} on axis {self.port.batch_axis}, that of the"
                f" batch; expected {'at least 1' if per_sample == 1 else f'a multiple of {per_sample}'}."
                + ("" if length else " Set a tensor, or give arrays to infer")
            )
        return length // per_sample

    def shape_for(self, count: int) -> Shape:
        """Return the shape of a tensor with `count` samples."""
        shape = [dim.get_length() if dim.is_static else 0 for dim in self._accepted]
        shape[self.port.batch_axis] = count * self.port.per_sample
        return tuple(shape)

    def part(self, sample: int) -> Any:
        """Return the memory of one sample: an address, with strides if it is not contiguous."""
        shape, axis = self.shape, self.port.batch_axis
        inner = math.prod(shape[axis + 1 :])
        address = self.memory.ctypes.data + sample * self.port.per_sample * inner * int(self._type.size)
        if math.prod(shape[:axis]) == 1:
            return address
        strides = [math.prod(shape[at + 1 :]) for at in range(len(shape))]
        return Strided(address, tuple(reversed(strides)))

    def accepts(self, shape: Sequence[int]) -> bool:
        return len(shape) == len(self._accepted) and bool(
            self._accepted.compatible(ov.PartialShape(list(shape)))
        )

    def _check(self, tensor: Any) -> None:
        super()._check(tensor)
        self.samples_in(tuple(tensor.shape))

    def checked(self, value: Any) -> Any:
        accepted = super().checked(value)
        self.samples_in(tuple(accepted.shape))
        return accepted

    def _initial_elements(self) -> int:
        if self._is_static:
            return 0
        limit, size = max_elements(self._partial), int(self._type.size)
        if 0 < limit * size <= EAGER_BYTES:
            return limit
        return max(FIRST_BYTES // size, math.prod(self.shape_for(1)))

    def _own_tensor(self, elements: int) -> Any:
        return PortTensor(self.name, self._accepted, self._raw, elements, self._type)

    def _expected_shape(self) -> Any:
        return self._accepted
