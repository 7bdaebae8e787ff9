"""An opened exported model: a range of a descriptor.

A path, an open file and bytes mapped from a file become that file's descriptor; bytes in memory become one
sealed copy. No weights are read.
"""

from __future__ import annotations

import io
import mmap
import os
import stat
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov

from softnpu.emulator.blob import container
from softnpu.emulator.blob.container import BlobReader, Section
from softnpu.emulator.blob.weights import CONSTANT_ALIGNMENT
from softnpu.emulator.common import file_ownership, linux
from softnpu.emulator.interface.result import Refused
from softnpu.plugin.errors import BlobError, translated
from softnpu.plugin.exported import metadata as meta
from softnpu.plugin.exported.metadata import BlobPart, Metadata
from softnpu.plugin.files import regular_file_of

_CHUNK = 4 << 20
_MAGIC_NUMBERS = (
    (b"\x7fELF", "an ELF file, as the real device's compiler writes"),
    (b"PK\x03\x04", "a zip archive"),
    (b"<?xml", "an OpenVINO IR, which compile_model takes"),
    (b"GGUF", "a GGUF file"),
)
_REAL_DEVICE = b"OVNPU"


class BlobFile:
    """Bytes `offset` to `offset + length` of `fd`, which it owns; `name` is for messages."""

    def __init__(self, name: str, fd: int, offset: int, length: int) -> None:
        self.name = name
        self.fd = fd
        self.offset = offset
        self.length = length

    @classmethod
    def open(cls, source: Any) -> BlobFile:
        """Open a path, a binary stream (from its beginning, as OpenVINO does), bytes or a tensor.

        Raises `BlobError` for an unreadable source, `TypeError` for another type.
        """
        if isinstance(source, str | os.PathLike):
            return _from_path(Path(source))
        if isinstance(source, ov.Tensor):
            return _from_memory(source.data.reshape(-1).view(np.uint8), "tensor")
        if isinstance(source, bytes | bytearray | memoryview | np.ndarray | mmap.mmap):
            return _from_memory(np.frombuffer(source, np.uint8), "bytes")
        if isinstance(source, io.BytesIO):
            return _from_memory(np.frombuffer(source.getbuffer(), np.uint8), "stream")
        if hasattr(source, "read"):
            return _from_stream(source)
        raise TypeError(
            f"exported model: {type(source).__name__} given; expected a path, a binary stream,"
            " bytes or a tensor"
        )

    @classmethod
    def open_entry(cls, path: Path) -> BlobFile:
        """Open a cache file that only this user or root can have written.

        Raises `BlobError` for others: their content may not match their name.
        """
        name = f"exported model {path}"
        try:
            fd = file_ownership.open_trusted(path)
        except OSError as failure:
            raise BlobError(f"{name}: {failure.strerror}; expected a file of this user or root") from failure
        return cls(name, fd, 0, os.fstat(fd).st_size)

    def close(self) -> None:
        os.close(self.fd)

    def __enter__(self) -> BlobFile:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ------------------------------------------------------------ content

    def metadata(self) -> Metadata:
        """Return the checked metadata. Raises `BlobError` if it is missing, or for another version."""
        end = self._end()
        if not meta.has_trailer(end):
            raise BlobError(f"{self.name}: {self._description()}; expected a file that export_model wrote")
        size = meta.body_length(end, self.length, self.name)
        body = self._read(self.length - meta.TRAILER_SIZE - size, size)
        return meta.decode(body, end, self.name)

    @property
    def has_metadata(self) -> bool:
        """Whether the file ends with the trailer of `export_model`."""
        return meta.has_trailer(self._end())

    @property
    def is_encrypted(self) -> bool:
        """Whether a program's callback has encrypted it."""
        return self._end().endswith(meta.ENCRYPTED)

    @property
    def version(self) -> str:
        """The version of the metadata, which must exist."""
        return meta.version(self._end())

    @property
    def is_raw(self) -> bool:
        """Whether it is exactly a native blob, by the size in its header."""
        size = container.size_of(self._read(0, min(self.length, container.HEADER_SIZE)))
        return size is not None and self.length in (size, meta.page_up(size))

    def raw_part(self) -> BlobPart:
        """Return the native blob at the beginning, by its header's size. Raises `BlobError` without one."""
        head = self._read(0, min(self.length, container.HEADER_SIZE))
        size = container.size_of(head)
        if size is None:
            raise BlobError(f"{self.name}: {self._description()}; expected a native blob")
        return BlobPart(
            kind=meta.MAIN, offset=0, size=min(size, self.length), digest=container.digest_of(head)
        )

    def part(self, part: BlobPart) -> BlobReader:
        """Map a blob of the file and check its header, table and padding; sections are checked when read.

        Raises `BlobError` for a modified blob, and for one that the metadata does not describe.
        """
        begin = self.offset + part.offset
        lead = begin % mmap.ALLOCATIONGRANULARITY
        if part.size > self.length - part.offset:
            raise BlobError(f"{self.name}: {self.length} bytes; expected {part.offset + part.size} at least")
        whole = mmap.mmap(self.fd, lead + part.size, prot=mmap.PROT_READ, offset=begin - lead)
        whole.madvise(mmap.MADV_RANDOM)  # no readahead into the weights
        view = memoryview(whole)[lead:]
        padding = part.offset + part.size, min(self.length, meta.page_up(part.offset + part.size))
        try:
            reader = BlobReader(view)
        except Refused as refused:
            raise BlobError(f"{self.name}: {refused.info}") from refused
        if container.digest_of(bytes(view[: container.HEADER_SIZE])) != part.digest:
            raise BlobError(f"{self.name}: blob '{part.kind}' is another one than its metadata was made for")
        if any(self._read(padding[0], padding[1] - padding[0])):
            raise BlobError(f"{self.name}: bytes after blob '{part.kind}' were changed; expected zeros")
        return reader

    def check_gaps(self, part: BlobPart, reader: BlobReader) -> None:
        """Raise `BlobError` for non-zero bytes between constants."""
        section, reference = reader.extent(Section.WEIGHTS), reader.weights_reference()
        if section is None or reference is None:
            return
        begin, end = part.offset + section[0], 0
        embedded = sorted((c.embedded, c.length, c.name) for c in reference.constants if c.embedded >= 0)
        for at, length, name in [*embedded, (section[1], 0, "")]:
            if any(self._read(begin + end, max(0, at - end))):
                raise BlobError(f"{self.name}: bytes before constant '{name}' were changed; expected zeros")
            end = max(end, at + length)

    # ------------------------------------------------------------

    def _end(self) -> bytes:
        return self._read(max(0, self.length - meta.TRAILER_SIZE), min(self.length, meta.TRAILER_SIZE))

    def _read(self, at: int, size: int) -> bytes:
        # no readahead: megabytes of unneeded weights follow
        os.posix_fadvise(self.fd, 0, 0, os.POSIX_FADV_RANDOM)
        try:
            parts = []
            while size > 0:
                part = os.pread(self.fd, size, self.offset + at)
                if not part:
                    raise BlobError(f"{self.name}: ends at byte {at}; expected {size} more. Copy it again")
                parts.append(part)
                at, size = at + len(part), size - len(part)
            return b"".join(parts)
        finally:
            os.posix_fadvise(self.fd, 0, 0, os.POSIX_FADV_NORMAL)

    def _description(self) -> str:
        """Describe a file without metadata by its first and last bytes."""
        if not self.length:
            return "an empty file"
        if self.is_encrypted:
            return "encrypted by CACHE_ENCRYPTION_CALLBACKS"
        head = self._read(0, min(self.length, 8))
        if self._end().endswith(_REAL_DEVICE):
            return "a blob for the real device, which OpenVINO's NPU plugin wrote: the emulator cannot run it"
        if head == container.MAGIC:
            return (
                "a native blob without metadata, or the begin of an exported file (NPU_IMPORT_RAW_BLOB=YES"
                " takes a native blob)"
            )
        known = next((kind for magic, kind in _MAGIC_NUMBERS if head.startswith(magic)), None)
        return known or f"a file that begins with {head!r} and has no metadata"


