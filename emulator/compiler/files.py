"""Descriptors that came from a client: checked, read and mapped. Nothing of them is trusted.

Checks are made on the descriptor, never on a path. A file on disk can still be truncated by its owner while
it is mapped; touching the lost pages is then a SIGBUS, which ends the worker and with it this one job.
Memory files with `linux.SEALS_FIXED_SIZE` cannot do that.
"""

from __future__ import annotations

import mmap
import os

from softnpu.emulator.blob.weight_space import check_range
from softnpu.emulator.common import linux
from softnpu.emulator.interface.result import ZeResult, refuse

XML_LIMIT = 256 << 20
"""Bytes that an IR's XML may have; a YOLOv8n with 537 operations has 0.3 MB."""


def read_xml(fd: int, length: int, subject: str) -> bytes:
    """Return a private copy of the first `length` bytes of `fd`: it cannot change while it is parsed."""
    check_range(fd, 0, length, subject)
    if length > XML_LIMIT:
        raise refuse(
            ZeResult.ERROR_UNSUPPORTED_SIZE,
            subject,
            found=f"{length} bytes",
            expected=f"at most {XML_LIMIT} bytes",
        )
    data = os.pread(fd, length, 0)
    if len(data) != length:
        raise refuse(
            ZeResult.ERROR_INVALID_SIZE,
            subject,
            found=f"only {len(data)} bytes could be read",
            expected=f"{length} bytes",
        )
    return data


def map_range(fd: int, offset: int, length: int, subject: str) -> memoryview:
    """`length` bytes from `offset` of `fd`, mapped and not copied; unmapped when the last view is gone.

    The mapping is private, and nothing is written to it.
    """
    check_range(fd, offset, length, subject)
    start = offset - offset % mmap.ALLOCATIONGRANULARITY
    skipped = offset - start
    try:
        whole = mmap.mmap(fd, skipped + length, access=mmap.ACCESS_READ, offset=start)
    except ValueError as error:  # the file has shrunk since it was checked
        raise refuse(
            ZeResult.ERROR_INVALID_SIZE, subject, found=str(error), expected=f"{length} bytes"
        ) from error
    return memoryview(whole)[skipped:]


def immutable(fd: int, length: int, subject: str) -> int:
    """Return a new descriptor of a memory file that holds the first `length` bytes of `fd` and cannot change.

    It is a duplicate of `fd` when that is such a file already, else a sealed copy.
    """
    check_range(fd, 0, length, subject)
    if linux.has_seals(fd, linux.SEALS_IMMUTABLE) and os.fstat(fd).st_size == length:
        return os.dup(fd)
    check_fits(length, subject)
    copy = linux.memfd("blob")
    try:
        _copy(fd, copy, length, subject)
        linux.seal(copy, linux.SEALS_IMMUTABLE)
    except BaseException:
        os.close(copy)
        raise
    return copy


def _copy(source: int, target: int, length: int, subject: str) -> None:
    done = 0
    while done < length:
        sent = os.sendfile(target, source, done, length - done)
        if sent == 0:
            raise refuse(
                ZeResult.ERROR_INVALID_SIZE,
                subject,
                found=f"ends after {done} bytes",
                expected=f"{length} bytes",
            )
        done += sent


def check_fits(length: int, subject: str) -> None:
    """Refuse with `ERROR_OUT_OF_HOST_MEMORY` a copy that no host could hold.

    A sparse file of a petabyte costs its sender nothing, but its copy would cost us all memory.
    """
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if length > total:
        raise refuse(
            ZeResult.ERROR_OUT_OF_HOST_MEMORY,
            subject,
            found=f"{length} bytes, the host has {total} of memory ({free} unused)",
            expected="a blob that fits into memory",
        )
