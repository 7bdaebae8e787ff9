"""The tensors of a safetensors file as numpy arrays, mapped and not copied."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from softnpu.plugin.models.safetensors import SafetensorsError, tensor_ranges
from softnpu.tools.models.errors import WeightsError

_DTYPES: Final[dict[str, np.dtype[Any]]] = {
    "F64": np.dtype("<f8"),
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "I64": np.dtype("<i8"),
    "I32": np.dtype("<i4"),
    "I16": np.dtype("<i2"),
    "I8": np.dtype("i1"),
    "U64": np.dtype("<u8"),
    "U32": np.dtype("<u4"),
    "U16": np.dtype("<u2"),
    "U8": np.dtype("u1"),
    "BOOL": np.dtype("?"),
}


def read_safetensors(path: Path) -> dict[str, NDArray[Any]]:
    """Map the file and return its tensors by name, as read-only arrays over the mapping.

    Nothing is copied: a page is read when an array is, and the mapping lives as long as any of the arrays.
    Raise `WeightsError`, naming the file and the value, when the file is truncated, its header is
    inconsistent, or numpy lacks a type; `OSError` when it cannot be opened.
    """
    with path.open("rb") as file:
        try:
            places = tensor_ranges(file.fileno())
        except SafetensorsError as error:
            raise WeightsError(path, str(error)) from error
    for name, place in places.items():
        if place.dtype not in _DTYPES:
            raise WeightsError(
                path, f"tensor {name!r}: dtype {place.dtype!r} is not one of {', '.join(_DTYPES)}"
            )
    mapping = np.memmap(path, dtype=np.uint8, mode="r").view(np.ndarray)
    return {
        name: mapping[place.offset : place.offset + place.length]
        .view(_DTYPES[place.dtype])
        .reshape(place.shape)
        for name, place in places.items()
    }
