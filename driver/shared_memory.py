"""Memory of other programs, published under a POSIX name (`shm_open`) or known by its descriptor.

Its owner can truncate it at any time. The device is guarded against that; a view in this process is not: like
any program with such a mapping, this one gets SIGBUS when it touches missing pages.
"""

from __future__ import annotations

import errno
import fcntl
import os
from types import ModuleType

from softnpu.driver.errors import ZeError, error, invalid_argument
from softnpu.emulator.common import linux, streams
from softnpu.emulator.interface.result import ZeResult

_RESULTS = {
    errno.EACCES: ZeResult.ERROR_INSUFFICIENT_PERMISSIONS,
    errno.EPERM: ZeResult.ERROR_INSUFFICIENT_PERMISSIONS,
    errno.ENOENT: ZeResult.ERROR_NOT_AVAILABLE,
    errno.EEXIST: ZeResult.ERROR_NOT_AVAILABLE,
    errno.ENOSPC: ZeResult.ERROR_OUT_OF_HOST_MEMORY,
    errno.ENOMEM: ZeResult.ERROR_OUT_OF_HOST_MEMORY,
}


def posix_ipc(call: str) -> ModuleType:
    """Import the module of this name. Raises `ZeError` with DEPENDENCY_UNAVAILABLE if it is not installed."""
    try:
        import posix_ipc as module
    except ModuleNotFoundError:
        raise error(
            call,
            ZeResult.ERROR_DEPENDENCY_UNAVAILABLE,
            "module posix_ipc",
            found="not installed",
            expected="the module that opens POSIX names",
            hint="install it: pip install 'softnpu[tools]', or posix_ipc alone",
        ) from None
    posix_ipc: ModuleType = module
    return posix_ipc


def check_name(call: str, kind: str, name: str) -> None:
    """Reject names that are not portable POSIX names: a slash, then up to 250 characters without one."""
    if not name.startswith("/") or "/" in name[1:] or "\0" in name or not 1 < len(os.fsencode(name)) <= 251:
        raise invalid_argument(
            call, f"{kind} {name!r}", found="no POSIX name", expected="a slash and 1 to 250 bytes without one"
        )


def failed(call: str, subject: str, failure: OSError, expected: str) -> ZeError:
    """Return the error for a name that could not be opened or made."""
    return error(
        call,
        _RESULTS.get(failure.errno or 0, ZeResult.ERROR_UNKNOWN),
        subject,
        found=failure.strerror or str(failure),
        expected=expected,
    )


def open_name(call: str, name: str) -> int:
    """Open the shared memory with this name; return a new descriptor."""
    module = posix_ipc(call)
    check_name(call, "shared memory", name)
    try:
        descriptor: int = streams.above_streams(module.SharedMemory(name).fd)
    except (OSError, module.Error) as failure:
        reason = _reason(module, failure)
        expected = "shared memory that its owner has made under this name, and that this user may write"
        raise failed(call, f"shared memory {name!r}", reason, expected) from failure
    return descriptor


def _reason(module: ModuleType, failure: Exception) -> OSError:
    """Return the module's failure as an `OSError`."""
    numbers = {
        module.ExistentialError: errno.ENOENT,
        module.PermissionsError: errno.EACCES,
    }
    number = numbers.get(type(failure))
    if number is None:
        return failure if isinstance(failure, OSError) else OSError(0, str(failure))
    return OSError(number, os.strerror(number))


def is_foreign(fd: int) -> bool:
    """Return whether this is a file in shared memory that its owner can truncate."""
    return linux.is_shared_memory(fd) and not linux.has_seals(fd, linux.SEALS_FIXED_SIZE)


def part_of(call: str, subject: str, fd: int, offset: int, size: int | None) -> int:
    """Return the size of a part of a memory file from `offset`; without a size, of the rest.

    Raises `ZeError`: UNSUPPORTED_FEATURE unless it is shared memory, INVALID_SIZE for a part outside it.
    """
    if not linux.is_shared_memory(fd):
        raise error(
            call,
            ZeResult.ERROR_UNSUPPORTED_FEATURE,
            subject,
            found="a descriptor of something else than shared memory",
            expected="a file of shm_open or memfd_create",
            hint="copy the data into memory of the device",
        )
    if fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE != os.O_RDWR:
        raise invalid_argument(
            call, subject, found="open for reading only", expected="a descriptor for reading and writing"
        )
    length = os.fstat(fd).st_size
    taken = length - offset if size is None else size
    if offset < 0 or taken <= 0 or taken > length - offset:
        raise error(
            call,
            ZeResult.ERROR_INVALID_SIZE,
            subject,
            found=f"{'all bytes' if size is None else f'{size} bytes'} from byte {offset} on, of {length}",
            expected="a part of it that is not empty",
        )
    return taken
