"""Memory of this process that the device can use in place: shared mappings of files in shared memory.

Private pages are unreachable for another process. Files on a local disk, and those that this process may not
write, are for reading only.
"""

from __future__ import annotations

import fcntl
import os

from softnpu.driver.errors import ZeError, error, invalid_argument, null_pointer
from softnpu.driver.process_maps import Area, find_area, is_file, open_mapped_file
from softnpu.emulator.common import linux
from softnpu.emulator.interface.records import PAGE
from softnpu.emulator.interface.result import ZeResult


def open_system_memory(call: str, address: int, size: int, *, read_only: bool) -> tuple[int, int]:
    """Return the file of `size` bytes at `address`, as a new descriptor, and the offset in it.

    Raises `ZeError`: INVALID_NULL_POINTER, UNSUPPORTED_SIZE for none, INVALID_ARGUMENT unless they are whole
    pages, UNSUPPORTED_FEATURE for memory that the device cannot share.
    """
    name = f"{size} bytes at {address:#x}"
    if address == 0:
        raise null_pointer(call, "system memory", found="null pointer", expected="an address")
    if size <= 0:
        result = ZeResult.ERROR_UNSUPPORTED_SIZE
        raise error(call, result, "system memory", found=f"{size} bytes", expected="at least 1")
    if address % PAGE or (size % PAGE and not read_only):
        raise invalid_argument(call, name, found="parts of pages", expected=f"whole pages of {PAGE} bytes")
    area = find_area(address)
    if area is None or address + size > area.end:
        raise _not_shared(call, name, "not in one mapping")
    if area.access[3] != "s" or not area.inode:
        raise _not_shared(call, name, "private pages, which no other process can reach")
    if read_only:
        return _open_for_reading(call, name, area, _offset(area, address), size), _offset(area, address)
    if not area.access.startswith("rw"):
        raise _not_shared(call, name, "not readable and writable")
    fd = open_mapped_file(area, os.O_RDWR)
    if fd is None:
        raise _not_shared(call, name, f"{area.path or 'its file'} cannot be opened")
    if not linux.is_shared_memory(fd) and not linux.has_seals(fd, linux.SEALS_FIXED_SIZE):
        os.close(fd)
        raise _not_shared(call, name, f"in {area.path}, which is no shared memory")
    return fd, _offset(area, address)


def _open_for_reading(call: str, name: str, area: Area, offset: int, size: int) -> int:
    """Return a descriptor without write access: the daemon needs none, and judges the file system."""
    if not area.access.startswith("r"):
        raise _not_shared(call, name, "not readable")
    fd = open_mapped_file(area)
    if fd is not None and fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE != os.O_RDONLY:
        fd = _reopened(fd, area)
    if fd is None:
        raise _not_shared(call, name, f"{area.path or 'its file'} cannot be opened")
    if os.fstat(fd).st_size < offset + size:
        os.close(fd)
        raise _not_shared(call, name, f"behind the end of {area.path}")
    return fd


def _reopened(fd: int, area: Area) -> int | None:
    """Return the same file open for reading; None if that is another one, as on an overlay."""
    try:
        again = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    finally:
        os.close(fd)
    if is_file(again, area):
        return again
    os.close(again)
    return None


def _offset(area: Area, address: int) -> int:
    return area.offset + address - area.start


def _not_shared(call: str, name: str, found: str) -> ZeError:
    return error(
        call,
        ZeResult.ERROR_UNSUPPORTED_FEATURE,
        name,
        found=found,
        expected="a shared mapping of a file of memfd_create or shm_open",
        hint="copy the data into memory of the device, or take the tensor from such a file",
    )
