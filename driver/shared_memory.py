"""Memory of other programs, published under a POSIX name (`shm_open`) or known by its descriptor.

Its owner can cut it at any time. The device is guarded against that; a view in this process is not: like any
program that maps such memory, this one ends with SIGBUS when it touches what is gone.
"""

from __future__ import annotations

import errno
import fcntl
import os
from types import ModuleType

from softnpu.driver.errors import ZeError, error, invalid_argument
from softnpu.emulator.common import linux
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
    """The module of this name. Raises `ZeError` with DEPENDENCY_UNAVAILABLE where it is not installed."""
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
    """Refuse what is no portable POSIX name: a slash, then up to 250 characters without one."""
    if not name.startswith("/") or "/" in name[1:] or "\0" in name or not 1 < len(os.fsencode(name)) <= 251:
        raise invalid_argument(
            call, f"{kind} {name!r}", found="no POSIX name", expected="a slash and 1 to 250 bytes without one"
        )


def failed(call: str, subject: str, failure: OSError, expected: str) -> ZeError:
    """The error for a name that could not be opened or made."""
    return error(
        call,
        _RESULTS.get(failure.errno or 0, ZeResult.ERROR_UNKNOWN),
        subject,
        found=failure.strerror or str(failure),
        expected=expected,
    )


def open_name(call: str, name: str) -> int:
    """A descriptor of the shared memory with this name, the caller's."""
    module = posix_ipc(call)
    check_name(call, "shared memory", name)
    try:
        descriptor: int = linux.above_streams(module.SharedMemory(name).fd)
    except (OSError, module.Error) as failure:
        reason = _reason(module, failure)
        expected = "shared memory that its owner has made under this name, and that this user may write"
        raise failed(call, f"shared memory {name!r}", reason, expected) from failure
    return descriptor


def _reason(module: ModuleType, failure: Exception) -> OSError:
    """What the module says, as an `OSError`."""
    numbers = {
        module.ExistentialError: errno.ENOENT,
        module.PermissionsError: errno.EACCES,
    }
    number = numbers.get(type(failure))
    if number is None:
        return failure if isinstance(failure, OSError) else OSError(0, str(failure))
    return OSError(number, os.strerror(number))


def is_foreign(fd: int) -> bool:
    """Whether it is a file in shared memory that its owner can cut."""
    return linux.is_shared_memory(fd) and not linux.has_seals(fd, linux.SEALS_FIXED_SIZE)


def part_of(call: str, subject: str, fd: int, offset: int, size: int | None) -> int:
    """The size of a part of a memory file that begins at `offset`; without a size it is all behind that.

    Raises `ZeError`: UNSUPPORTED_FEATURE for what is no shared memory, INVALID_SIZE for a part that does not
    lie in it.
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
