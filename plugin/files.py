"""Files: digests of ranges, replacement by renaming, and descriptors behind streams."""

from __future__ import annotations

import io
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from blake3 import blake3

_CHUNK = 8 << 20


def digest_of_range(fd: int, offset: int, length: int, size: int = 32) -> bytes:
    """Return the blake3 of bytes of a file. Read, not mapped, to keep its pages out of this process."""
    hasher = blake3(max_threads=blake3.AUTO)
    end = offset + length
    for at in range(offset, end, _CHUNK):
        hasher.update(os.pread(fd, min(_CHUNK, end - at), at))
    return hasher.digest(size)


@contextmanager
def replacing(path: Path, mode: int) -> Iterator[int]:
    """Open a new file, which replaces whatever has the name `path` at the end of the block.

    No link is followed. After an error the name is unchanged, and the new file is gone.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}")
    fd = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    try:
        yield fd
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    finally:
        os.close(fd)


def regular_file_of(stream: Any, *, writing: bool = False) -> int | None:
    """Return the descriptor of a stream that reads or (at its position) writes a regular file; else None."""
    if not isinstance(stream, io.FileIO | io.BufferedReader | io.BufferedWriter | io.BufferedRandom):
        return None
    raw = stream if isinstance(stream, io.FileIO) else stream.raw
    if not isinstance(raw, io.FileIO) or not (raw.writable() if writing else raw.readable()):
        return None
    if writing and "a" in raw.mode:
        return None
    return raw.fileno() if stat.S_ISREG(os.fstat(raw.fileno()).st_mode) else None
