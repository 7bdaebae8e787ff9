"""CACHE_DIR: exported models in a directory, imported in place of compiling the same model again.

    KEY.blob        an exported model; replaced only by renaming, so it is whole or not there
    KEY.lock        held by the process that compiles for KEY; the kernel drops it however that ends
    ID.digest       the digest of a file of weights, so that large ones are read once and not at every start

Others may write into the directory. What they say there is not believed: entries and notes count only if this
user or root owns them and nobody else may write them, and what is written takes the place of a name, without
looking what it is.

A cache can only save time: whatever goes wrong (a damaged entry, a full or read-only disk, no locks) is told
in the log, and the model is compiled.
"""

from __future__ import annotations

import fcntl
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
from softnpu.emulator.compiler.model_cache import cache_key, entry_files
from softnpu.emulator.compiler.options import COMPILER, COMPILER_VERSION
from softnpu.plugin import metadata
from softnpu.plugin.errors import DeviceLostError, NpuError, PropertyError
from softnpu.plugin.properties import PROPERTIES, Access, ModelProperties
from softnpu.plugin.version import plugin_version

KEY_TEXT: Final = "softnpu.cache_key"
"""The name under which an entry tells its own key: a file with another one is not what was asked for."""

_CHUNK: Final = 8 << 20
_WAIT_S: Final = 120.0
_SETTLED_NS: Final = (
    2_000_000_000  # a file that was changed just now may change again with the same time stamp
)
_LEFT_OVER_S: Final = 3600.0


