"""Weights files in the safetensors format: 8 bytes of little-endian header length, a JSON header, raw data.

The rules are those of the format's specification: the header is at most 100 MB, starts with `{`, and the
tensors cover the data without holes or overlaps. Headers are untrusted: every number is checked before use.
"""

from __future__ import annotations

import math
import os
from typing import Final

import msgspec

ITEM_SIZES: Final = {
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "F8_E5M2": 1, "I64": 8, "I32": 4, "I16": 2,
    "I8": 1, "U64": 8, "U32": 4, "U16": 2, "U8": 1, "BOOL": 1,
}  # fmt: skip
"""Bytes per element by type."""

_LENGTH_BYTES: Final = 8
_MAX_HEADER_BYTES: Final = 100_000_000
# numpy's limit on dimensions; it also avoids a big-integer product over a shape of a million entries
_MAX_RANK: Final = 64
_METADATA: Final = "__metadata__"


class SafetensorsError(ValueError):
    """A file is not a complete safetensors file; the text does not name the file."""


class TensorRange(msgspec.Struct, frozen=True):
    """One tensor: type as named by the format, shape, and bytes `offset` to `offset + length` of the file."""

    dtype: str
    shape: tuple[int, ...]
    offset: int
    length: int


class _TensorRecord(msgspec.Struct, frozen=True):
    """One entry of a header. `data_offsets` are bytes from the end of the header: begin, end."""

    dtype: str
    shape: list[int]
    data_offsets: tuple[int, int]


def tensor_ranges(fd: int) -> dict[str, TensorRange]:
    """Return the range of each tensor in the file, by name; reads only the header.

    Raises `SafetensorsError` with the value for a truncated file or an inconsistent header.
    """
    file_bytes = os.fstat(fd).st_size
    if file_bytes < _LENGTH_BYTES:
        raise SafetensorsError(f"{file_bytes} bytes are too few for the 8-byte header length; fetch it again")
    header_bytes = int.from_bytes(os.pread(fd, _LENGTH_BYTES, 0), "little")
    limit = min(file_bytes - _LENGTH_BYTES, _MAX_HEADER_BYTES)
    if header_bytes > limit:
        raise SafetensorsError(
            f"header length {header_bytes} exceeds {limit}, what the file or format allows"
        )
    start = _LENGTH_BYTES + header_bytes
    records = _decode_header(os.pread(fd, header_bytes, _LENGTH_BYTES))
    _check_layout(records, data_bytes=file_bytes - start)
    return {
        name: TensorRange(record.dtype, tuple(record.shape), start + begin, end - begin)
        for name, record in records.items()
        for begin, end in (record.data_offsets,)
    }


def _decode_header(header: bytes) -> dict[str, _TensorRecord]:
    if not header.startswith(b"{"):
        raise SafetensorsError(f"header starts with {header[:8]!r}, expected b'{{'")
    try:
        raw = msgspec.json.decode(header, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise SafetensorsError(f"header is not JSON: {error}") from error
    raw.pop(_METADATA, None)
    return {name: _decode_record(name, value) for name, value in raw.items()}


def _decode_record(name: str, value: msgspec.Raw) -> _TensorRecord:
    try:
        return msgspec.json.decode(value, type=_TensorRecord)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise SafetensorsError(f"tensor {name!r}: header entry {bytes(value)[:200]!r}: {error}") from error


def _check_layout(records: dict[str, _TensorRecord], data_bytes: int) -> None:
    """Check that every tensor has the size of its shape, and that together they cover the data."""
    expected_begin = 0
    for name, record in sorted(records.items(), key=lambda item: item[1].data_offsets):
        begin, end = record.data_offsets
        if begin != expected_begin:
            raise SafetensorsError(f"tensor {name!r} begins at byte {begin}, expected {expected_begin}")
        needed = _needed_bytes(name, record)
        if end - begin != needed:
            raise SafetensorsError(
                f"tensor {name!r}: data_offsets {[begin, end]} hold {end - begin} bytes, "
                f"but {record.dtype} of shape {record.shape} takes {needed}"
            )
        if end > data_bytes:
            raise SafetensorsError(
                f"tensor {name!r} ends at byte {end} of {data_bytes}: the file is truncated"
            )
        expected_begin = end
    if expected_begin != data_bytes:
        raise SafetensorsError(f"tensors end at byte {expected_begin}, but the file has {data_bytes} of data")


def _needed_bytes(name: str, record: _TensorRecord) -> int:
    size = ITEM_SIZES.get(record.dtype)
    if size is None:
        raise SafetensorsError(
            f"tensor {name!r}: dtype {record.dtype!r} is not one of {', '.join(ITEM_SIZES)}"
        )
    if len(record.shape) > _MAX_RANK:
        raise SafetensorsError(
            f"tensor {name!r}: {len(record.shape)} dimensions, at most {_MAX_RANK} are allowed"
        )
    if any(extent < 0 for extent in record.shape):
        raise SafetensorsError(f"tensor {name!r}: shape {record.shape} has a negative extent")
    return math.prod(record.shape) * size
