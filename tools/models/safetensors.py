"""A reader for the safetensors format: 8 bytes of little-endian header length, a JSON header, raw data.

The rules are those of the format's own document: the header is at most 100 MB, starts with `{`, and the
tensors cover the data without holes or overlaps. Every number in a header is checked before it is used, since
a file from the network is somebody else's word.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from softnpu.tools.models.errors import WeightsError

_LENGTH_BYTES: Final = 8
_MAX_HEADER_BYTES: Final = 100_000_000
# numpy's own limit on dimensions; it also keeps a shape of a million entries from costing a big-integer
# product.
_MAX_RANK: Final = 64
_METADATA: Final = "__metadata__"
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


class _TensorRecord(msgspec.Struct, frozen=True):
    """What a header says of one tensor. `data_offsets` are bytes from the end of the header: begin, end."""

    dtype: str
    shape: list[int]
    data_offsets: tuple[int, int]


def read_safetensors(path: Path) -> dict[str, NDArray[Any]]:
    """Map the file and return its tensors by name, as read-only arrays over the mapping.

    Nothing is copied: a page is read when an array is, and the mapping lives as long as any of the arrays.
    Raises `WeightsError`, naming the file and the value, when the file is truncated or its header does not
    hold together; `OSError` when it cannot be opened.
    """
    file_bytes = path.stat().st_size
    if file_bytes < _LENGTH_BYTES:
        raise WeightsError(
            path, f"{file_bytes} bytes are too few for the 8-byte header length; fetch it again"
        )
    mapping = np.memmap(path, dtype=np.uint8, mode="r").view(np.ndarray)
    header_bytes = int.from_bytes(mapping[:_LENGTH_BYTES].tobytes(), "little")
    limit = min(file_bytes - _LENGTH_BYTES, _MAX_HEADER_BYTES)
    if header_bytes > limit:
        raise WeightsError(
            path, f"header length {header_bytes} exceeds {limit}, what the file or format allows"
        )
    data_start = _LENGTH_BYTES + header_bytes
    records = _decode_header(path, mapping[_LENGTH_BYTES:data_start].tobytes())
    _check_layout(path, records, data_bytes=file_bytes - data_start)
    return {name: _view(mapping[data_start:], record) for name, record in records.items()}


def _decode_header(path: Path, header: bytes) -> dict[str, _TensorRecord]:
    if not header.startswith(b"{"):
        raise WeightsError(path, f"header starts with {header[:8]!r}, expected b'{{'")
    try:
        raw = msgspec.json.decode(header, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise WeightsError(path, f"header is not JSON: {error}") from error
    raw.pop(_METADATA, None)
    return {name: _decode_record(path, name, value) for name, value in raw.items()}


def _decode_record(path: Path, name: str, value: msgspec.Raw) -> _TensorRecord:
    try:
        return msgspec.json.decode(value, type=_TensorRecord)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise WeightsError(path, f"tensor {name!r}: header entry {bytes(value)[:200]!r}: {error}") from error


def _check_layout(path: Path, records: dict[str, _TensorRecord], data_bytes: int) -> None:
    """Every tensor has the size of its shape, and together they are exactly the data, end to end."""
    expected_begin = 0
    for name, record in sorted(records.items(), key=lambda item: item[1].data_offsets):
        begin, end = record.data_offsets
        if begin != expected_begin:
            raise WeightsError(path, f"tensor {name!r} begins at byte {begin}, expected {expected_begin}")
        needed = _needed_bytes(path, name, record)
        if end - begin != needed:
            raise WeightsError(
                path,
                f"tensor {name!r}: data_offsets {[begin, end]} hold {end - begin} bytes, "
                f"but {record.dtype} of shape {record.shape} takes {needed}",
            )
        if end > data_bytes:
            raise WeightsError(
                path, f"tensor {name!r} ends at byte {end} of {data_bytes}: the file is truncated"
            )
        expected_begin = end
    if expected_begin != data_bytes:
        raise WeightsError(
            path, f"tensors end at byte {expected_begin}, but the file has {data_bytes} of data"
        )


def _needed_bytes(path: Path, name: str, record: _TensorRecord) -> int:
    dtype = _DTYPES.get(record.dtype)
    if dtype is None:
        raise WeightsError(
            path, f"tensor {name!r}: dtype {record.dtype!r} is not one of {', '.join(_DTYPES)}"
        )
    if len(record.shape) > _MAX_RANK:
        raise WeightsError(
            path, f"tensor {name!r}: {len(record.shape)} dimensions, at most {_MAX_RANK} are allowed"
        )
    if any(extent < 0 for extent in record.shape):
        raise WeightsError(path, f"tensor {name!r}: shape {record.shape} has a negative extent")
    return math.prod(record.shape) * dtype.itemsize


def _view(data: NDArray[np.uint8], record: _TensorRecord) -> NDArray[Any]:
    begin, end = record.data_offsets
    return data[begin:end].view(_DTYPES[record.dtype]).reshape(record.shape)
