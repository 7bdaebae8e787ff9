"""Forks processes: `python -m softnpu.tools.shared.fork_server MODULE:FUNCTION FD PARENT-PID [ARGUMENT...]`.

A new Python process spends half a second on imports; one forked after them works within milliseconds.
`FUNCTION(*ARGUMENTS)` imports and prepares, and returns the function that every child runs.
Requests come over a SOCK_SEQPACKET socket. When that closes, the server and all its children end.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import select
import signal
import socket
import subprocess
import sys
import traceback
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec

from softnpu.driver import starter
from softnpu.emulator.common import linux

_MESSAGE: Final = 1 << 16
_END_S: Final = 10.0

ChildFunction = Callable[[bytes, socket.socket], int]
"""A child's function: it receives its request and a connection to the parent, and returns its exit code."""


class Started(msgspec.Struct, frozen=True, tag=True):
    """A child runs. Its pidfd and the parent's end of its connection come with the message."""

    pid: int


class Exited(msgspec.Struct, frozen=True, tag=True):
    """A child has ended, with a status as `waitpid` returns it."""

    pid: int
    status: int


class Child:
    """A process forked for `request`; `connection` is our end of its connection."""

    def __init__(self, pid: int, pidfd: int, connection: socket.socket, request: bytes) -> None:
        self.pid = pid
        self.pidfd = pidfd
        self.connection = connection
        self.request = request

    def close(self) -> None:
        """Close both descriptors."""
        os.close(self.pidfd)
        self.connection.close()


class ForkServer:
    """A server process owned by the caller. It inherits `pass_fds`."""

    def __init__(
        self,
        function: str,
        *arguments: str,
        pass_fds: Sequence[int] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._requested: deque[bytes] = deque()
        self._exited: dict[int, Exited] = {}
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        command = [
            sys.executable,
            "-P",
            "-m",
            __name__,
            function,
            str(theirs.fileno()),
        ]
        with theirs:
            self._process = subprocess.Popen(
                [*command, str(os.getpid()), *arguments],
                pass_fds=(theirs.fileno(), *pass_fds),
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C goes to the caller, which ends the server
                env=None if environment is None else {**os.environ, **environment},
            )
        self.pid = self._process.pid

    def fileno(self) -> int:
        """Return the descriptor to poll: readable when `receive` returns at once."""
        return self._socket.fileno()

    def request(self, request: bytes) -> None:
        """Ask for a child; `receive` returns it."""
        self._requested.append(request)
        self._socket.send(request)

    def receive(self) -> Child | Exited:
        """Return the next start or exit of a child. Raise `ChildProcessError` if the server has ended."""
        return self._exited.pop(next(iter(self._exited))) if self._exited else self._read()

    def start(self, request: bytes) -> Child:
        """Start a child for this request; return it once it runs."""
        self.request(request)
        while not isinstance(message := self._read(), Child):
            self._exited[message.pid] = message
        return message

    def wait(self, child: Child) -> int:
        """Wait for a child; return its exit code as `subprocess` does."""
        while child.pid not in self._exited:
            message = self._read()
            assert isinstance(message, Exited)  # `start` has returned every child
            self._exited[message.pid] = message
        return os.waitstatus_to_exitcode(self._exited.pop(child.pid).status)

    def close(self) -> None:
        """End the server and with it all children."""
        self._socket.close()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _read(self) -> Child | Exited:
        data, fds, _, _ = socket.recv_fds(self._socket, _MESSAGE, 2)
        if not data:
            raise ChildProcessError(f"the fork server ended with {self._process.wait(_END_S)}")
        message = msgspec.json.decode(data, type=Started | Exited)
        if isinstance(message, Exited):
            return message
        return Child(message.pid, fds[0], socket.socket(fileno=fds[1]), self._requested.popleft())


# ------------------------------------------------------------ the server's process


def main(arguments: Sequence[str]) -> int:
    """Serve until the other end of the socket is closed."""
    function, fd, parent, *rest = arguments
    linux.die_with_parent(int(parent))
    module, _, name = function.partition(":")
    starter.may_begin_early = False  # what is imported would begin a daemon for nobody
    run: ChildFunction = getattr(importlib.import_module(module), name)(*rest)
    starter.may_begin_early = True  # the children are programs
    with socket.socket(fileno=int(fd)) as requests:
        _Server(run, requests).serve()
    return 0


class _Server:
    def __init__(self, run: ChildFunction, requests: socket.socket) -> None:
        self._run = run
        self._requests = requests
        # a child's collector would write to every shared object, and so copy its page
        gc.collect()
        gc.freeze()

    def serve(self) -> None:
        wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._own_fds = (wake_read, wake_write)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        poller = select.poll()
        poller.register(self._requests, select.POLLIN)
        poller.register(wake_read, select.POLLIN)
        while True:
            for fd, _ in poller.poll():
                if fd == wake_read:
                    os.read(wake_read, _MESSAGE)
                    self._reap()
                    continue
                try:
                    request = self._requests.recv(_MESSAGE)
                except ConnectionResetError:
                    return  # the other end left without having read every message
                if not request:
                    return
                self._fork(request)

    def _fork(self, request: bytes) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            ours.close()
            self._become_child(request, theirs, parent)
        theirs.close()
        pidfd = os.pidfd_open(pid)
        try:
            message = msgspec.json.encode(Started(pid=pid))
            socket.send_fds(self._requests, [message], [pidfd, ours.fileno()])
        finally:
            os.close(pidfd)
            ours.close()

    def _become_child(self, request: bytes, connection: socket.socket, parent: int) -> None:
        """Become the child; never return."""
        code = 1
        try:
            linux.die_with_parent(parent)
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for fd in self._own_fds:
                os.close(fd)
            self._requests.close()
            code = self._run(request, connection)
        except BaseException:  # noqa: BLE001 - nothing above this frame is the child's
            traceback.print_exc()
        finally:
            # the stack is the server's: it must not be unwound here
            os._exit(code)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            with contextlib.suppress(ConnectionError):  # the other end is gone, which `serve` sees next
                self._requests.send(msgspec.json.encode(Exited(pid=pid, status=status)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
