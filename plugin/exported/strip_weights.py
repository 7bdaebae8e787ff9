"""Splits a native blob with all weights into a small blob and the offsets of its constants in the file.

The small blob is the compiler's, byte for byte, so the imported model is the same image on the device as the
compiled one; not if the compiler has embedded much, as of an ONNX file.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import msgspec

from softnpu.emulator.blob import container
from softnpu.emulator.blob.container import BlobReader, ConstantReference, Section, WeightsReference
from softnpu.emulator.blob.weights import aligned

_MAX_EMBEDDED = 1 << 20
"""Larger totals of constants stay in the file, because embedded ones are copied."""


@dataclass(frozen=True)
class WeightlessBlob:
    """A blob without its large constants, and their `offsets` in the WEIGHTS section of the whole blob."""

    data: bytes
    offsets: tuple[int, ...]


def strip(reader: BlobReader, keep: Collection[int]) -> WeightlessBlob:
    """Return the blob with only those constants whose canonical offset is in `keep`.

    Raises `Refused` for a modified blob.
    """
    reference = reader.weights_reference()
    assert reference is not None
    embedded = [constant for constant in reference.constants if constant.embedded >= 0]
    kept = [constant for constant in embedded if constant.offset in keep]
    if sum(constant.length for constant in kept) > _MAX_EMBEDDED:
        kept = []
    weights, offsets = _packed(reader, kept)
    constants = tuple(
        msgspec.structs.replace(constant, embedded=offsets.get(constant.offset, -1))
        for constant in reference.constants
    )
    stripped = tuple(constant.embedded for constant in embedded if constant.offset not in offsets)
    sections: dict[Section, bytes | memoryview] = {}
    for kind, _, _ in reader.sections:
        section = Section(kind)
        if section is Section.WEIGHTS:
            if weights:
                sections[section] = weights
        elif section is Section.WEIGHTS_REFERENCE:
            sections[section] = msgspec.msgpack.encode(
                WeightsReference(size=reference.size, constants=constants)
            )
        else:
            sections[section] = reader.read(section)
    return WeightlessBlob(container.pack(sections), stripped)


def _packed(reader: BlobReader, kept: list[ConstantReference]) -> tuple[bytes, dict[int, int]]:
    """Pack constants as the compiler does; return them, and the new offset of each by its canonical one."""
    section = reader.unchecked(Section.WEIGHTS)
    data = bytearray()
    offsets: dict[int, int] = {}
    for constant in kept:
        data += bytes(aligned(len(data)) - len(data))
        offsets[constant.offset] = len(data)
        data += section[constant.embedded : constant.embedded + constant.length]
    return bytes(data), offsets
