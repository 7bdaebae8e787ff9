"""POSIX semaphores of other programs: wait for one before a submission, signal one after it.

Level Zero calls a semaphore from elsewhere an external semaphore. Here the host waits for it and signals it,
because the engine must not sleep on behalf of others. A wait does not take: if a program took a post and was
killed before finishing, the post would be lost. The post is taken after the work is done and signalled, so a
program killed at any line gets its turn again.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from softnpu.driver.connection import Connection
from softnpu.driver.errors import ZeError, check_type, error, invalid_argument
from softnpu.driver.handle import Handle
from softnpu.driver.shared_memory import check_name, failed
from softnpu.driver.waiting import FOREVER, new_budget, wait
from softnpu.emulator.common import linux, native_files
from softnpu.emulator.interface.result import ZeResult

_PREFIX = "/dev/shm/sem."
"""Directory and prefix of names of `sem_open` in the C library."""
_SIZE = 32
"""Bytes of a `sem_t` of glibc on 64 bits."""
_libc = ctypes.CDLL(None, use_errno=True)
_libc.sem_post.argtypes = (ctypes.c_void_p,)
_libc.sem_trywait.argtypes = (ctypes.c_void_p,)
_libc.sem_getvalue.argtypes = (ctypes.c_void_p, ctypes.POINTER(ctypes.c_int))


@functools.cache
def _guard() -> ctypes.CDLL:
    """Return the library that waits without taking. Raises `OSError` where it was not built."""
    library = ctypes.CDLL(str(native_files.guard()))
    library.softnpu_semaphore_wait.argtypes = (ctypes.c_void_p, ctypes.c_int64)
    return library


class ExternalSemaphore(Handle):
    """A named semaphore (`sem_open`) of other programs, from `Device.import_external_semaphore`."""

    def __init__(self, owner: Handle, connection: Connection, name: str) -> None:
        call = "Device.import_external_semaphore"
        check_type(call, "semaphore, name", name, str)
        check_name(call, "semaphore", name)
        self.name = name
        self._connection = connection
        self._sleep = _waiting_call(call)
        self._pages = _map(call, name)
        self._address = linux.address_of(self._pages)
        self._spin = new_budget()
        self._register(owner, connection, lambda: None)

    @property
    def value(self) -> int:
        """The current value: how often it can be taken."""
        self._check("ExternalSemaphore.value")
        return self._value()

    def wait(self, timeout_ns: int = FOREVER) -> bool:
        """Wait until it can be taken, without taking it; return False on time-out.

        Raises `ZeError` with DEVICE_LOST within 50 ms when the daemon is gone.
        """
        call = "ExternalSemaphore.wait"
        self._check(call)
        return wait(
            call, lambda: self._value() > 0, self._wait_slice, timeout_ns, self._connection, self._spin
        )

    def take(self) -> bool:
        """Take it without waiting (`sem_trywait`); return False if it cannot be taken."""
        self._check("ExternalSemaphore.take")
        return int(_libc.sem_trywait(self._address)) == 0

    def signal(self) -> None:
        """Signal it (`sem_post`): one more can take it. INVALID_SIZE beyond its maximum."""
        call = "ExternalSemaphore.signal"
        self._check(call)
        if _libc.sem_post(self._address) != 0:
            raise error(
                call,
                ZeResult.ERROR_INVALID_SIZE,
                f"semaphore {self.name!r}",
                found=os.strerror(ctypes.get_errno()),
                expected="a value that can still grow",
            )

    @contextmanager
    def turn(self, done: ExternalSemaphore | None = None, timeout_ns: int = FOREVER) -> Iterator[bool]:
        """Take one turn: wait, run the block, signal `done`, take. Yields what `wait` returned.

        After a time-out, or if the block raises, nothing is signalled or taken. A program killed between the
        last two steps has already signalled and repeats its work when it restarts: turn numbers in the shared
        memory tell a repeat from the next turn. Only one program may take from a semaphore at a time; if
        another did, NOT_AVAILABLE is raised.
        """
        arrived = self.wait(timeout_ns)
        yield arrived
        if not arrived:
            return
        if done is not None:
            done.signal()
        if not self.take():
            raise error(
                "ExternalSemaphore.turn",
                ZeResult.ERROR_NOT_AVAILABLE,
                f"semaphore {self.name!r}",
                found="taken by another program during this turn",
                expected="one program that takes from it",
            )

    def _wait_slice(self, time_ns: int) -> None:
        self._sleep(self._address, time_ns)

    def _value(self) -> int:
        number = ctypes.c_int()
        _libc.sem_getvalue(self._address, ctypes.byref(number))
        return number.value


def _waiting_call(call: str) -> Callable[[int, int], int]:
    try:
        function: Callable[[int, int], int] = _guard().softnpu_semaphore_wait
        return function
    except OSError as failure:
        raise error(
            call,
            ZeResult.ERROR_DEPENDENCY_UNAVAILABLE,
            "library of the guard",
            found=str(failure),
            expected=f"{native_files.GUARD_NAME}, which pip builds where it finds a C++ compiler",
        ) from failure


def _map(call: str, name: str) -> mmap.mmap:
    """Map the semaphore into this process. Opened once: the name may mean another one later."""
    subject = f"semaphore {name!r}"
    try:
        fd = os.open(_PREFIX + name[1:], os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError as failure:
        expected = "a semaphore that its owner has made under this name, and that this user may write"
        raise failed(call, subject, failure, expected) from failure
    try:
        size = os.fstat(fd).st_size
        if not linux.is_shared_memory(fd) or size != _SIZE:
            raise invalid_argument(
                call, subject, found=f"a file of {size} bytes", expected=f"one of sem_open, of {_SIZE} bytes"
            )
        return linux.map_shared(fd, _SIZE)
    except OSError as failure:
        raise _not_mapped(call, subject, failure) from failure
    finally:
        os.close(fd)


def _not_mapped(call: str, subject: str, failure: OSError) -> ZeError:
    return failed(call, subject, failure, "a semaphore that can be mapped")
