"""One port of an infer request: its tensor, and the memory that the device uses for it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import openvino as ov

from softnpu.driver import Allocation, Context, ZeError
from softnpu.driver.memory import locate
from softnpu.plugin import tensor_batch
from softnpu.plugin.errors import InputError
from softnpu.plugin.given_inputs import check_type, converted
from softnpu.plugin.ports import bytes_of, element_type
from softnpu.plugin.remote.remote_tensor import RemoteTensor
from softnpu.plugin.signature import PortSpec

Shape = tuple[int, ...]


class Slot:
    """Device memory for one input or output, and the tensor that the user sees.

    A user's tensor in device memory replaces the slot's own. A foreign one is copied before or after each
    inference; methods return the number of copied bytes, for the count. `rebind` says that command lists
    refer to other memory; recording a new one clears it.
    """

    def __init__(self, context: Context, port: PortSpec, is_input: bool) -> None:
        self._context = context
        self._is_input = is_input
        self.name = f"{'input' if is_input else 'output'} '{port.name}'"
        self._partial: Any = port.partial_shape
        self._type: Any = element_type(port)
        self._is_packed = self._type.bitwidth < 8  # several elements in a byte: numpy has no such types
        self._is_of_numpy = ov.Type(self._type.to_dtype()) == self._type
        self._foreign = False
        self._samples: Sequence[Any] = ()  # foreign ones
        self.is_split = False  # its batch was given as several tensors
        self.port = port
        self._reserve(_initial_shape(self._partial), self._initial_elements())
        self.tensor: Any = self._own
        self.memory: Any = self._raw
        self.rebind = True

    @property
    def shape(self) -> Shape:
        """The current shape of the tensor."""
        return tuple(self.tensor.shape) if self._is_packed else shape_of(self.tensor)

    @property
    def whole(self) -> Any:
        """The tensor. Raises `InputError` if there are several, as OpenVINO does."""
        if self.is_split:
            raise InputError(f"{self.name}: get_tensor after set_tensors with several; expected one tensor")
        return self.tensor

    def set(self, tensor: Any) -> None:
        """Use another tensor from now on. Raises `InputError` if it does not fit the port."""
        self._check(tensor)
        self._samples, self.is_split = (), False
        self._foreign = not self._in_device_memory(tensor)
        if self._foreign:
            self._resize_own(tuple(tensor.shape))
        self.tensor = tensor
        self._bind(self._raw if self._foreign else tensor.data)

    def set_samples(self, tensors: Sequence[Any]) -> None:
        """Use several tensors, one for each sample of the batch. Raises `InputError` if they do not fit.

        They are used in place if they follow each other in device memory, else copied before inferences.
        """
        shape = tensor_batch.whole_shape(self.name, self.port, tensors)
        for tensor in tensors:
            if isinstance(tensor, RemoteTensor):
                tensor.check_usable(self._context, self.name, self._is_input)
        kind = tensors[0].element_type
        if kind != self._type or not self.accepts(shape) or self._is_packed:
            packed = " in one tensor" if self._is_packed else ""
            raise self._mismatch(f"{kind.to_string()}{list(shape)}", f"{self.port.element_type}", packed)
        memory = tensor_batch.adjacent(self._context, tensors)
        if memory is None:
            self.use_own(shape)
            self._foreign, self._samples = True, list(tensors)
        else:
            self.set(ov.Tensor(memory, ov.Shape(shape), self._type))
        self.is_split = True

    def checked(self, value: Any) -> Any:
        """Return `value` as a tensor in device memory, or as an array to be copied. Raises `InputError`."""
        if isinstance(value, ov.Tensor):
            self._check(value)
            return value
        check_type(value, self.name)
        expected = np.dtype(self._type.to_dtype())
        array = np.asarray(value)
        if self._is_packed:
            packed = f"an openvino.Tensor of {self.port.element_type}"
            raise self._mismatch(f"an array of {array.dtype}", packed)
        if array.ndim == 0 and not self.accepts(()):
            array = np.full(self._ones(), array)  # a number, as OpenVINO takes it
        fitting: npt.NDArray[Any] | None = array
        if array.dtype != expected:
            # a bf16 port takes the bits of f16, as in OpenVINO
            fitting = converted(array, expected) if self._is_of_numpy else None
        if fitting is None or not self.accepts(array.shape):
            values = ", in which all values fit" if fitting is None else ""
            raise self._mismatch(f"{array.dtype}{list(array.shape)}", f"{expected}", values)
        return fitting

    def fill(self, array: npt.NDArray[Any]) -> int:
        """Copy an array into the tensor; return the number of copied bytes (0 if it is the same memory)."""
        if self.is_split:
            self.use_own(array.shape)
        target = self.tensor.data
        if _same_memory(target, array):
            return 0
        if target.shape != array.shape:
            self.use_own(array.shape)
            target = self.tensor.data
        np.copyto(target, array)
        return int(array.nbytes)

    def share(self, array: npt.NDArray[Any]) -> int:
        """Use an array as the tensor from now on; return the number of copied bytes.

        As in OpenVINO, a read-only or non-contiguous one is copied once instead.
        """
        if _same_memory(self.tensor.data, array):
            return 0
        if array.flags.c_contiguous and array.flags.writeable and self._is_of_numpy:
            self.set(ov.Tensor(array, shared_memory=True))
            return 0
        self.use_own(array.shape)
        np.copyto(self.tensor.data, array)
        return int(array.nbytes)

    def use_own(self, shape: Sequence[int]) -> None:
        """Use the slot's own tensor again, in this shape."""
        self._resize_own(tuple(shape))
        self._foreign, self._samples, self.is_split = False, (), False
        self.tensor = self._own
        self._bind(self._raw)

    def stage_in(self) -> int:
        """Copy a foreign tensor into device memory before an inference."""
        if not self._foreign:
            return 0
        self._resize_own(self.shape)
        if self._samples:
            np.concatenate([sample.data for sample in self._samples], out=self._own.data)
        else:
            np.copyto(self._own.data, self.tensor.data)
        return int(self.tensor.byte_size)

    def stage_out(self) -> int:
        """Copy the result into a foreign tensor after an inference."""
        if not self._foreign:
            return 0
        np.copyto(self.tensor.data, self._own.data)
        return int(self.tensor.byte_size)

    def bindings(self) -> dict[int, Any]:
        """Return the memory of the port's graph arguments, by their index."""
        return {self.port.argument: self.memory}

    def _initial_elements(self) -> int:
        return max_elements(self._partial)

    def _own_tensor(self, elements: int) -> Any:
        """Return a tensor on the slot's own memory."""
        return ov.Tensor(self._raw, ov.Shape([elements]), self._type)

    def _bind(self, memory: Any) -> None:
        self.rebind = self.rebind or memory.ctypes.data != self.memory.ctypes.data
        self.memory = memory

    def _reserve(self, shape: Shape, elements: int) -> None:
        """Allocate memory for `elements`, and make a tensor of `shape` in it."""
        elements = max(math.prod(shape), elements)
        size = bytes_of(self._type, elements)
        allocation: Allocation = self._context.alloc_host(max(1, size))
        self._raw: npt.NDArray[np.uint8] = allocation.view(np.uint8, (size,))
        self._own: Any = self._own_tensor(elements)
        reshape(self._own, shape)

    def _resize_own(self, shape: Shape) -> None:
        if shape_of(self._own) == shape:
            return
        if bytes_of(self._type, math.prod(shape)) <= self._raw.nbytes:
            reshape(self._own, shape)
        else:
            self._enlarge(shape, 0)

    def _enlarge(self, shape: Shape, elements: int) -> None:
        """Replace own memory by memory for at least `elements`. Its content is lost."""
        replaced = self._own
        self._reserve(shape, elements)
        if self.tensor is replaced:
            self.tensor = self._own
        if self.tensor is self._own or self._foreign:
            self._bind(self._raw)

    def accepts(self, shape: Sequence[int]) -> bool:
        """Return whether a tensor may have this shape."""
        return bool(self._partial.compatible(ov.PartialShape(list(shape))))

    def _check(self, tensor: Any) -> None:
        if isinstance(tensor, RemoteTensor):
            tensor.check_usable(self._context, self.name, self._is_input)
        if tensor.element_type != self._type or not self.accepts(tuple(tensor.shape)):
            tensor_type = f"{tensor.element_type.to_string()}{list(tensor.shape)}"
            raise self._mismatch(tensor_type, self.port.element_type)

    def _mismatch(self, tensor_type: str, element_type: str, more: str = "") -> InputError:
        expected = f"{element_type}{self._expected_shape()}"
        return InputError(f"{self.name}: {tensor_type} given; expected {expected}{more}")

    def _ones(self) -> Shape:
        """Return the shape of a tensor with one element."""
        return () if self._partial.rank.is_dynamic else (1,) * len(self._partial)

    def _expected_shape(self) -> Any:
        return list(self._partial.to_shape()) if self._partial.is_static else self._partial

    def _in_device_memory(self, tensor: Any) -> bool:
        return self._room(tensor) >= int(tensor.byte_size)

    def _room(self, tensor: Any) -> int:
        """Return the bytes from a tensor's begin to the end of its device memory; -1 for other memory."""
        try:
            block, offset = locate(self._context, "set_tensor", tensor.data)
        except ZeError:
            return -1
        return block.size - offset


def _initial_shape(partial: Any) -> Shape:
    """Return the shape of a new request's tensor: 0 for a dynamic dimension, as in OpenVINO."""
    if partial.rank.is_dynamic:
        return (0,)
    return tuple(dim.get_length() if dim.is_static else 0 for dim in partial)


def reshape(tensor: Any, shape: Sequence[int]) -> None:
    """Give a tensor a shape that fits its memory, without the checks of `PortTensor`."""
    ov.Tensor.shape.fset(tensor, ov.Shape(shape))


def shape_of(tensor: Any) -> Shape:
    """Return the shape of an unpacked tensor, from its array: an `openvino.Shape` takes 20 us."""
    return tuple(tensor.data.shape)


def max_elements(partial: Any) -> int:
    """Return the elements of the largest shape; 0 without an upper bound."""
    if partial.rank.is_dynamic:
        return 0
    sizes = [dim.get_max_length() for dim in partial]
    return 0 if any(size < 0 for size in sizes) else math.prod(sizes)


def _same_memory(one: npt.NDArray[Any], other: npt.NDArray[Any]) -> bool:
    return one.ctypes.data == other.ctypes.data and one.strides == other.strides and one.shape == other.shape
