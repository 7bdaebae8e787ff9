"""The thread that starts processes: it has a descriptor table of its own.

A new process closes the descriptors that it inherits, and the supervisor waits until it runs. Among those of
the supervisor may be files that clients have sent, on their way to be closed or parked; closing one whose
server does not answer would hang the new process, and with it the supervisor, as long as the client likes.

Whoever works in this thread has to close what was opened in it: a number means another file elsewhere.
"""

from __future__ import annotations

import errno
import gc
import logging
import os
import queue
import signal
import socket
import subprocess
import threading
import traceback
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from typing import Final, NamedTuple

from softnpu.emulator.common import linux

log = logging.getLogger(__name__)

_STARTED_S: Final = 20.0  # until a program is found and begins, also on a busy disk
_KILLED_S: Final = 1.0


class Spawned(NamedTuple):
    """A process, and descriptors of the thread that it was started in."""

    process: subprocess.Popen[bytes]
    fds: list[int]


class Spawner:
    """Starts processes that inherit no descriptor but those of `keep`."""

    def __init__(self, keep: Sequence[int]) -> None:
        self.pid = os.getpid()
        self.keep = tuple(keep)
        self._jobs: queue.SimpleQueue[Callable[[], Spawned] | None] = queue.SimpleQueue()
        self._outcomes: queue.SimpleQueue[subprocess.Popen[bytes] | Exception] = queue.SimpleQueue()
        self._is_late = False
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        with ExitStack() as failing, theirs:
            failing.callback(self._socket.close)
            begun = threading.Event()
            self._thread = threading.Thread(
                target=self._run, args=(theirs.fileno(), begun), name="spawner", daemon=True
            )
            # a signal is for the thread with the descriptor to wake; processes unblock theirs when they begin
            unblocked = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
            try:
                self._thread.start()
            except RuntimeError as error:
                raise OSError(errno.EAGAIN, str(error)) from error
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, unblocked)
            begun.wait(_STARTED_S)
            failing.pop_all()

    def close(self) -> None:
        """End the thread; the kernel ends the processes that it has started and that wish to die with it."""
        self._jobs.put(None)
        self._thread.join(_STARTED_S)
        self._socket.close()

    @property
    def serves(self) -> bool:
        """Whether it is this process's, and has answered each time."""
        return self.pid == os.getpid() and not self._is_late

    def start(self, make: Callable[[], Spawned]) -> Spawned:
        """Return what `make` returns in the thread, with the descriptors moved here. Raises `OSError`."""
        collects = gc.isenabled()
        gc.disable()  # in the thread it would close descriptors of objects of other threads
        try:
            self._jobs.put(make)
            outcome = self._outcomes.get(timeout=_STARTED_S)
        except queue.Empty:
            self._is_late = True
            raise OSError(errno.ETIMEDOUT, f"it has not started within {_STARTED_S:g} s") from None
        finally:
            if collects:
                gc.enable()
        if isinstance(outcome, Exception):
            raise outcome
        return Spawned(outcome, self._take(outcome))

    def _take(self, process: subprocess.Popen[bytes]) -> list[int]:
        """Receive the descriptors of a process; end it if there is no room for them."""
        fds: list[int] = []
        try:
            _, fds, flags, _ = socket.recv_fds(self._socket, 1, 8, socket.MSG_CMSG_CLOEXEC)
            if flags & socket.MSG_CTRUNC:
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        except BaseException:
            for fd in fds:
                os.close(fd)
            _end(process)
            raise
        return fds

    # ------------------------------------------------------------ in the thread

    def _run(self, fd: int, begun: threading.Event) -> None:
        try:
            linux.leave_descriptors((fd, *self.keep))
        except OSError as error:
            log.warning("processes inherit the descriptors of clients for a moment: %s", error)
            fd = os.dup(fd)
        with socket.socket(fileno=fd) as ours:
            begun.set()
            while (make := self._jobs.get()) is not None:
                self._outcomes.put(self._outcome(make, ours))
                del make

    def _outcome(
        self, make: Callable[[], Spawned], ours: socket.socket
    ) -> subprocess.Popen[bytes] | Exception:
        try:
            process, fds = make()
        except Exception as error:  # noqa: BLE001 - raised where it was asked for
            return _without_objects(error)
        try:
            if self._is_late:
                raise OSError(errno.ETIMEDOUT, "nobody waits for it")
            socket.send_fds(ours, [b"\0"], fds)
        except Exception as error:  # noqa: BLE001
            _end(process)
            return error
        finally:
            for fd in fds:
                os.close(fd)
        return process


def _without_objects(error: Exception) -> Exception:
    """Return an error that keeps no object of its frames, which would close its descriptors elsewhere."""
    one: BaseException | None = error
    while one is not None:
        traceback.clear_frames(one.__traceback__)
        one = one.__context__
    return error


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    with suppress(subprocess.TimeoutExpired):
        process.wait(_KILLED_S)
