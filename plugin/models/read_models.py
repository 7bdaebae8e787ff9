"""A cache of IRs of model files in other formats, as read by OpenVINO.

Reading an ONNX file and writing it as an IR takes longer than a start with a cached compiled model. The IR
lies beside the compiled models, in the folder `ir` of CACHE_DIR or else of the driver's cache. Its name is a
digest of the whole file, of OpenVINO's version, and of everything else that affects reading.

A cache only saves time: on any failure OpenVINO reads the file. Never cached: models of more than one file,
models of a process with OpenVINO extensions, and large ones.
"""

from __future__ import annotations

import logging
import mmap
import os
import stat
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
from blake3 import blake3

from softnpu.driver import GraphSource
from softnpu.driver.cache_options import DEFAULT_LIMIT, cache_options_from_environment
from softnpu.emulator.blob.weights import aligned
from softnpu.emulator.common import linux, source_digest
from softnpu.emulator.disk_cache import cache_key
from softnpu.emulator.disk_cache.cache import ModelCache
from softnpu.emulator.interface.environment import PREFIXES_OF_OPENVINO
from softnpu.emulator.interface.messages import CacheOptions
from softnpu.plugin import openvino_runtime
from softnpu.plugin.properties import ModelProperties

log = logging.getLogger(__name__)

FOLDER: Final = "ir"
MOST: Final = 512 << 20
"""Bytes of the largest cached file."""

_FORMATS: Final = (".onnx", ".tflite")
_EXTERNAL: Final = b"\x0a\x08location"
"""The key of an external tensor's path, present in every such tensor of ONNX."""
_HEADER: Final = struct.Struct("<QQ")
_CODE: Final = (
    Path(__file__).with_name("serializer.py"),
    Path(__file__).parents[2] / "emulator" / "compiler" / "constants.py",
)
"""What writes an IR. It is not imported: an IR that is found needs none of it."""


@dataclass(frozen=True)
class ModelFile:
    """A file whose IR can be cached: its identity, and the name of its IR."""

    path: Path
    identity: tuple[int, ...]
    digest: bytes
    key: str


class ReadModels:
    """The IRs in one directory."""

    def __init__(self, entries: ModelCache) -> None:
        self._entries = entries

    @classmethod
    def of(cls, properties: ModelProperties) -> ReadModels | None:
        """Return the IRs beside the compiled models of the properties or the environment; None without."""
        options = _options(properties)
        if options is None:
            return None
        folder = os.path.join(options.directory, FOLDER)
        entries = ModelCache.open(msgspec.structs.replace(options, directory=folder))
        return None if entries is None else cls(entries)

    def open_file(self, path: Path, copy_below: int) -> ModelFile | None:
        """Identify a model file; return None if its IR is not cached."""
        if path.suffix not in _FORMATS or openvino_runtime.is_extended():
            return None
        try:
            identity, digest = _look(path)
        except (OSError, ValueError):
            return None  # reading it raises the reason
        if not digest:
            return None
        parts = {
            "format": path.suffix,
            "copy below": str(copy_below),
            "openvino": cache_key.openvino_version(),
            "code": source_digest.of_files(*_CODE),
            **{name: value for name, value in os.environ.items() if name.startswith(PREFIXES_OF_OPENVINO)},
        }
        key = self._entries.key(digest, parts)
        return ModelFile(path, identity, digest, key)

    def find(self, file: ModelFile, name: str) -> GraphSource | None:
        """Return the IR of a file as a source of that name; None if there is none."""
        payload = self._entries.load(file.key)
        if payload is None or len(payload) < _HEADER.size:
            return None
        xml_length, begin = _HEADER.unpack_from(payload)
        xml, weights = payload[_HEADER.size : _HEADER.size + xml_length], payload[begin:]
        try:
            fd = linux.sealed_copy("constants", weights) if len(weights) else None
            return GraphSource.from_xml(name, bytes(xml), fd)
        except OSError as failure:
            log.warning("IR of %s: %s; OpenVINO reads the file", file.path, failure.strerror)
            return None

    def store(self, file: ModelFile, source: GraphSource) -> None:
        """Cache the IR read by OpenVINO from a file, unless the file has changed meanwhile."""
        if len(source.weights) > 1 or any(each.offset for each in source.weights):
            return
        if not all(linux.has_seals(each.fd, linux.SEALS_IMMUTABLE) for each in source.weights):
            return
        try:
            payload = _payload(source)
            if _look(file.path) != (file.identity, file.digest):
                return
        except (OSError, ValueError, MemoryError) as failure:
            log.warning("IR of %s: %s; it is not kept", file.path, failure)
            return
        description = {"model": source.name, "version.openvino": cache_key.openvino_version()}
        self._entries.store(file.key, payload, description)


def _options(properties: ModelProperties) -> CacheOptions | None:
    if directory := properties["CACHE_DIR"]:
        return CacheOptions(directory=os.path.abspath(directory), limit=DEFAULT_LIMIT)
    return None if properties["NPU_BYPASS_UMD_CACHING"] else cache_options_from_environment(os.environ)


def _payload(source: GraphSource) -> bytes:
    """Concatenate the XML and the constants of a source."""
    xml = os.pread(source.xml_fd, source.xml_length, 0)
    end = _HEADER.size + len(xml)
    begin = aligned(end)
    parts: list[bytes | memoryview] = [_HEADER.pack(len(xml), begin), xml, bytes(begin - end)]
    parts += [memoryview(mmap.mmap(each.fd, each.length, prot=mmap.PROT_READ)) for each in source.weights]
    return b"".join(parts)


def _look(path: Path) -> tuple[tuple[int, ...], bytes]:
    """Return a file's identity and its digest, which is empty for a file whose IR is not cached."""
    with open(path, "rb") as file:
        info = os.fstat(file.fileno())
        identity = info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns
        if not stat.S_ISREG(info.st_mode) or not 0 < info.st_size <= MOST:
            return identity, b""
        with mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as content:
            if path.suffix == ".onnx" and content.find(_EXTERNAL) >= 0:
                return identity, b""
            return identity, blake3(content, max_threads=blake3.AUTO).digest()
