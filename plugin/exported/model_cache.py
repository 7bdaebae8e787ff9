"""CACHE_DIR: exported models in a directory, imported instead of compiling the same model again.

    KEY.blob        an exported model; replaced only by renaming, so it is complete or absent
    KEY.lock        the claim of the process that compiles for KEY, see `emulator.common.file_claim`
    ID.digest       the digest of a weights file, so that large ones are not read at every start

Other users may have write access to the directory. Their files are not trusted: an entry or a digest must
belong to this user or root, and nobody else may write it. New files replace a name, whatever it is.

A cache only saves time: every failure (a damaged entry, a full or read-only disk, no locks) is logged, and
the model is compiled.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import msgspec
from blake3 import blake3
from openvino.properties import CacheMode

from softnpu.driver import GraphSource, WeightFile
from softnpu.emulator.blob import container
from softnpu.emulator.blob.weights import SpaceLayout
from softnpu.emulator.common import file_ownership, linux
from softnpu.emulator.common.file_claim import FileClaim
from softnpu.emulator.compiler.options import COMPILER, COMPILER_VERSION
from softnpu.emulator.disk_cache import cache_key
from softnpu.plugin.errors import DeviceLostError, NpuError, PropertyError
from softnpu.plugin.exported import metadata
from softnpu.plugin.exported.generated_names import without_number, without_numbers
from softnpu.plugin.files import digest_of_range, replacing
from softnpu.plugin.properties import PROPERTIES, Access, ModelProperties
from softnpu.plugin.version import plugin_version

KEY_TEXT: Final = "softnpu.cache_key"
"""The name of an entry's own key in its metadata: a file with another key is not used."""

WAIT_S: Final = 120.0
"""How long to wait for another process that compiles the same model."""
SETTLED_NS: Final = 2_000_000_000
"""A file that changed more recently may change again with the same time stamp."""
_STALE_S: Final = 3600.0


