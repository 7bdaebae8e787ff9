"""A claim on a name in the file system: one process holds it at a time, and its death ends it.

A claim is an exclusive `flock` on a lock file. The kernel drops the lock with the last descriptor of its
holder, so a crashed process never blocks others. The holder removes the file before it drops the lock:
whoever gets the lock of a file that has lost its name starts again.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time

from softnpu.emulator.common import file_ownership

TYPE_CHECKING = False  # that of `typing` takes longer to import than all of this
if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from types import TracebackType
    from typing import Any, Final

# NFS makes flock a range lock: exclusive ones need a descriptor that can write. Others have no locks at all.
_NO_LOCKS: Final = {errno.EBADF, errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP}
_FIRST_PAUSE_S: Final = 0.001
_LONGEST_PAUSE_S: Final = 0.02


def try_lock(fd: int, operation: int = fcntl.LOCK_EX, *, optional: bool = False) -> bool:
    """Lock a file without waiting; False if another process holds the lock.

    `optional`: True as well on a file system without locks, where it is an `OSError` otherwise.
    """
    try:
        fcntl.flock(fd, operation | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if not optional or error.errno not in _NO_LOCKS:
            raise
    return True


def lock_before(fd: int, deadline: float, operation: int = fcntl.LOCK_EX, *, optional: bool = False) -> bool:
    """Lock a file, waiting until `deadline` (of `time.monotonic`); whether that succeeded."""
    pause_s = _FIRST_PAUSE_S
    while not try_lock(fd, operation, optional=optional):
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            return False
        time.sleep(min(pause_s, left_s))  # flock has no time-out
        pause_s = min(pause_s * 2, _LONGEST_PAUSE_S)
    return True


def is_open_as(fd: int, path: str | Path) -> bool:
    """Whether `path` still names the file that is open as `fd`."""
    try:
        return os.path.samestat(os.fstat(fd), os.lstat(path))
    except FileNotFoundError:
        return False


def open_lock_file(path: str | Path) -> int:
    """Open a lock file, creating it with mode 600. `PermissionError` for one that other users could lock."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        reason = file_ownership.distrust(fd)
        if reason:
            raise PermissionError(errno.EPERM, reason, str(path))
    except BaseException:
        os.close(fd)
        raise
    return fd


class FileClaim:
    """A lock file that this process has locked until `release`. `fd` can be read and written."""

    def __init__(self, path: str | Path, fd: int) -> None:
        self.path = path
        self.fd = fd

    @classmethod
    def acquire(
        cls,
        path: str | Path,
        timeout_s: float = 0.0,
        *,
        open_file: Callable[[Any], int] = open_lock_file,
        optional: bool = False,
    ) -> FileClaim | None:
        """Return the claim on a lock file; None if another process holds it for `timeout_s`.

        Raises what `open_file` raises. `optional`: succeeds as well on a file system without locks.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            fd = open_file(path)
            try:
                locked = lock_before(fd, deadline, optional=optional)
                # the last holder may have removed the file between our open and our lock
                if locked and is_open_as(fd, path):
                    return cls(path, fd)
            except BaseException:
                os.close(fd)
                raise
            os.close(fd)
            if not locked:
                return None

    def __enter__(self) -> FileClaim:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def release(self) -> None:
        """Remove the lock file, then drop the lock; harmless when repeated."""
        if self.fd < 0:
            return
        try:
            os.unlink(self.path)
        except FileNotFoundError:
            pass
        except OSError as error:
            import logging  # late: half a MiB of each client

            logging.getLogger(__name__).debug("lock file %s stays: %s", self.path, error)
        fd, self.fd = self.fd, -1
        os.close(fd)
