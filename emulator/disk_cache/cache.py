"""The model cache, like the real driver's: a directory of blobs shared by many processes.

A cache can only save time. Whatever goes wrong (a damaged entry, a full or read-only disk, no locks) is a
miss or a model that is not stored, with a warning in the log, and never an error. OpenVINO is not needed.

    cache = ModelCache.open(options)
    key = cache.key(input_digest, configuration)
    payload = cache.load(key)
    if payload is None:
        with cache.claim(key, deadline_s):
            payload = cache.load(key)  # another process may have compiled it meanwhile
            if payload is None:
                payload = ...
                cache.store(key, payload, description)
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from softnpu.emulator.common.file_claim import FileClaim, is_open_as, try_lock
from softnpu.emulator.disk_cache import cache_key, entry_files
from softnpu.emulator.disk_cache.entry_files import InvalidEntry
from softnpu.emulator.interface import environment
from softnpu.emulator.interface.messages import CacheOptions

log = logging.getLogger(__name__)

_DIRECTORY_MODE: Final = 0o700
_ENTRY_MODE: Final = 0o440
_CHANGE_S: Final = 5.0  # others lock the directory only while they write one entry
_LACK_OF_RESOURCES: Final = {
    errno.EMFILE,
    errno.ENFILE,
    errno.ENOMEM,
    errno.EINTR,
}  # says nothing about the entry


class ModelCache:
    """The cache in one directory. Holds nothing open between calls, and has no state that matters."""

    def __init__(self, directory: Path, limit: int) -> None:
        self.directory = directory
        self.limit = max(0, limit)
        self._unclaimed: set[str] = set()  # compiled without the right to store

    @classmethod
    def open(cls, options: CacheOptions) -> ModelCache | None:
        """Open the cache in `options.directory`, created if missing; return None if unusable."""
        directory = Path(options.directory)
        if not directory.is_absolute():
            _warn_unusable(options.directory, "it is no absolute path")
            return None
        try:
            directory.mkdir(mode=_DIRECTORY_MODE, parents=True, exist_ok=True)
            if not os.access(directory, os.R_OK | os.X_OK):
                _warn_unusable(options.directory, os.strerror(errno.EACCES))
                return None
        except (OSError, ValueError) as error:  # ValueError: a NUL in the name
            _warn_unusable(options.directory, _reason(error))
            return None
        return cls(directory, options.limit)

    @classmethod
    def of_engine(cls, folder: str, limit: int) -> ModelCache | None:
        """Open a folder of the engine's cache, named by the environment; None if it is off or unusable."""
        directory = environment.engine_cache()
        if not directory:
            return None
        return cls.open(CacheOptions(directory=os.path.join(directory, folder), limit=limit))

    key = staticmethod(cache_key.key)

    @contextmanager
    def claim(self, key: str, deadline_s: float) -> Iterator[bool]:
        """Hold the right to compile for `key`, exclusive to one process; others wait for it here.

        False after `deadline_s` seconds of waiting: compile, but `store` will not keep the result. In a
        read-only directory every process gets the right at once.
        """
        lock = entry_files.lock_path(self._path(key))
        try:
            claim = FileClaim.acquire(lock, deadline_s, optional=True)
        except OSError as error:
            log.debug("model cache: no lock %s: %s", lock, _reason(error))
            yield True
            return
        if claim is not None:
            with claim:
                yield True
            return
        log.info("model cache: waited %g s for another compilation of %s", deadline_s, key)
        self._unclaimed.add(key)
        try:
            yield False
        finally:
            self._unclaimed.discard(key)

    def load(self, key: str) -> memoryview | None:
        """Return the payload of `key`, verified; None for a miss. A damaged entry is removed.

        It is in private, writable memory.
        """
        path = self._path(key)
        try:
            fd = entry_files.open_entry(path)
        except FileNotFoundError:
            return None
        except OSError as error:
            if error.errno not in _LACK_OF_RESOURCES:
                self._discard(path, None, _reason(error))
            return None
        try:
            payload = self._read(fd, key)
        except (InvalidEntry, OSError) as error:
            self._discard(path, fd, _reason(error))
            return None
        finally:
            os.close(fd)
        return payload

    def store(
        self, key: str, payload: bytes | memoryview, description: Mapping[str, str] | None = None
    ) -> bool:
        """Store `payload`, with a description for people; return whether that succeeded.

        Evicts the least recently used entries until it fits; those in use stay.
        """
        path = self._path(key)
        if key in self._unclaimed:
            return False
        content = entry_files.encode(key, payload, description)
        size = sum(map(len, content))
        if size > self.limit:
            log.info("model cache: %d bytes are more than the limit of %d, not stored", size, self.limit)
            return False
        try:
            with entry_files.exclusive(self.directory, _CHANGE_S):
                entry_files.remove_leftovers(self.directory)
                if not self._make_room(key, size):
                    log.warning("model cache: no room for %d bytes, the other entries are in use", size)
                    return False
                _write(path, content)
        except OSError as error:
            log.warning("model cache: %s: not stored: %s", self.directory, _reason(error))
            return False
        return True

    def _path(self, key: str) -> Path:
        if not entry_files.is_key(key):
            raise ValueError(
                f"cache key {key!r}; expected {entry_files.KEY_LENGTH} lower-case hex characters"
            )
        return self.directory / key

    def _read(self, fd: int, key: str) -> memoryview | None:
        if not try_lock(fd, fcntl.LOCK_SH, optional=True):
            return None  # it is being removed
        try:
            payload = entry_files.read_payload(fd, key, self.limit)
        except MemoryError:
            log.warning("model cache: not enough memory to load %s", key)
            return None
        # a relatime mount notes one access a day, and a noatime mount none
        with suppress(OSError):
            os.utime(fd, ns=(time.time_ns(), os.fstat(fd).st_mtime_ns))
        return payload

    def _discard(self, path: Path, fd: int | None, reason: str) -> None:
        """Remove an invalid entry, unless a good one has replaced it since it was opened as `fd`."""
        log.warning("model cache: bad entry %s: %s; it is compiled again", path, reason)
        try:
            with entry_files.exclusive(self.directory, _CHANGE_S):
                if fd is None or is_open_as(fd, path):
                    entry_files.remove(path)
        except OSError as error:
            log.warning("model cache: %s cannot be removed: %s", path, _reason(error))

    def _make_room(self, key: str, size: int) -> bool:
        others = [entry for entry in entry_files.entries(self.directory) if entry.key != key]
        excess = sum(entry.size for entry in others) + size - self.limit
        for entry in others:
            if excess <= 0:
                break
            if entry_files.evict(entry):
                excess -= entry.size
        return excess <= 0


def _write(path: Path, content: Sequence[bytes | memoryview]) -> None:
    temporary = entry_files.temporary_path(path)
    try:
        _write_file(temporary, content, time.time_ns())
        temporary.rename(path)
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def _write_file(path: Path, content: Sequence[bytes | memoryview], now_ns: int) -> None:
    path.unlink(missing_ok=True)  # only a defect of this very process can have left it
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, _ENTRY_MODE)
    try:
        # shared, as readers lock it: it is not taken for a leftover, and the new entry is not found locked
        try_lock(fd, fcntl.LOCK_SH, optional=True)
        for part in content:
            view = memoryview(part)
            while view:
                view = view[os.write(fd, view) :]
        # the kernel's own time stamps are up to 10 ms late, enough to confuse the order of use
        os.utime(fd, ns=(now_ns, now_ns))
    finally:
        os.close(fd)


def _warn_unusable(directory: str, reason: str) -> None:
    log.warning(
        "model cache: directory %r cannot be used: %s; models are compiled every time", directory, reason
    )


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
