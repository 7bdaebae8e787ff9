"""Exported models that a program encrypts, with CACHE_ENCRYPTION_CALLBACKS.

    ciphertext      what the first callback made of a whole exported file
    last 16 bytes   length of the ciphertext u64 | "SNPUCRYP"

The plaintext is in memory only, on both sides.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

from softnpu.emulator.blob import container
from softnpu.emulator.common import linux
from softnpu.plugin.errors import BlobError, NpuError
from softnpu.plugin.exported import metadata as meta
from softnpu.plugin.exported.blob_file import BlobFile

Callbacks = tuple[Callable[[bytes], bytes], Callable[[bytes], bytes]]
PROPERTY: Final = "CACHE_ENCRYPTION_CALLBACKS"
_END: Final = struct.Struct("<Q8s")


def encrypted(write: Callable[[int], int], callbacks: Callbacks, subject: str) -> bytes:
    """Return the encrypted form of what `write` writes into a descriptor; it returns the length.

    Raises `NpuError` for a callback that fails.
    """
    fd = linux.memfd("export")
    try:
        plain = _read(fd, write(fd))
    finally:
        os.close(fd)
    cipher = _called(callbacks[0], plain, f"{subject}, encrypt", NpuError)
    return cipher + _END.pack(len(cipher), meta.ENCRYPTED)


@contextmanager
def decrypted(file: BlobFile, callbacks: Callbacks | None, *, is_needed: bool = False) -> Iterator[BlobFile]:
    """Provide the file to import, which is `file` itself if it is not encrypted.

    Raises `BlobError` for an encrypted file without callbacks or with others, and if `is_needed` for a plain
    one.
    """
    if not file.is_encrypted:
        if is_needed:
            raise BlobError(f"{file.name}: not encrypted; expected it encrypted, as {PROPERTY} are given")
        yield file
        return
    if callbacks is None:
        raise BlobError(f"{file.name}: encrypted; expected {PROPERTY} in the config")
    size = file.length - _END.size
    length, _ = _END.unpack(os.pread(file.fd, _END.size, file.offset + size))
    if length != size:
        raise BlobError(f"{file.name}: {size} encrypted bytes; expected {length}. Copy it again")
    data = _called(callbacks[1], _read(file.fd, size, file.offset), f"{file.name}, decrypt", BlobError)
    if not meta.has_trailer(data) and container.size_of(data[: container.HEADER_SIZE]) is None:
        raise BlobError(
            f"{file.name}: decrypted it is no exported model; expected the {PROPERTY} that belong to it"
        )
    with BlobFile(file.name, linux.sealed_copy("export", data), 0, len(data)) as plain:
        yield plain


def _called(callback: Any, data: bytes, subject: str, kind: type[NpuError]) -> bytes:
    try:
        result = callback(data)
    except Exception as error:
        raise kind(f"{subject}: the callback raised {type(error).__name__}: {error}") from error
    if not isinstance(result, bytes | bytearray):
        raise kind(f"{subject}: the callback returned {type(result).__name__}; expected bytes")
    return bytes(result)


def _read(fd: int, size: int, offset: int = 0) -> bytes:
    with os.fdopen(os.dup(fd), "rb") as file:
        file.seek(offset)
        return file.read(size)
