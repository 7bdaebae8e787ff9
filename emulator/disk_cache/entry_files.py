"""The directory of the compiled-model cache: names, the lock, entries, leftovers of dead processes.

    KEY             an entry: the payload and then its digest, mode 0440; replaced only by renaming
    KEY.json        its sidecar, see `sidecars`
    KEY.lock        locked by the process that compiles for KEY, empty
    .KEY.*.tmp      a file that is being written

Every lock is a flock: the kernel drops it when its holder ends. A process locks the directory itself while
it adds or removes entries. Files with other names are neither counted nor touched.

A digest proves that an entry is whole, not who made it: an entry is used only if this user or root owns it
and no other user may write it, whoever may write the directory.
"""

from __future__ import annotations

import errno
import mmap
import os
import re
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from blake3 import blake3

from softnpu.emulator.common import file_ownership, process_identity
from softnpu.emulator.common.file_claim import is_open_as, lock_before, try_lock
from softnpu.emulator.common.process_identity import ProcessIdentity

KEY_LENGTH: Final = 80
DIGEST_LENGTH: Final = 80

_KEY: Final = re.compile(rf"[0-9a-f]{{{KEY_LENGTH}}}")
_TEMPORARY: Final = re.compile(rf"\.[0-9a-f]{{{KEY_LENGTH}}}\.(\d+)-(\d+)\.\w+\.tmp")
_SIDECAR, _LOCK = ".json", ".lock"
_OPEN: Final = os.O_CLOEXEC | os.O_NOFOLLOW
_READ: Final = _OPEN | os.O_RDONLY | os.O_NONBLOCK  # opening a FIFO would wait for its writer
_THREADS_FROM: Final = 1 << 20  # below this many bytes one thread of blake3 is faster than all of them


class InvalidEntry(Exception):
    """An entry that differs from what was stored, with the reason. Never leaves the cache."""


@dataclass(frozen=True)
class Entry:
    """An entry as the directory shows it. Sizes in bytes, times in nanoseconds since 1970."""

    key: str
    path: Path
    size: int
    sidecar_size: int
    created_ns: int
    used_ns: int

    @property
    def total(self) -> int:
        return self.size + self.sidecar_size

    @property
    def sidecar(self) -> Path:
        return sidecar_path(self.path)


# ---------------------------------------------------------------- names


def is_key(text: str) -> bool:
    """Whether `text` can be the name of an entry."""
    return _KEY.fullmatch(text) is not None


def sidecar_path(path: Path) -> Path:
    """Return the sidecar of the entry `path`."""
    return path.with_name(path.name + _SIDECAR)


def lock_path(path: Path) -> Path:
    """Return the lock of the process that compiles for the entry `path`."""
    return path.with_name(path.name + _LOCK)


def temporary_path(path: Path, what: str) -> Path:
    """Return the path of this process's temporary file for the entry `path` or its sidecar."""
    pid = os.getpid()
    return path.with_name(f".{path.name}.{pid}-{process_identity.start_time(pid)}.{what}.tmp")


def entries(directory: Path) -> list[Entry]:
    """All entries, the least recently used first. Raises `OSError` when the directory cannot be listed."""
    sizes: dict[str, os.stat_result] = {}
    with os.scandir(directory) as listing:
        for item in listing:
            if is_key(item.name.removesuffix(_SIDECAR)):
                with suppress(FileNotFoundError):  # removed meanwhile
                    info = item.stat(follow_symlinks=False)
                    if not stat.S_ISDIR(info.st_mode):
                        sizes[item.name] = info
    listed = [
        Entry(
            key=name,
            path=directory / name,
            size=info.st_size,
            sidecar_size=sizes[name + _SIDECAR].st_size if name + _SIDECAR in sizes else 0,
            created_ns=info.st_mtime_ns,
            used_ns=info.st_atime_ns,
        )
        for name, info in sizes.items()
        if is_key(name)
    ]
    return sorted(listed, key=lambda entry: (entry.used_ns, entry.key))


# ---------------------------------------------------------------- locks


@contextmanager
def exclusive(directory: Path, deadline_s: float) -> Iterator[None]:
    """Lock the directory, to add or remove entries. `TimeoutError` if others keep it locked."""
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if not lock_before(fd, time.monotonic() + deadline_s, optional=True):
            raise TimeoutError(errno.ETIMEDOUT, "another process has been changing the cache for too long")
        yield
    finally:
        os.close(fd)


