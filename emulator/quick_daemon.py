"""A daemon whose socket is there within milliseconds: a process takes it, then it becomes the daemon.

For `softnpu run`, whose program need not wait until a daemon is imported; so this imports little. Clients
that connect meanwhile wait. To the kernel the listener is the daemon's: `exec` changes no process.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # these two are most of `signal` and `socket`,
import _socket  # which take ten times as long to import
import os
import sys

from softnpu.emulator import descriptor_limit, socket_files
from softnpu.emulator.common import streams
from softnpu.emulator.interface import daemon_files, socket_place

TYPE_CHECKING = False  # that of `typing` takes longer to import than all of this
if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from typing import NoReturn

_MODULE = "softnpu.emulator.autostart"
_TAKEN_S = 5.0
_SERVES_S = 60
"""A process that has not become a daemon by then is killed: Python may hang where it has no memory."""
_TAKEN = b"\n"


def start(path: str, environment: Mapping[str, str]) -> bool:
    """Return whether the socket `path` takes connections, for a daemon with this environment.

    If not, nothing is left but a log, and nobody is told why: who then starts one in another way is. This
    process must be one thread.
    """
    ours, theirs = _socket.socketpair()
    try:
        child = os.fork()
        if not child:
            ours.close()
            _begin(path, environment, theirs)
        theirs.close()
        ours.settimeout(_TAKEN_S)
        try:
            is_taken = ours.recv(1) == _TAKEN
        except TimeoutError:
            is_taken = False  # it may be stopped; the next one gives up when it cannot tell us
        _end(child)
    finally:
        theirs.close()
        ours.close()
    return is_taken


def _end(child: int) -> None:
    """End our child: it has nothing left to do, but may be stopped."""
    try:
        if os.waitpid(child, os.WNOHANG) == (0, 0):
            os.kill(child, _signal.SIGKILL)
            os.waitpid(child, 0)
    except (ChildProcessError, ProcessLookupError):
        return  # this process ignores the end of children: it is gone, and its pid may be another's


def _begin(path: str, environment: Mapping[str, str], tell: _socket.socket) -> NoReturn:
    has_log = False
    try:
        if os.fork():
            os._exit(0)  # the daemon is no child of the program, which may wait for its own
        os.setsid()
        descriptor_limit.raise_it()
        daemon_files.check_folder(os.path.dirname(path))
        log = daemon_files.open_own(socket_place.log_of(path), os.O_WRONLY | os.O_APPEND, "log file")
        lock, listener = socket_files.take(path)
        try:
            _leave_descriptors(log, (lock.fd, listener), tell)
            has_log = True
            tell.send(_TAKEN)
        except OSError:
            os.unlink(path)  # who has begun this is gone
            lock.release()
            raise
        tell.close()
        _signal.signal(_signal.SIGALRM, _signal.SIG_DFL)
        _signal.pthread_sigmask(_signal.SIG_SETMASK, ())
        _signal.alarm(_SERVES_S)  # stays with the process after `exec`; the daemon ends it
        words = [sys.executable, "-P", "-m", _MODULE, "--taken", path, str(lock.fd), str(listener)]
        os.execve(words[0], words, environment)
    except BaseException:  # noqa: BLE001  # the frames above are those of `softnpu run`
        if has_log:
            sys.excepthook(*sys.exc_info())
    finally:
        os._exit(1)


def _leave_descriptors(log: int, kept: Collection[int], tell: _socket.socket) -> None:
    """Write into the log, keep what the daemon keeps, and close all that `softnpu run` was given."""
    nothing = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    for fd, stream in ((nothing, 0), (log, 1), (log, streams.LAST)):
        os.dup2(fd, stream)
    for fd in kept:
        os.set_inheritable(fd, True)
    for fd in map(int, os.listdir("/proc/self/fd")):
        if fd > streams.LAST and fd not in kept and fd != tell.fileno():
            try:
                os.set_inheritable(fd, False)
            except OSError:
                continue  # that of the list itself
