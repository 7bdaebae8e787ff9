"""A native blob with all weights, taken apart: a small blob, and where in the file its constants lie.

The small blob is the one that the compiler made, byte for byte, so that the imported model is the same image
on the device as the compiled one.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import msgspec

from softnpu.emulator.blob import container
from softnpu.emulator.blob.container import BlobReader, ConstantReference, Section, WeightsReference
from softnpu.emulator.blob.weights import aligned

_MOST_INSIDE = 16 << 20
"""Constants of more bytes stay in the file, even if the compiler had them inside: they would be copied."""


@dataclass(frozen=True)
class WeightlessBlob:
    """A blob whose large constants are outside; `places` has their offsets in the old WEIGHTS section."""

    data: bytes
    places: tuple[int, ...]


def lighten(reader: BlobReader, inside: Collection[int]) -> WeightlessBlob:
    """The blob without its WEIGHTS section, but for the constants with the canonical offsets `inside`.

    Raises `Refused` for a blob that was changed.
    """
    reference = reader.weights_reference()
    assert reference is not None
    embedded = [constant for constant in reference.constants if constant.embedded >= 0]
    kept = [constant for constant in embedded if constant.offset in inside]
    if sum(constant.length for constant in kept) > _MOST_INSIDE:
        kept = []
    offsets = {constant.offset for constant in kept}
    chunks, moved = _packed(reader, kept)
    constants = tuple(_moved(constant, moved) for constant in reference.constants)
    places = tuple(constant.embedded for constant in embedded if constant.offset not in offsets)
    sections: dict[Section, bytes | memoryview] = {}
    for kind, _, _ in reader.sections:
        section = Section(kind)
        if section is Section.WEIGHTS:
            if chunks:
                sections[section] = chunks
        elif section is Section.WEIGHTS_REFERENCE:
            sections[section] = msgspec.msgpack.encode(
                WeightsReference(size=reference.size, constants=constants)
            )
        else:
            sections[section] = reader.read(section)
    return WeightlessBlob(container.pack(sections), places)


def _packed(reader: BlobReader, kept: list[ConstantReference]) -> tuple[bytes, dict[int, int]]:
    """The constants one behind the other, as the compiler packs them, and where each lies then."""
    section = reader.unchecked(Section.WEIGHTS)
    data = bytearray()
    moved: dict[int, int] = {}
    for constant in kept:
        data += bytes(aligned(len(data)) - len(data))
        moved[constant.offset] = len(data)
        data += section[constant.embedded : constant.embedded + constant.length]
    return bytes(data), moved


def _moved(constant: ConstantReference, moved: dict[int, int]) -> ConstantReference:
    return msgspec.structs.replace(constant, embedded=moved.get(constant.offset, -1))