class _KeyParts(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that makes a compiled model what it is."""

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
    """The models in one directory. `log` is told what happens to entries."""

    def __init__(self, folder: Path, log: logging.Logger) -> None:
        self._folder = folder
        self._log = log

    @classmethod
    def of(cls, properties: ModelProperties, log: logging.Logger) -> ModelCache | None:
        """The cache that CACHE_DIR asks for; None without one, and when the directory cannot be used."""
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
        properties: ModelProperties,
        config: Mapping[str, str],
        shapes: Mapping[str, Sequence[int]] | None,
    ) -> str:
        """The name of the entry of a model: its content, and everything else that changes the result."""
        parts = _KeyParts(
            name=source.name,
            content=self._content(source),
            platform=properties.info.platform,
            config=dict(config),
            shapes={name: tuple(shape) for name, shape in (shapes or {}).items()},
            properties=_caching_properties(properties),
            weightless=keeps_no_weights(properties),
        )
        return blake3(_encoder.encode(parts)).hexdigest()

    def path(self, key: str) -> Path:
        """Where the entry of a key lies, if it is there."""
        return self._folder / f"{key}.blob"

    @contextmanager
    def claimed(self, key: str) -> Iterator[None]:
        """Held by one process for a key at a time, while it makes the entry; others wait here.

        Who has waited too long goes on without: two that write the same entry do no harm.
        """
        lock = self._folder / f"{key}.lock"
        fd = self._locked(lock)
        try:
            yield
        finally:
            if fd is not None:
                with suppress(OSError):
                    lock.unlink()  # before it is unlocked: who waits sees that the name is gone
                os.close(fd)

    def load(self, key: str, load: Callable[[Path], Any]) -> Any:
        """What `load` makes of the entry of a key; None if there is none, or a bad one, which goes."""
        path = self.path(key)
        if not os.path.lexists(path):
            return None
        try:
            return load(path)
        except DeviceLostError:
            raise
        except (NpuError, OSError) as failure:
            # as text: a record with the failure itself would keep all alive that its traceback refers to
            self._log.warning("CACHE_DIR: bad entry %s: %s; the model is compiled", path, str(failure))
            with suppress(OSError):
                path.unlink()
            return None

    def store(self, key: str, export: Callable[[Path], object]) -> None:
        """Has `export` write the entry of a key; told in the log if that is not possible."""
        self._sweep()
        path = self.path(key)
        try:
            export(path)
        except DeviceLostError:
            raise
        except (NpuError, OSError) as failure:
            reason = failure.strerror if isinstance(failure, OSError) else None
            told = reason or str(failure)
            self._log.warning("CACHE_DIR %s: the model is not stored: %s", self._folder, told)
        else:
            self._log.info("CACHE_DIR: stored %s", path)

    # ------------------------------------------------------------

    def _locked(self, lock: Path) -> int | None:
        deadline = time.monotonic() + _WAIT_S
        while True:
            try:
                fd = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            except OSError:
                return None  # nothing can be written here: an entry may still be read
            try:
                if file_ownership.distrust(fd):
                    os.close(fd)
                    return None  # its owner could make us wait
                if not entry_files.lock_before(fd, fcntl.LOCK_EX, deadline):
                    self._log.info("CACHE_DIR: waited %g s for another compilation", _WAIT_S)
                    os.close(fd)
                    return None
                if entry_files.names(fd, lock):
                    return fd
            except BaseException:
                os.close(fd)
                raise
            os.close(fd)

    def _sweep(self) -> None:
        """Removes what processes left that were killed while they wrote."""
        oldest = time.time() - _LEFT_OVER_S
        with suppress(OSError):
            for path in (*self._folder.glob(".*.blob.*"), *self._folder.glob(".*.digest.*")):
                if path.lstat().st_mtime < oldest:
                    path.unlink()

    def _content(self, source: GraphSource) -> bytes:
        hasher = blake3(_digest(WeightFile(source.xml_fd, 0, source.xml_length)))
        layout = SpaceLayout(source.sources)
        for start, file in zip(layout.starts, source.weights, strict=True):
            hasher.update(start.to_bytes(8, "little") + file.length.to_bytes(8, "little"))
            hasher.update(self._remembered(file))
        return hasher.digest()

    def _remembered(self, file: WeightFile) -> bytes:
        """The digest of weights; of a file that did not change since, the one that was noted then."""
        info = os.fstat(file.fd)
        if linux.has_seals(file.fd, linux.SEALS_IMMUTABLE):
            return _digest(file)
        identity = (
            f"{info.st_dev}:{info.st_ino}:{info.st_size}:{info.st_mtime_ns}:{info.st_ctime_ns}"
            f":{file.offset}:{file.length}"
        ).encode()
        note = self._folder / f"{blake3(identity).hexdigest(16)}.digest"
        with suppress(OSError):
            found = _read_note(note)
            if len(found) == 64 and blake3(identity + found[:32]).digest() == found[32:]:
                return found[:32]
        settled = time.time_ns() - max(info.st_mtime_ns, info.st_ctime_ns) > _SETTLED_NS
        digest = _digest(file)
        if settled:
            with suppress(OSError):
                _write_note(note, digest + blake3(identity + digest).digest())
        return digest


def keeps_no_weights(properties: ModelProperties) -> bool:
    """Whether entries are to be small, or quick to load."""
    return bool(properties["CACHE_MODE"] == CacheMode.OPTIMIZE_SIZE)


def _caching_properties(properties: ModelProperties) -> dict[str, str]:
    """The values of CACHING_PROPERTIES, as text."""
    told: dict[str, str] = {}
    for name in properties["CACHING_PROPERTIES"]:
        record = PROPERTIES.get(name)
        if record is None:
            raise PropertyError(f"property CACHING_PROPERTIES: {name} is no property")
        if record.access is Access.RW:
            told[name] = record.text(properties[name])
    # those that can only be read tell of device, driver and compiler: they are parts of the key by themselves
    return told


def _read_note(path: Path) -> bytes:
    with open(file_ownership.open_trusted(path), "rb") as file:
        return file.read(65)


def _write_note(path: Path, content: bytes) -> None:
    beside = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}")
    fd = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        os.write(fd, content)
        os.replace(beside, path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
    finally:
        os.close(fd)


def _digest(file: WeightFile) -> bytes:
    """Of a range of a file, which is read and not mapped: its pages should not stay in this process."""
    hasher = blake3(max_threads=blake3.AUTO)
    end = file.offset + file.length
    for at in range(file.offset, end, _CHUNK):
        hasher.update(os.pread(file.fd, min(_CHUNK, end - at), at))
    return hasher.digest()