class _KeyParts(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that determines a compiled model."""

    name: str
    content: bytes
    platform: str
    config: dict[str, str]
    shapes: dict[str, tuple[int, ...]]
    properties: dict[str, str]
    weightless: bool
    compiler: str = COMPILER
    driver: tuple[int, int] = COMPILER_VERSION
    openvino: str = msgspec.field(default_factory=cache_key.openvino_version)
    plugin: str = msgspec.field(default_factory=lambda: plugin_version().build_number)
    host: str = msgspec.field(default_factory=cache_key.host)
    container: str = f"{container.MAJOR}.{container.MINOR} {metadata.MAJOR}.{metadata.MINOR}"


_encoder = msgspec.json.Encoder(order="sorted")


class ModelCache:
    """The models in one directory. Events go to `log`."""

    def __init__(
        self, folder: Path, log: logging.Logger, wait_s: float = WAIT_S, settled_ns: int = SETTLED_NS
    ) -> None:
        self._folder = folder
        self._log = log
        self._wait_s = wait_s
        self._settled_ns = settled_ns

    @classmethod
    def of(cls, properties: ModelProperties, log: logging.Logger) -> ModelCache | None:
        """Return the cache in CACHE_DIR; None without one, and when the directory cannot be used."""
        if not properties["CACHE_DIR"]:
            return None
        folder = Path(properties["CACHE_DIR"]).absolute()
        try:
            folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        except OSError as failure:
            log.warning("CACHE_DIR %s cannot be used: %s; models are compiled", folder, failure.strerror)
            return None
        return cls(folder, log)

    def key(
        self,
        source: GraphSource,
        content: bytes,
        properties: ModelProperties,
        config: Mapping[str, str],
        shapes: Mapping[str, Sequence[int]] | None,
    ) -> str:
        """Return the name of a model's entry: a digest of its `content` and everything else that matters."""
        parts = _KeyParts(
            name=without_number(source.name) if _is_in_memory(source) else source.name,
            content=content,
            platform=properties.info.platform,
            config=dict(config),
            shapes={name: tuple(shape) for name, shape in (shapes or {}).items()},
            properties=_caching_properties(properties),
            weightless=keeps_no_weights(properties),
        )
        return blake3(_encoder.encode(parts)).hexdigest()

    def path(self, key: str) -> Path:
        """Return the path for a key; its entry need not exist."""
        return self._folder / f"{key}.blob"

    @contextmanager
    def claimed(self, key: str) -> Iterator[None]:
        """Claim the right to create the entry of a key, after waiting for another process that has it.

        After a timeout, or without usable locks, it continues without a claim: two writers of one entry are
        harmless.
        """
        try:
            claim = FileClaim.acquire(self._folder / f"{key}.lock", self._wait_s)
        except OSError:
            yield  # no write access, or another user could block us
            return
        if claim is None:
            self._log.info("CACHE_DIR: waited %g s for another compilation", self._wait_s)
            yield
            return
        with claim:
            yield

    def load(self, key: str, load: Callable[[Path], Any]) -> Any:
        """Return the result of `load` for the entry of a key; None without one. A bad entry is removed."""
        path = self.path(key)
        if not os.path.lexists(path):
            return None
        try:
            return load(path)
        except DeviceLostError:
            raise
        except (NpuError, OSError) as failure:
            # as text, because a traceback would keep objects alive
            self._log.warning("CACHE_DIR: bad entry %s: %s; the model is compiled", path, str(failure))
            with suppress(OSError):
                path.unlink()
            return None

    def store(self, key: str, export: Callable[[Path], object]) -> None:
        """Have `export` write the entry of a key; a failure is logged."""
        self._sweep()
        path = self.path(key)
        try:
            export(path)
        except DeviceLostError:
            raise
        except (NpuError, OSError) as failure:
            reason = failure.strerror if isinstance(failure, OSError) else None
            self._log.warning(
                "CACHE_DIR %s: the model is not stored: %s", self._folder, reason or str(failure)
            )
        else:
            self._log.info("CACHE_DIR: stored %s", path)

    # ------------------------------------------------------------

    def _sweep(self) -> None:
        """Remove temporary files of processes killed while writing."""
        oldest = time.time() - _STALE_S
        with suppress(OSError):
            for path in (*self._folder.glob(".*.blob.*"), *self._folder.glob(".*.digest.*")):
                if path.lstat().st_mtime < oldest:
                    path.unlink()

    def content(self, source: GraphSource) -> bytes:
        """Return the digest of a model, with its weights."""
        if _is_in_memory(source) and not source.format:
            xml = without_numbers(os.pread(source.xml_fd, source.xml_length, 0))
            hasher = blake3(blake3(xml).digest())
        else:
            hasher = blake3(digest_of_range(source.xml_fd, 0, source.xml_length))
        layout = SpaceLayout(source.sources)
        for start, file in zip(layout.starts, source.weights, strict=True):
            hasher.update(start.to_bytes(8, "little") + file.length.to_bytes(8, "little"))
            hasher.update(self._weights_digest(file))
        return hasher.digest()

    def _weights_digest(self, file: WeightFile) -> bytes:
        """Return the digest of weights; for an unchanged file, from its digest file."""
        info = os.fstat(file.fd)
        if linux.has_seals(file.fd, linux.SEALS_IMMUTABLE):
            return digest_of_range(file.fd, file.offset, file.length)
        identity = (
            f"{info.st_dev}:{info.st_ino}:{info.st_size}:{info.st_mtime_ns}:{info.st_ctime_ns}"
            f":{file.offset}:{file.length}"
        ).encode()
        digest_file = self._folder / f"{blake3(identity).hexdigest(16)}.digest"
        with suppress(OSError):
            content = _read_digest_file(digest_file)
            if len(content) == 64 and blake3(identity + content[:32]).digest() == content[32:]:
                return content[:32]
        settled = time.time_ns() - max(info.st_mtime_ns, info.st_ctime_ns) > self._settled_ns
        digest = digest_of_range(file.fd, file.offset, file.length)
        if settled:
            with suppress(OSError), replacing(digest_file, 0o600) as fd:
                os.write(fd, digest + blake3(identity + digest).digest())
        return digest


def _is_in_memory(source: GraphSource) -> bool:
    return linux.has_seals(source.xml_fd, linux.SEALS_IMMUTABLE)


def keeps_no_weights(properties: ModelProperties) -> bool:
    """Return whether entries are small (CACHE_MODE=OPTIMIZE_SIZE) instead of quick to load."""
    return bool(properties["CACHE_MODE"] == CacheMode.OPTIMIZE_SIZE)


def _caching_properties(properties: ModelProperties) -> dict[str, str]:
    """Return the values of CACHING_PROPERTIES, as text."""
    values: dict[str, str] = {}
    for name in properties["CACHING_PROPERTIES"]:
        record = PROPERTIES.get(name)
        if record is None:
            raise PropertyError(f"property CACHING_PROPERTIES: {name} is no property")
        if record.access is Access.RW:
            values[name] = record.text(properties[name])
    # read-only ones concern device, driver and compiler, which are in the key anyway
    return values


def _read_digest_file(path: Path) -> bytes:
    with open(file_ownership.open_trusted(path), "rb") as file:
        return file.read(65)
