"""The metadata of an exported model, which follows the driver's blob in the file.

    the driver's native blob      from byte 0, padded to whole pages with zeros
    further blobs                 the same, each from a page on; the metadata lists them
    metadata                      msgpack of `Metadata`
    trailer, the last 64 bytes    metadata length u64 | file length u64 | major u16 | minor u16 | reserved 4 |
                                  blake3 of metadata and trailer with this field zero, 32 bytes | "SNPUMETA"

A reader starts from the end of the file and need not understand blobs. The metadata has the digest of each
blob's header, which has the digests of all sections, so a change of any byte is detected.

A reader accepts its own major and a minor up to its own: fields missing in older metadata have defaults. A
new field here or in `Signature` requires a higher `MINOR`, and a file of that version in tests/plugin/data.

    1.0    versions, ports, properties, blobs, requirements
    1.1    batch and dynamic shapes of ports, further blobs, weights outside of the file, texts of programs
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

import msgspec
from blake3 import blake3

from softnpu.plugin.errors import BlobError
from softnpu.plugin.loaded_model import OriginSource
from softnpu.plugin.signature import Signature

MAGIC: Final = b"SNPUMETA"
ENCRYPTED: Final = b"SNPUCRYP"
"""What an encrypted file ends with, see `encryption`."""
MAJOR: Final = 1
MINOR: Final = 1
MAIN: Final = "main"
INITIAL: Final = "initial"
"""The blob that computes initial values of states."""
_TRAILER: Final = struct.Struct("<QQHH4x32s8s")
TRAILER_SIZE: Final = _TRAILER.size
_MAX_BYTES: Final = 256 << 20


class BlobPart(msgspec.Struct, frozen=True, kw_only=True):
    """One native blob of the file. `digest` is the one in its header, which covers all of it."""

    kind: str
    offset: int
    size: int
    digest: bytes


class WeightsOrigin(msgspec.Struct, frozen=True, kw_only=True):
    """The origin of the constants outside of the blob.

    `offsets` has, for each of these constants in order, its offset in the weights space of `sources` (see
    `emulator.blob.weights`); empty if unknown. `model` is the model's file, empty for one built by a program:
    it has the constants that were in no weights file.
    """

    sources: tuple[OriginSource, ...]
    offsets: tuple[int, ...] = msgspec.field(default=(), name="places")
    model: str = ""


class Metadata(msgspec.Struct, frozen=True, kw_only=True):
    """The description of an exported model.

    `openvino`, `plugin` and `compiler` are versions, `properties` those of the compilation, as texts.
    `requirements` is RUNTIME_REQUIREMENTS. `embedded` are the canonical offsets of constants inside the
    compiled blob. `weights` is None when the file has all weights. `extra` has texts of programs by name.
    """

    openvino: str
    plugin: str
    compiler: str
    signature: Signature
    properties: dict[str, str]
    blobs: tuple[BlobPart, ...]
    requirements: str
    embedded: tuple[int, ...] = msgspec.field(default=(), name="inside")
    weights: WeightsOrigin | None = None
    extra: dict[str, str] = {}

    def part(self, kind: str) -> BlobPart | None:
        """Return the blob of this kind."""
        return next((part for part in self.blobs if part.kind == kind), None)


def encode(metadata: Metadata, offset: int) -> bytes:
    """Encode metadata and trailer, for the end of a file with `offset` bytes before them."""
    body = msgspec.msgpack.encode(metadata)
    return body + _trailer(body, offset + len(body) + TRAILER_SIZE, MAJOR, MINOR)


def has_trailer(end: bytes) -> bool:
    """Return whether a file that ends with these bytes has metadata, valid or not."""
    return end.endswith(MAGIC)


def body_length(end: bytes, length: int, name: str) -> int:
    """Return the length of the metadata, from the trailer `end` of a file with `length` bytes.

    Raises `BlobError`: no metadata, an unsupported version, or a truncated file.
    """
    if len(end) < TRAILER_SIZE or not has_trailer(end):
        raise BlobError(f"{name}: no metadata at its end; expected a file that export_model wrote")
    body, total, major, minor, _, _ = _TRAILER.unpack(end[-TRAILER_SIZE:])
    if major != MAJOR or minor > MINOR:
        raise BlobError(
            f"{name}: metadata of version {major}.{minor}; expected {MAJOR}.0 to {MAJOR}.{MINOR}. "
            + ("Update softnpu, or export the model again" if major >= MAJOR else "Export the model again")
        )
    if total != length:
        raise BlobError(f"{name}: {length} bytes; expected {total}, as its metadata says. Copy it again")
    if body > min(length - TRAILER_SIZE, _MAX_BYTES):
        raise BlobError(f"{name}: metadata of {body} bytes; expected at most {length - TRAILER_SIZE}")
    return int(body)


def version(end: bytes) -> str:
    """Return the version of the metadata in a file that ends with these bytes."""
    _, _, major, minor, _, _ = _TRAILER.unpack(end[-TRAILER_SIZE:])
    return f"{major}.{minor}"


def decode(body: bytes, end: bytes, name: str) -> Metadata:
    """Decode the metadata `body` before the trailer `end`. Raises `BlobError` for a modified file."""
    _, total, major, minor, _, _ = _TRAILER.unpack(end[-TRAILER_SIZE:])
    # packed again, to compare the reserved bytes too
    if _trailer(body, total, major, minor) != end[-TRAILER_SIZE:]:
        raise BlobError(f"{name}: the checksum of its metadata differs; expected it as it was written")
    try:
        metadata = msgspec.msgpack.decode(body, type=Metadata)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BlobError(f"{name}: metadata: {error}; expected that of an exported model") from error
    _check_parts(metadata.blobs, total - len(body) - TRAILER_SIZE, name)
    return metadata


def _check_parts(parts: Sequence[BlobPart], end: int, name: str) -> None:
    """Check that the blobs begin at 0 and are contiguous; `end` is the offset of the metadata."""
    at = 0
    for part in parts:
        if part.offset != at or not 0 < part.size <= end - part.offset:
            raise BlobError(
                f"{name}: blob '{part.kind}': {part.size} bytes at {part.offset}; expected it at {at}, and"
                f" before the metadata at {end}"
            )
        at = page_up(part.offset + part.size)
    if not parts or parts[0].kind != MAIN or at != end:
        raise BlobError(f"{name}: blobs end at {at}; expected '{MAIN}' first, and metadata at {end}")


def page_up(size: int) -> int:
    """Round `size` up to whole pages."""
    return -(-size // 4096) * 4096


def _trailer(body: bytes, total: int, major: int, minor: int) -> bytes:
    def packed(digest: bytes) -> bytes:
        return _TRAILER.pack(len(body), total, major, minor, digest, MAGIC)

    return packed(blake3(body + packed(bytes(32))).digest())
