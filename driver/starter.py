"""The process that starts a daemon for this one. It can begin before this one knows that it needs a daemon.

It takes as long as a program's own imports, so `softnpu run` and the plugin begin it before theirs. Until it
is told the socket nothing can be seen of it, and it ends by itself: after some seconds, or with this process.
This module imports little.
"""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Mapping
from contextlib import suppress

from softnpu.emulator.interface import socket_place
from softnpu.emulator.interface.environment import ENV_AUTOSTART, ENV_LEASE, of_daemon

_MODULE = "softnpu.emulator.autostart"
_LONGEST_NAME = 60
_STREAMS = 3
_begun: list[Starter] = []
may_begin_early = True
"""False for programs that mostly have daemons of their own."""


class Starter:
    """A process that starts a daemon with this environment, and then ends."""

    def __init__(self, environment: Mapping[str, str], likely: str, claim: str = "") -> None:
        """Begin it; in /proc it shows the `likely` socket.

        Its input is bound to the name `claim`: raises `OSError` if that of another one is.
        """
        import socket  # late: most daemons run already
        import subprocess

        self.is_early = bool(claim)
        self._environment = environment
        self._owner = _identity()
        self._tell, told = socket.socketpair()
        opened: list[int] = []
        if self._tell.fileno() < _STREAMS:  # one is closed: it would be a pipe that the program may write to
            from softnpu.emulator.common import streams

            self._tell.close()
            told.close()
            opened = streams.open_streams()
            self._tell, told = socket.socketpair()
        try:
            with told:
                if claim:
                    told.bind(claim)
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-m", _MODULE, "--told", likely],
                    stdin=told.fileno(),
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    env=environment,
                )
        finally:
            for fd in opened:
                os.close(fd)

    def serves(self, environment: Mapping[str, str]) -> bool:
        """Whether it waits to be told a socket by this process, for a daemon with this environment."""
        is_alike = (self._owner, self._environment) == (_identity(), environment)
        return is_alike and self._process.poll() is None

    def start(self, socket: str, timeout_s: float) -> tuple[int, bytes, bytes]:
        """Have a daemon serve `socket`; return exit code, output and errors. Raises `TimeoutError`."""
        import subprocess

        try:
            with self._tell, suppress(BrokenPipeError):
                self._tell.sendall(os.fsencode(socket) + b"\0")  # a fork of this process may keep it open
            output, errors = self._process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            self._kill()
            raise TimeoutError from None
        return self._process.returncode, output, errors

    def leave(self) -> None:
        """End it, unless it is another process's; it has started nothing."""
        self._tell.close()
        if self._owner[0] == os.getpid():
            self._kill()

    def _kill(self) -> None:
        self._process.kill()
        with self._process:
            pass  # closes its pipes first: what it has begun may be stopped, and hold them for long


def _identity() -> tuple[object, ...]:
    """Return whose process this is; a program may give up rights after it was imported."""
    return os.getpid(), os.getresuid(), os.getresgid(), os.getgroups()


def begin_early() -> None:
    """Begin a starter if this process may start a daemon, and none has ever served its default socket.

    One at a time for each socket: others would take its processor.
    """
    chosen = os.environ
    # of a program that has Python inside, it is that program: it must not run twice for an import
    is_python = "python" in os.path.basename(sys.executable or "")
    may = may_begin_early and chosen.get(ENV_AUTOSTART) != "0" and not chosen.get(ENV_LEASE)
    if _begun or not (may and is_python):
        return
    with suppress(OSError):  # whoever needs the daemon is told
        likely = socket_place.place()
        if not os.path.lexists(likely):
            _begun.append(Starter(of_daemon(chosen), likely, claim_of(likely)))
            atexit.register(leave_early)


def claim_of(path: str) -> str:
    """Return the name, in no file system, that the early starter for a socket has."""
    return f"\0softnpu-starter-{os.geteuid()}-{path[-_LONGEST_NAME:]}"


def take(socket: str) -> Starter:
    """Return the starter that was begun early if it still serves, else a new one, for this socket."""
    environment = of_daemon(os.environ)
    if _begun and _begun[0].serves(environment):
        return _begun.pop()
    leave_early()
    return Starter(environment, socket)


def leave_early() -> None:
    """End the starter that was begun early: a daemon serves already."""
    while _begun:
        _begun.pop().leave()
