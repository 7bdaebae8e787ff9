"""The process that owns the names of published memory, which end with the program, however it ends.

    python -I -S name_keeper.py SOCKET PIDFD PID

A killed program cannot remove its names, so it never makes them: it asks this process, which outlives it
briefly. This process makes the memory, passes the descriptor, and waits for the end of the program (by pidfd;
the pid is for process listings) or of the connection. Then, or on request, it unlinks those names that still
refer to its memory. It exits with its last name. Standard library only: it starts in a few milliseconds.

Requests are packets of JSON: `make` (answered, with the descriptor), `adopt` and `drop` (not answered).
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import sys
from typing import Any

FOLDER = "/dev/shm"
"""Directory of `shm_open` on Linux."""
MOST = 4096


class Names:
    """The names that this process owns, and the inode of each, by publication number.

    A name may be published again while older memory of that name is still in use.
    """

    def __init__(self) -> None:
        self._made: dict[int, tuple[str, int]] = {}

    def __len__(self) -> int:
        return len(self._made)

    def make(self, number: int, name: str, size: int, mode: int) -> int:
        """Make the memory; return its descriptor. Raises `OSError`, leaving nothing behind."""
        flags = os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(FOLDER + name, flags, 0o600)
        try:
            self._made[number] = name, os.fstat(fd).st_ino
            os.posix_fallocate(fd, 0, size)
            os.fchmod(fd, mode)  # regardless of the umask; last, so that nobody opens it half made
        except OSError:
            self.drop(number)
            os.close(fd)
            raise
        return fd

    def adopt(self, number: int, name: str, inode: int) -> None:
        """Take over a name made by an earlier process."""
        self._made[number] = name, inode

    def drop(self, number: int) -> None:
        """Remove the name of a publication, unless it refers to other memory by now."""
        if number not in self._made:
            return  # it was not made
        name, inode = self._made.pop(number)
        with contextlib.suppress(FileNotFoundError):
            if os.lstat(FOLDER + name).st_ino == inode:
                os.unlink(FOLDER + name)

    def drop_all(self) -> None:
        """Remove all names."""
        for number in list(self._made):
            self.drop(number)


def serve(connection: socket.socket, pidfd: int) -> None:
    """Serve one program until it or its last name ends."""
    names = Names()
    poller = select.poll()
    poller.register(connection, select.POLLIN)
    poller.register(pidfd, select.POLLIN)
    try:
        while True:
            ready = [fd for fd, _ in poller.poll()]
            if pidfd in ready:
                return
            packet = connection.recv(MOST)
            if not packet:
                return
            _handle(connection, names, json.loads(packet))
            if not len(names):
                return
    except (ConnectionError, ValueError):
        return  # treated as the end of its program
    finally:
        names.drop_all()


def _handle(connection: socket.socket, names: Names, request: dict[str, Any]) -> None:
    number = request["number"]
    match request["request"]:
        case "make":
            try:
                fd = names.make(number, request["name"], request["size"], request["mode"])
            except OSError as failure:
                connection.send(json.dumps({"number": number, "errno": failure.errno}).encode())
                return
            answer = json.dumps({"number": number, "errno": 0}).encode()
            try:
                socket.send_fds(connection, [answer], [fd])
            finally:
                os.close(fd)
        case "adopt":
            names.adopt(number, request["name"], request["inode"])
        case "drop":
            names.drop(number)


def main() -> None:
    """Detach, so that no program has to wait for this one, and serve."""
    if os.fork():
        os._exit(0)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # sent to a whole process group: the program ends first
    os.chdir("/")
    serve(socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2]))


if __name__ == "__main__":
    main()
