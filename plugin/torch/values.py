"""Tensors of torch and of numpy as arrays of their own memory, and back. Works without torch."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import numpy.typing as npt
import openvino as ov

from softnpu.plugin.errors import InputError
from softnpu.plugin.signature import PortSpec

Array = npt.NDArray[Any]

_TYPES = {
    "bool": "boolean",
    "bfloat16": "bf16",
    **{f"float{bits}": f"f{bits}" for bits in (16, 32, 64)},
    **{f"{sign}int{bits}": f"{sign or 'i'}{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)},
}
"""OpenVINO's names of element types, by those of torch and numpy."""


def torch_here() -> Any:
    """Return torch if this process has imported it, else None."""
    return sys.modules.get("torch")


def is_torch(value: Any) -> bool:
    """Return whether a value is a tensor of torch."""
    torch = torch_here()
    return torch is not None and isinstance(value, torch.Tensor)


def is_tensor(value: Any) -> bool:
    """Return whether a value can be the argument for a tensor."""
    return isinstance(value, np.ndarray | np.generic) or is_torch(value)


def to_device(value: Any, path: str, port: PortSpec) -> Any:
    """Return an `openvino.Tensor` over the memory of `value`.

    It is copied only if it is not dense, read-only, or on a GPU.
    Raises `InputError` for another type or element type. The request checks shapes.
    """
    if not is_tensor(value):
        raise InputError(
            f"argument '{path}': {type(value).__name__} given; expected a tensor of {describe(port)}"
        )
    kind = element_type(value)
    if kind != port.element_type:
        raise InputError(f"argument '{path}': {kind}{list(value.shape)} given; expected {describe(port)}")
    array = _array(value)
    if not (array.flags.c_contiguous and array.flags.writeable):
        array = np.array(array, order="C")
    return ov.Tensor(array, ov.Shape(array.shape), getattr(ov.Type, port.element_type))


def from_device(array: Array, port: PortSpec, as_torch: bool) -> Any:
    """Return a copy of a result. bf16 becomes f32 in numpy, which lacks the type."""
    bits = port.element_type == "bf16"  # OpenVINO shows its bytes as f16
    if as_torch:
        torch = torch_here()
        tensor = torch.from_numpy(np.array(array.view(np.int16) if bits else array))
        return tensor.view(torch.bfloat16) if bits else tensor
    if not bits:
        return np.array(array)
    wide = np.array(array.view(np.uint16), np.uint32)
    return np.left_shift(wide, 16, out=wide).view(np.float32)


def element_type(value: Any) -> str:
    """Return OpenVINO's name of a tensor's element type, or the library's own if OpenVINO lacks the type."""
    name = str(value.dtype).removeprefix("torch.")
    return _TYPES.get(name, name)


def describe(port: PortSpec) -> str:
    """Return a text such as `f32[1,3,8,8]`."""
    return f"{port.element_type}{port.shape}"


def _array(value: Any) -> Array:
    if not is_torch(value):
        return np.asarray(value) if str(value.dtype) != "bfloat16" else np.asarray(value).view(np.float16)
    torch = torch_here()
    tensor = value.detach().cpu()
    if tensor.layout != torch.strided:
        tensor = tensor.to_dense()
    tensor = tensor.resolve_neg().resolve_conj()
    if tensor.dtype == torch.bfloat16:
        return np.asarray(tensor.contiguous().view(torch.int16).numpy().view(np.float16))
    return np.asarray(tensor.numpy())


def dtype_of(port: PortSpec) -> np.dtype[Any]:
    """Return numpy's type of a port; bf16 as OpenVINO shows it."""
    kind: np.dtype[Any] = np.dtype(getattr(ov.Type, port.element_type).to_dtype())
    return kind


def shared(array: Array, port: PortSpec) -> Any:
    """Return an array in device memory as a tensor of torch over the same memory, if torch is imported."""
    torch = torch_here()
    if torch is None:
        return array
    if port.element_type == "bf16":
        return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(array)
