"""The cache of images compiled by OpenVINO's CPU device, which spares later loads the compilation.

OpenVINO compiles an image at every load. Its export of the result is kept in a directory of the daemon's
user, which an engine only reads; `cache_fill` fills it. The cache can only save time: an entry that is
damaged, from another host or version, or whose ports differ from the image's, is a miss.

Only images computed in f32 and in one stream, with fixed shapes throughout and without profiling, are cached.
Small images compile just as quickly, and large ones are slower to read than their weights, which the engine
uses in place.

A program sends the hint of a model long before the compiler knows its content. A note, in the folder
`expected`, maps each hint to the entry it last loaded, and the engine prefetches that meanwhile. Images are
looked up by content alone, so a wrong note costs nothing but time.
"""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Container
from typing import Final, NamedTuple

import msgspec
import numpy as np
import openvino as ov
from blake3 import blake3

from softnpu.emulator.blob.container import SECURE, BlobReader, GraphMeta, Section
from softnpu.emulator.common import graph_edits, model_bodies, packed_types, source_digest
from softnpu.emulator.disk_cache import cache_key, entry_files
from softnpu.emulator.disk_cache.cache import ModelCache
from softnpu.emulator.interface import profiling
from softnpu.emulator.openvino import defects
from softnpu.emulator.openvino import errors as openvino_errors
from softnpu.emulator.openvino.defects import shared_tensors

log = logging.getLogger(__name__)

LIMIT: Final = 512 << 20
"""Maximum size of the directory in bytes."""
MIN_IR: Final = 64 << 10
"""Bytes of IR of the smallest image that is cached, about a hundred operations."""
MAX_WEIGHTS: Final = 64 << 20
"""Bytes of constants of the largest one: an export contains a copy of them all."""
_FORMAT: Final = 3
_NOTES, _NOTES_LIMIT, _NOTES_FORMAT = "expected", 1 << 20, b"1"
_PRECISION: Final = "f32"
_SETTINGS: Final = ("ONEDNN_", "DNNL_", "OV_", "OPENVINO_")
"""Prefixes of environment variables that change what OpenVINO compiles."""


class Kept(NamedTuple):
    """An image from the cache: see `LoadedImage`. `memory` holds constants that `compiled` uses."""

    compiled: ov.CompiledModel
    memory: memoryview


class _Note(msgspec.Struct, frozen=True):
    """The key of an entry, and the properties it is imported with."""

    key: str
    properties: dict[str, str]


class _Header(msgspec.Struct, frozen=True):
    """The header of an entry: the size of the export in bytes."""

    size: int


class CpuCache:
    """The cache in one directory."""

    def __init__(self, models: ModelCache) -> None:
        self.models = models
        self._notes = ModelCache.of_engine(_NOTES, _NOTES_LIMIT)
        self._expected: tuple[_Note, Kept] | None = None

    @classmethod
    def open(cls) -> CpuCache | None:
        """Open the cache named by the environment; return None if it is off or unusable."""
        models = ModelCache.of_engine("", LIMIT)
        return None if models is None else cls(models)

    def find(self, core: ov.Core, key: str, meta: GraphMeta, properties: dict[str, str]) -> Kept | None:
        """Return the image of this key; None for a miss."""
        ahead = self._take_expected(_Note(key, properties))
        kept = ahead or self._imported(core, key, properties)
        if kept is None:
            return None
        if not fits(kept.compiled, meta):
            log.warning("engine cache: entry %s does not fit '%s'; it is compiled", key, meta.name)
            return None
        log.info("engine cache: imported '%s'%s", meta.name, " before it was asked for" if ahead else "")
        return kept

    @property
    def is_expecting(self) -> bool:
        """Whether a prefetched image is still unclaimed."""
        return self._expected is not None

    def expect(self, core: ov.Core, hint: bytes, loaded: Container[str]) -> None:
        """Prefetch the image last loaded with this hint, unless its key is in `loaded`."""
        note = self._noted(hint)
        if note is None or note.key in loaded:
            return
        self._expected = None
        kept = self._imported(core, note.key, note.properties)
        if kept is not None:
            self._expected = note, kept

    def forget_expected(self) -> None:
        """Drop unclaimed prefetched images."""
        self._expected = None

    def has_note(self, hint: bytes, key: str, properties: dict[str, str]) -> bool:
        """Whether a note maps this hint to this key; true without notes."""
        return self._notes is None or self._noted(hint) == _Note(key, properties)

    def note(self, hint: bytes, key: str, properties: dict[str, str]) -> None:
        """Record that this hint loaded an image of this key."""
        if self._notes is not None and not self.has_note(hint, key, properties):
            note = msgspec.msgpack.encode(_Note(key, properties))
            self._notes.store(self._notes.key(hint, _NOTES_FORMAT), note)

    def _noted(self, hint: bytes) -> _Note | None:
        """Return the note of this hint; None if it is missing or invalid."""
        payload = None if self._notes is None else self._notes.load(self._notes.key(hint, _NOTES_FORMAT))
        if payload is None:
            return None
        try:
            note = msgspec.msgpack.decode(payload, type=_Note)
        except msgspec.DecodeError:
            return None
        return note if entry_files.is_key(note.key) else None

    def _take_expected(self, wanted: _Note) -> Kept | None:
        if self._expected is None or self._expected[0] != wanted:
            return None
        (_, kept), self._expected = self._expected, None
        return kept

    def _imported(self, core: ov.Core, key: str, properties: dict[str, str]) -> Kept | None:
        payload = self.models.load(key)
        return None if payload is None else imported(core, payload, properties)