# ---------------------------------------------------------------- content


def payload_digest(key: str, payload: bytes | memoryview) -> bytes:
    """The 80 characters behind a payload: 64 over the payload, 16 over the key, so that a name cannot lie."""
    threads = blake3.AUTO if len(payload) >= _THREADS_FROM else 1
    content = blake3(payload, max_threads=threads).hexdigest()
    return (content + blake3(key.encode()).hexdigest(8)).encode()


def open_entry(path: Path) -> int:
    """A descriptor for reading; does not wait and does not follow a link. Keeps the access time if it can."""
    try:
        return os.open(path, _READ | os.O_NOATIME)
    except PermissionError:  # O_NOATIME is for the owner only
        return os.open(path, _READ)


def read_payload(fd: int, key: str, most: int | None = None) -> memoryview | None:
    """Return the verified payload of the entry `key`; None if the entry has more than `most` bytes.

    It is in private, writable memory; an empty one is read-only.

    Raises `InvalidEntry` with the reason, `OSError` if the file cannot be read.
    """
    info = os.fstat(fd)
    if not stat.S_ISREG(info.st_mode):
        raise InvalidEntry("it is no regular file")
    if reason := file_ownership.distrust(fd):
        raise InvalidEntry(reason)
    if info.st_size < DIGEST_LENGTH:
        raise InvalidEntry(f"it has {info.st_size} bytes, fewer than its digest")
    if most is not None and info.st_size > most:
        return None
    payload = _read(fd, info.st_size - DIGEST_LENGTH)
    digest = os.pread(fd, DIGEST_LENGTH, len(payload))
    if digest != payload_digest(key, payload):
        raise InvalidEntry("its digest is not that of its content")
    return payload


def _read(fd: int, size: int) -> memoryview:
    """Return the first `size` bytes, fewer at the end of the file. One call reads at most 2 GiB."""
    if not size:
        return memoryview(b"")
    try:
        memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        if error.errno == errno.ENOMEM:
            raise MemoryError(f"{size} bytes for an entry") from error
        raise
    with suppress(OSError):  # a kernel without huge pages
        memory.madvise(mmap.MADV_HUGEPAGE)  # a fault a page costs more than the reading
    content, done = memoryview(memory), 0
    while done < size and (count := os.preadv(fd, [content[done:]], done)):
        done += count
    return content[:done]


# ---------------------------------------------------------------- removal, with the lock of the directory


def evict(entry: Entry) -> bool:
    """Remove an entry and its sidecar; False if it is being read or cannot be removed."""
    try:
        fd = open_entry(entry.path)
    except FileNotFoundError:
        return True
    except OSError:
        return remove(entry.path)  # a file that cannot be opened is not being read
    try:
        return try_lock(fd, optional=True) and remove(entry.path)
    finally:
        os.close(fd)


def remove(path: Path) -> bool:
    """Remove the entry `path` and its sidecar, which goes first: alone it would be overlooked."""
    try:
        sidecar_path(path).unlink(missing_ok=True)
        path.unlink(missing_ok=True)
    except OSError:
        return False
    return True


def remove_leftovers(directory: Path) -> int:
    """Remove files of dead processes: temporary ones, locks, sidecars without entry. Returns their bytes."""
    names_now = set(os.listdir(directory))
    return sum(_remove_unlocked(directory / name) for name in names_now if _is_leftover(name, names_now))


def _is_leftover(name: str, present: set[str]) -> bool:
    """Whether the file is a leftover, unless locked."""
    if match := _TEMPORARY.fullmatch(name):
        return ProcessIdentity(int(match[1]), int(match[2]), process_identity.boot_id()).has_ended()
    if name.endswith(_SIDECAR):
        key = name.removesuffix(_SIDECAR)
        return is_key(key) and key not in present
    return name.endswith(_LOCK) and is_key(name.removesuffix(_LOCK))


def _remove_unlocked(path: Path) -> int:
    """Remove a file unless it is locked: its process may live in another pid namespace."""
    try:
        fd = os.open(path, _READ)
    except OSError:
        return 0
    try:
        size = os.fstat(fd).st_size
        if try_lock(fd, optional=True) and is_open_as(fd, path):
            path.unlink()
            return size
    except OSError:
        pass  # it stays for a process that may remove it
    finally:
        os.close(fd)
    return 0
