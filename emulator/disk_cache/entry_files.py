"""The directory of the compiled-model cache: names, the lock, entries, leftovers of dead processes.

    KEY             an entry, mode 0440; replaced only by renaming
    KEY.lock        locked by the process that compiles for KEY, empty
    .KEY.*.tmp      a file that is being written
    KEY.json        what an earlier version wrote beside an entry; removed with the next change

An entry is the payload, then its digest. Between them may lie a note for people: a JSON object of texts, and
its length in 4 bytes; the digest covers both, and tells whether they are there. Programs count the files and
bytes of the directory, and compare its times: nothing lies beside an entry, and a hit only sets its access
time.

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
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import msgspec
from blake3 import blake3

from softnpu.emulator.common import file_ownership, process_identity
from softnpu.emulator.common.file_claim import is_open_as, lock_before, try_lock
from softnpu.emulator.common.process_identity import ProcessIdentity

KEY_LENGTH: Final = 80
DIGEST_LENGTH: Final = 80

_KEY: Final = re.compile(rf"[0-9a-f]{{{KEY_LENGTH}}}")
_TEMPORARY: Final = re.compile(rf"\.[0-9a-f]{{{KEY_LENGTH}}}\.(\d+)-(\d+)\.\w+\.tmp")
_OLD_SIDECAR, _LOCK = ".json", ".lock"
_NOTED: Final = " noted"  # behind a key in the digest of an entry with a note
_NOTE_LENGTH: Final = 4
_OPEN: Final = os.O_CLOEXEC | os.O_NOFOLLOW
_READ: Final = _OPEN | os.O_RDONLY | os.O_NONBLOCK  # opening a FIFO would wait for its writer
_CONTENT: Final = 64  # the part of a digest over the content
_THREADS_FROM: Final = 1 << 20  # below this many bytes one thread of blake3 is faster than all of them


class InvalidEntry(Exception):
    """An entry that differs from what was stored, with the reason. Never leaves the cache."""


class Entry(msgspec.Struct, frozen=True):
    """An entry as the directory shows it. Sizes in bytes, times in nanoseconds since 1970."""

    key: str
    path: Path
    size: int
    created_ns: int
    used_ns: int


# ---------------------------------------------------------------- names


def is_key(text: str) -> bool:
    """Whether `text` can be the name of an entry."""
    return _KEY.fullmatch(text) is not None


def lock_path(path: Path) -> Path:
    """Return the lock of the process that compiles for the entry `path`."""
    return path.with_name(path.name + _LOCK)


def temporary_path(path: Path) -> Path:
    """Return the path of this process's temporary file for the entry `path`."""
    pid = os.getpid()
    return path.with_name(f".{path.name}.{pid}-{process_identity.start_time(pid)}.entry.tmp")


def entries(directory: Path) -> list[Entry]:
    """All entries, the least recently used first. Raises `OSError` when the directory cannot be listed."""
    listed: list[Entry] = []
    with os.scandir(directory) as listing:
        for item in listing:
            if is_key(item.name):
                with suppress(FileNotFoundError):  # removed meanwhile
                    info = item.stat(follow_symlinks=False)
                    if not stat.S_ISDIR(info.st_mode):
                        path, times = directory / item.name, (info.st_mtime_ns, info.st_atime_ns)
                        listed.append(Entry(item.name, path, info.st_size, *times))
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
    return _hasher(payload).hexdigest().encode() + _key_digest(key)


def _hasher(payload: bytes | memoryview) -> blake3:
    return blake3(payload, max_threads=blake3.AUTO if len(payload) >= _THREADS_FROM else 1)


def _key_digest(key: str) -> bytes:
    return blake3(key.encode()).hexdigest(8).encode()


def encode(key: str, payload: bytes | memoryview, note: Mapping[str, str] | None) -> list[bytes | memoryview]:
    """Return the parts of an entry. Equal payloads and notes make equal entries."""
    if note is None:
        return [payload, payload_digest(key, payload)]
    text = msgspec.json.encode({_utf8(name): _utf8(value) for name, value in note.items()})
    tail = text + len(text).to_bytes(_NOTE_LENGTH, "little")
    digest = _hasher(payload).update(tail).hexdigest().encode()
    return [payload, tail, digest + _key_digest(key + _NOTED)]


def _utf8(text: str) -> str:
    return text.encode("utf-8", "replace").decode()  # a model may be named anything


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
    content = _read(fd, info.st_size - DIGEST_LENGTH)
    digest = os.pread(fd, DIGEST_LENGTH, len(content))
    expected = payload_digest(key, content)
    if digest == expected:
        return content
    if digest[:_CONTENT] != expected[:_CONTENT] or digest[_CONTENT:] != _key_digest(key + _NOTED):
        raise InvalidEntry("its digest is not that of its content")
    return content[: len(content) - _NOTE_LENGTH - int.from_bytes(content[-_NOTE_LENGTH:], "little")]


def read_note(path: Path) -> dict[str, str]:
    """Return the note of an entry, whose digest is not checked; empty if there is none that can be read."""
    try:
        with open(file_ownership.open_trusted(path), "rb") as file:
            end = os.fstat(file.fileno()).st_size - DIGEST_LENGTH - _NOTE_LENGTH
            tail = os.pread(file.fileno(), _NOTE_LENGTH + DIGEST_LENGTH, max(0, end))
            length = int.from_bytes(tail[:_NOTE_LENGTH], "little")
            if tail[_NOTE_LENGTH + _CONTENT :] != _key_digest(path.name + _NOTED) or length > end:
                return {}
            return msgspec.json.decode(os.pread(file.fileno(), length, end - length), type=dict[str, str])
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}


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
    """Remove an entry; False if it is being read or cannot be removed."""
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
    """Remove the entry `path`; False if that is impossible."""
    try:
        path.unlink(missing_ok=True)
    except OSError:
        return False
    return True


def remove_leftovers(directory: Path) -> int:
    """Remove files of dead processes, and sidecars of an earlier version. Returns their bytes."""
    return sum(_remove_unlocked(directory / name) for name in os.listdir(directory) if _is_leftover(name))


def _is_leftover(name: str) -> bool:
    """Whether the file is a leftover, unless locked."""
    if match := _TEMPORARY.fullmatch(name):
        return ProcessIdentity(int(match[1]), int(match[2]), process_identity.boot_id()).has_ended()
    stem, _, ending = name.rpartition(".")
    return is_key(stem) and f".{ending}" in (_OLD_SIDECAR, _LOCK)


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