def _from_path(path: Path) -> BlobFile:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as failure:
        raise BlobError(f"exported model {path}: {failure.strerror}; expected a readable file") from failure
    info = os.fstat(fd)
    if not stat.S_ISREG(info.st_mode):
        os.close(fd)
        raise BlobError(f"exported model {path}: no regular file; expected a file that export_model wrote")
    return BlobFile(f"exported model {path}", fd, 0, info.st_size)


def _from_stream(stream: Any) -> BlobFile:
    """Open a stream: a regular file by its descriptor, any other as a sealed copy."""
    fd = regular_file_of(stream)
    if fd is not None:
        if isinstance(stream, io.BufferedRandom):
            stream.flush()
        path = getattr(stream, "name", "")
        name = f"exported model {path}" if isinstance(path, str) and path else "exported model"
        return BlobFile(name, os.dup(fd), 0, os.fstat(fd).st_size)
    if stream.seekable():
        stream.seek(0)
    copy = linux.memfd("export")
    try:
        while chunk := stream.read(_CHUNK):
            if not isinstance(chunk, bytes | bytearray | memoryview):
                raise TypeError(
                    f"exported model: a stream of {type(chunk).__name__}; expected a binary stream"
                )
            view = memoryview(chunk)
            while view:
                view = view[os.write(copy, view) :]
        linux.seal(copy, linux.SEALS_IMMUTABLE)
    except BaseException:
        os.close(copy)
        raise
    return BlobFile("exported model", copy, 0, os.fstat(copy).st_size)


def _from_memory(data: np.ndarray[Any, Any], container_kind: str) -> BlobFile:
    name = f"exported model in {container_kind}"
    if not data.nbytes:
        raise BlobError(f"{name}: it is empty; expected what export_model wrote")
    from softnpu.driver.process_memory import Piece, gather  # late: most models come from files

    piece = Piece("exported model", int(data.ctypes.data), data.nbytes)
    with translated(name, BlobError):
        gathered = gather([piece], "pfnCreate2")
    (file,) = gathered.files
    if file.offset % CONSTANT_ALIGNMENT:  # constants would be misaligned too
        os.close(file.fd)
        return BlobFile(name, linux.sealed_copy("export", data.data), 0, data.nbytes)
    return BlobFile(name, file.fd, file.offset, file.length)
