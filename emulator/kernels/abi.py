"""The records of `softnpu_kernel.h`, as bytes: the call, its tensors and attributes."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from softnpu.emulator.kernels.description import ABI, ELEMENT_SIZES, Value

MAX_RANK: Final = 8
_TYPE_NUMBERS: Final = {name: number for number, name in enumerate(ELEMENT_SIZES, 1)}
_CALL: Final = struct.Struct("<12I")
_TENSOR: Final = struct.Struct(f"<4I{MAX_RANK}q{MAX_RANK}q")
_ATTRIBUTE: Final = struct.Struct("<4I")
_CALL_ROOM: Final = 64
_ERROR_AT, _SCRATCH_AT = 28, 32
_INTEGERS, _NUMBERS, _TEXT = 1, 2, 3


class TensorRecord(NamedTuple):
    """A tensor as a kernel sees it; `at` is its address in linear memory, 0 for none."""

    type: str
    shape: tuple[int, ...]
    at: int = 0


def byte_size(type: str, shape: Sequence[int]) -> int:
    """Return the bytes of a dense tensor."""
    size = ELEMENT_SIZES[type]
    for extent in shape:
        size *= extent
    return size


class Block(NamedTuple):
    """The records of one call in linear memory, from `at` on; `outputs_at` counts from there."""

    at: int
    content: bytes
    outputs_at: int

    def outputs(self, content: bytes) -> list[tuple[int, ...] | None]:
        """Return the shapes of the outputs in the block's bytes after a call; None for an impossible one."""
        shapes: list[tuple[int, ...] | None] = []
        for at in range(self.outputs_at, self.outputs_at + self._output_count * _TENSOR.size, _TENSOR.size):
            _, _, rank, _, *extents = _TENSOR.unpack_from(content, at)
            shape = tuple(extents[:rank])
            shapes.append(shape if rank <= MAX_RANK and all(0 <= each < 1 << 31 for each in shape) else None)
        return shapes

    def has_other_outputs(self, content: bytes) -> bool:
        """Whether a call has changed the records of its outputs."""
        return content[self.outputs_at :] != self.content[self.outputs_at : len(content)]

    @property
    def _output_count(self) -> int:
        return int(_CALL.unpack_from(self.content)[2])

    @property
    def outputs_size(self) -> int:
        """Return the bytes of the block to read after a call: up to the end of the outputs."""
        return self.outputs_at + self._output_count * _TENSOR.size

    @staticmethod
    def error_pointer(content: bytes) -> int:
        """Return the address of the kernel's message; 0 for none."""
        return int(struct.unpack_from("<I", content, _ERROR_AT)[0])

    @staticmethod
    def scratch_size(content: bytes) -> int:
        """Return the bytes of scratch that the kernel has asked for."""
        return int(struct.unpack_from("<I", content, _SCRATCH_AT + 4)[0])


def encode(
    at: int,
    inputs: Sequence[TensorRecord],
    outputs: Sequence[TensorRecord],
    attributes: Sequence[tuple[str, Value]],
    *,
    scratch: tuple[int, int] = (0, 0),
) -> Block:
    """Return the block of a call at an address; `scratch`: address and size."""
    inputs_at = _CALL_ROOM
    outputs_at = inputs_at + len(inputs) * _TENSOR.size
    attributes_at = outputs_at + len(outputs) * _TENSOR.size
    values_at = -(-(attributes_at + len(attributes) * _ATTRIBUTE.size) // 8) * 8
    records, values = bytearray(), bytearray()
    for name, value in attributes:
        kind, count, content = _encoded(value)
        content_at = at + values_at + len(values)
        values += content + bytes(-len(content) % 8)
        name_at = at + values_at + len(values)
        text = name.encode() + b"\0"
        values += text + bytes(-len(text) % 8)
        records += _ATTRIBUTE.pack(name_at, kind, content_at, count)
    counts = (ABI, len(inputs), len(outputs), len(attributes))
    places = (at + inputs_at, at + outputs_at, at + attributes_at)
    call = _CALL.pack(*counts, *places, 0, *scratch, 0, 0)
    tensors = b"".join(map(_tensor, (*inputs, *outputs)))
    head = call.ljust(_CALL_ROOM, b"\0") + tensors + records
    return Block(at, head.ljust(values_at, b"\0") + values, outputs_at)


def _tensor(record: TensorRecord) -> bytes:
    strides, stride = [], ELEMENT_SIZES[record.type]
    for extent in reversed(record.shape):
        strides.append(stride)
        stride *= extent
    missing = [0] * (MAX_RANK - len(record.shape))
    numbers = (record.at, _TYPE_NUMBERS[record.type], len(record.shape), 0)
    return _TENSOR.pack(*numbers, *record.shape, *missing, *reversed(strides), *missing)


def _encoded(value: Value) -> tuple[int, int, bytes]:
    """Return kind, count and bytes of a value, as `Description.complete` returns it: numbers are floats."""
    if isinstance(value, str):
        text = value.encode()
        return _TEXT, len(text), text + b"\0"
    values = value if isinstance(value, list) else [value]
    if not any(isinstance(each, float) for each in values):
        return _INTEGERS, len(values), struct.pack(f"<{len(values)}q", *values)
    return _NUMBERS, len(values), struct.pack(f"<{len(values)}d", *values)