def prepare() -> None:
    """Look up the common parts of all keys, so that no image has to wait for them."""
    cache_key.host()
    _code_digest()


def key_of(reader: BlobReader, meta: GraphMeta, properties: dict[str, str]) -> str:
    """Return the key of an image, a digest of its content, its properties, the host and the compiling code.

    Empty for an image that is not cached.
    """
    if not _is_kept(reader, meta, properties):
        return ""
    parts = {
        "format": str(_FORMAT),
        "openvino": ov.get_version(),
        "host": cache_key.host(),
        "threads": str(len(os.sched_getaffinity(0))),
        "code": _code_digest(),
        **{f"property.{name}": value for name, value in properties.items()},
        **{f"env.{name}": value for name, value in os.environ.items() if name.startswith(_SETTINGS)},
    }
    return cache_key.key(_content_digest(reader), parts)


def encoded(compiled: ov.CompiledModel) -> bytes:
    """Return the cache entry of a compiled image."""
    exported: bytes = compiled.export_model().getvalue()
    header = msgspec.msgpack.encode(_Header(len(exported)))
    return bytes([len(header) >> 8, len(header) & 255]) + header + exported


def imported(core: ov.Core, payload: memoryview, properties: dict[str, str]) -> Kept | None:
    """Import the image of an entry into writable memory; return None if that fails."""
    start = 2 + int.from_bytes(payload[:2], "big")
    try:
        header = msgspec.msgpack.decode(payload[2:start], type=_Header)
        if header.size != len(payload) - start:
            return None
        memory = payload[start:]
        tensor = ov.Tensor(np.frombuffer(memory, np.uint8), shared_memory=True)
        compiled = core.import_model(tensor, "CPU", properties)
    except (msgspec.DecodeError, UnicodeDecodeError, RuntimeError, ValueError, MemoryError) as error:
        log.warning("engine cache: %s", openvino_errors.reason(error))
        return None
    return Kept(compiled, memory)


def fits(compiled: ov.CompiledModel, meta: GraphMeta) -> bool:
    """Whether every input and output has its own tensor, of the type and shape declared by `meta`."""
    ports = [*compiled.inputs, *compiled.outputs]
    return (
        len(compiled.inputs) == len(meta.inputs)
        and len(ports) == len(meta.arguments)
        and not shared_tensors.origins(compiled)
        and all(
            port.element_type.to_string() == getattr(ov.Type, argument.element_type).to_string()
            and port.partial_shape == ov.PartialShape(list(argument.shape))
            for port, argument in zip(ports, meta.arguments, strict=True)
        )
    )


def _content_digest(reader: BlobReader) -> bytes:
    """Return the digest of the computation, independent of where its constants lie."""
    reference = reader.weights_reference()
    constants = [(each.offset, each.length, each.digest) for each in reference.constants] if reference else []
    hasher = blake3(reader.read(Section.METADATA))
    for part in (reader.read(Section.IR), msgspec.msgpack.encode(constants)):
        hasher.update(blake3(part).digest())
    return hasher.digest()


def _is_kept(reader: BlobReader, meta: GraphMeta, properties: dict[str, str]) -> bool:
    reference = reader.weights_reference()
    _, size = reader.extent(Section.IR) or (0, 0)
    return (
        meta.precision == properties.get("INFERENCE_PRECISION_HINT") == _PRECISION
        and properties.get("NUM_STREAMS") == "1"
        and properties.get("PERF_COUNT", "NO") == "NO"
        and meta.config.get(profiling.CLOCK_PROPERTY, "HOST") == "HOST"
        and meta.config.get(SECURE) != "YES"
        and not any(argument.is_dynamic or argument.shape_of >= 0 for argument in meta.arguments)
        and size >= MIN_IR
        and (reference is None or reference.size <= MAX_WEIGHTS)
    )


@functools.cache
def _code_digest() -> str:
    """The digest of the code that changes a model before OpenVINO compiles it."""
    return source_digest.of_modules(defects, graph_edits, model_bodies, packed_types)
