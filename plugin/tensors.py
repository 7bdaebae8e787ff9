"""One argument of an infer request: its tensor, and where the device finds it."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import openvino as ov

from softnpu.driver import Allocation, Context, ZeError
from softnpu.emulator.interface.blob import ArgumentMeta
from softnpu.plugin.errors import InputError
from softnpu.plugin.ports import element_type


class Slot:
    """Device memory for one input or output, and the tensor that the user sees.

    A tensor of the user in device memory replaces the slot's own. A foreign one is copied before or
    after each inference; how many bytes is returned, to be counted.
    """

    def __init__(self, context: Context, meta: ArgumentMeta) -> None:
        self._context = context
        self._meta = meta
        self._type: Any = element_type(meta)
        memory: Allocation = context.alloc_host(max(1, meta.byte_size))
        self._raw: npt.NDArray[np.uint8] = memory.view(np.uint8, (meta.byte_size,))
        self._own: Any = ov.Tensor(self._raw, ov.Shape(meta.shape), self._type)
        self._foreign = False
        self.tensor: Any = self._own
        self.place: Any = self._raw

    def set(self, tensor: Any) -> bool:
        """Uses another tensor from now on; True when the device has to be told of another place."""
        self._check(tensor)
        before = self.place
        in_place = self._in_device_memory(tensor)
        self._foreign = not in_place
        self.tensor = tensor
        self.place = tensor.data if in_place else self._raw
        return self.place is not before

    def checked(self, value: Any) -> Any:
        """`value` as a tensor in device memory, or as an array to be copied. Raises `InputError`."""
        if isinstance(value, ov.Tensor):
            self._check(value)
            return value
        if not isinstance(value, np.ndarray):
            value = np.asarray(value, dtype=self._type.to_dtype())
        expected = np.dtype(self._type.to_dtype())
        if value.dtype != expected or tuple(value.shape) != self._meta.shape:
            raise self._mismatch(f"{value.dtype}{list(value.shape)}", f"{expected}")
        return value

    def fill(self, array: npt.NDArray[Any]) -> int:
        """Copies an array into the tensor; bytes that were copied (0 if it is that memory already)."""
        target = self.tensor.data
        if _same_memory(target, array):
            return 0
        np.copyto(target, array)
        return int(array.nbytes)

    def stage_in(self) -> int:
        """Before an inference: brings a foreign tensor into device memory."""
        if not self._foreign:
            return 0
        np.copyto(self._own.data, self.tensor.data)
        return self._meta.byte_size

    def stage_out(self) -> int:
        """After an inference: brings the result into a foreign tensor."""
        if not self._foreign:
            return 0
        np.copyto(self.tensor.data, self._own.data)
        return self._meta.byte_size

    def _check(self, tensor: Any) -> None:
        if tensor.element_type != self._type or tuple(tensor.shape) != self._meta.shape:
            raise self._mismatch(
                f"{tensor.element_type.to_string()}{list(tensor.shape)}", self._meta.element_type
            )

    def _mismatch(self, found: str, expected_type: str) -> InputError:
        kind = "input" if self._meta.input else "output"
        return InputError(
            f"{kind} '{self._meta.name}': {found} given; expected {expected_type}{list(self._meta.shape)}"
        )

    def _in_device_memory(self, tensor: Any) -> bool:
        try:
            data = tensor.data
            block, offset = self._context.memory.find("set_tensor", data)
        except ZeError:
            return False
        return block.size - offset >= self._meta.byte_size


def _same_memory(one: npt.NDArray[Any], other: npt.NDArray[Any]) -> bool:
    return one.ctypes.data == other.ctypes.data and one.strides == other.strides
