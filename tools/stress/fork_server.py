"""`python -m softnpu.tools.stress.fork_server SETUP FD`: has imported everything, and forks clients.

A client that is started so computes a few milliseconds later: only that makes hundreds of deaths a minute
possible. Orders come over a SOCK_SEQPACKET socket, whose end is the end of the nursery and of all clients.
"""

from __future__ import annotations

import gc
import os
import select
import signal
import socket
import sys
from collections.abc import Sequence

import msgspec

from softnpu.emulator.common import linux
from softnpu.tools.stress import worker
from softnpu.tools.stress.progress_page import ProgressPage
from softnpu.tools.stress.reports import Born, Ended, Setup, Start

_MESSAGE = 4096


def main(arguments: Sequence[str]) -> int:
    """Serves until the director closes its end."""
    setup = msgspec.json.decode(arguments[0], type=Setup)
    linux.die_with_parent(setup.parent)
    with socket.socket(fileno=int(arguments[1])) as orders:
        ForkServer(setup, orders).serve()
    return 0


class ForkServer:
    """Forks clients, and tells the director how each of them ended."""

    def __init__(self, setup: Setup, orders: socket.socket) -> None:
        self._setup = setup
        self._orders = orders
        self._board = ProgressPage(setup.board_fd, setup.clients)
        self._subjects = worker.load_subjects(setup)
        # whatever a child touches of the common past would be copied
        gc.collect()
        gc.freeze()

    def serve(self) -> None:
        """Orders in, births and deaths out."""
        wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._inherited = (wake_read, wake_write)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        poller = select.poll()
        poller.register(self._orders, select.POLLIN)
        poller.register(wake_read, select.POLLIN)
        while True:
            for fd, _ in poller.poll():
                if fd == wake_read:
                    os.read(wake_read, _MESSAGE)
                    self._reap()
                    continue
                try:
                    order = self._orders.recv(_MESSAGE)
                except ConnectionResetError:
                    return  # the director left without having heard of every end
                if not order:
                    return
                self._start(msgspec.json.decode(order, type=Start))

    def _start(self, order: Start) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            self._become(order, theirs, ours, parent)
        theirs.close()
        pidfd = os.pidfd_open(pid)
        try:
            born = msgspec.json.encode(Born(client=order.client, pid=pid))
            socket.send_fds(self._orders, [born], [pidfd, ours.fileno()])
        finally:
            os.close(pidfd)
            ours.close()

    def _become(self, order: Start, report: socket.socket, other: socket.socket, parent: int) -> None:
        """The child: never returns."""
        code = 1
        try:
            linux.die_with_parent(parent)
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for fd in self._inherited:
                os.close(fd)
            self._orders.close()
            other.close()
            code = worker.live(self._setup, order, self._board, self._subjects, report)
        finally:
            # nothing of the nursery is to be unwound here
            os._exit(code)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            self._orders.send(msgspec.json.encode(Ended(pid=pid, status=status)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
