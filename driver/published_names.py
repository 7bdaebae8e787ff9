"""POSIX names of published memory, which end with this program: see `name_keeper`."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from softnpu.driver import name_keeper
from softnpu.emulator.common import streams
from softnpu.emulator.interface.environment import ENV_PYTHON

_PROGRAM = Path(name_keeper.__file__)
_START_S = 30.0
_ANSWER_S = 30.0


class PublishedNames:
    """The names of this program, and its connection to their keeper, which runs while there are names."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # finalizers drop names, even inside `make`
        self._made: dict[int, tuple[str, int]] = {}
        """Name and inode of each publication, by its number."""
        self._keeper: socket.socket | None = None
        self._numbers = itertools.count()

    def make(self, name: str, size: int, mode: int) -> tuple[int, int]:
        """Make named shared memory; return the number of the publication and a new descriptor.

        Raises `OSError`: EEXIST for an existing name, ENOSPC without room, ECONNRESET without a keeper.
        """
        with self._lock:
            number = next(self._numbers)
            self._made[number] = name, 0  # so that no finalizer ends the keeper meanwhile
            try:
                request = {"request": "make", "number": number, "name": name, "size": size, "mode": mode}
                fd = streams.above_streams(self._ask_keeper(request))
                self._made[number] = name, os.fstat(fd).st_ino
                return number, fd
            except BaseException:
                self._forget(number)
                raise

    def drop(self, number: int) -> None:
        """Remove the name of a publication now, unless it refers to other memory by now."""
        with self._lock:
            name, inode = self._made.get(number, ("", 0))
            with contextlib.suppress(OSError):  # gone, or another user's by now
                if inode and os.lstat(name_keeper.FOLDER + name).st_ino == inode:
                    os.unlink(name_keeper.FOLDER + name)
            self._forget(number)

    def _forget(self, number: int) -> None:
        self._made.pop(number, None)
        if self._keeper is None:
            return
        with contextlib.suppress(OSError):  # it has exited
            self._keeper.send(json.dumps({"request": "drop", "number": number}).encode(), socket.MSG_DONTWAIT)
        if not self._made:
            self._keeper.close()
            self._keeper = None

    def _ask_keeper(self, request: dict[str, Any]) -> int:
        """Return the descriptor of the keeper's answer; replace a killed keeper."""
        for known in (self._keeper, None):
            keeper = self._keeper = known or self._start_keeper()
            try:
                return self._answer(keeper, request)
            except ConnectionError:
                keeper.close()
                self._keeper = None
        raise ConnectionResetError("the process that keeps names has ended twice")

    def _answer(self, keeper: socket.socket, request: dict[str, Any]) -> int:
        keeper.send(json.dumps(request).encode())
        while True:
            packet, fds, _, _ = socket.recv_fds(keeper, name_keeper.MOST, 1)
            if not packet:
                raise ConnectionResetError
            answer = json.loads(packet)
            if answer["number"] == request["number"]:
                break
            for fd in fds:  # for a request that was given up
                os.close(fd)
        if answer["errno"]:
            raise OSError(answer["errno"], os.strerror(answer["errno"]))
        return fds[0]

    def _start_keeper(self) -> socket.socket:
        """Start a new keeper, which takes over the existing names."""
        near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        pidfd = os.pidfd_open(os.getpid())
        try:
            python = sys.executable or os.environ.get(ENV_PYTHON, "python3")
            command = [python, "-I", "-S", str(_PROGRAM), str(far.fileno()), str(pidfd), str(os.getpid())]
            with subprocess.Popen(
                command,
                pass_fds=(far.fileno(), pidfd),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            ) as starter:
                starter.wait(_START_S)
            near.settimeout(_ANSWER_S)
            for number, (name, inode) in self._made.items():
                if inode:
                    known = {"request": "adopt", "number": number, "name": name, "inode": inode}
                    near.send(json.dumps(known).encode())
        except BaseException:
            near.close()
            raise
        finally:
            far.close()
            os.close(pidfd)
        return near

    def abandon(self) -> None:
        """Forget the names in a forked child: they belong to the parent."""
        self._lock = threading.RLock()
        self._made.clear()
        if self._keeper is not None:
            self._keeper.close()
            self._keeper = None


published = PublishedNames()
os.register_at_fork(after_in_child=published.abandon)
