"""The processes of a Python function: forked from the program that registered it, they have what it has.

The *helper* is a child of the program. It computes nothing: whenever the daemon sends it a channel through
its socket, it forks a process that locks itself in, as the process of WebAssembly kernels does, and runs the
function for the engine at the other end. So a process that was killed, or that hangs, is replaced. The helper
ends with its socket, which the daemon closes when the context is gone, and all processes end with it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import threading
import warnings
from typing import NoReturn, TextIO

from softnpu.emulator.common import linux
from softnpu.emulator.interface.channel import Channel
from softnpu.emulator.kernels import description, serving
from softnpu.emulator.kernels.description import Function, FunctionDescription
from softnpu.emulator.kernels.errors import Failure, failed
from softnpu.emulator.kernels.function_call import FunctionKernel
from softnpu.emulator.kernels.serving import Server
from softnpu.emulator.links import kernels as link
from softnpu.emulator.sandbox import sandbox

_LAST_STREAM = 2


class Helper:
    """A running helper, as its program sees it. `described` has its name."""

    def __init__(self, fd: int, function: Function, described: FunctionDescription) -> None:
        """Fork it; it gets the socket `fd`, which is closed here."""
        self.described = described
        for stream in (sys.stdout, sys.stderr):  # what is unwritten would be written twice
            if stream is not None:
                stream.flush()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter(
                    "ignore", DeprecationWarning
                )  # of other threads: it uses none of theirs
                self.pid = os.fork()
            if not self.pid:
                _serve(fd, function, described)
        finally:
            os.close(fd)
        self._reaper = threading.Thread(target=self._reap, name="softnpu helper", daemon=True)
        self._reaper.start()

    @property
    def is_running(self) -> bool:
        return self._reaper.is_alive()

    def _reap(self) -> None:
        with contextlib.suppress(ChildProcessError):  # the program has waited for it
            os.waitpid(self.pid, 0)


def _serve(helper_fd: int, function: Function, described: FunctionDescription) -> NoReturn:
    """Fork a process for each channel that comes through the socket, until it is closed."""
    try:
        _leave_the_program(helper_fd)
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for them
        with socket.socket(fileno=helper_fd) as connection:
            while True:
                data, fds, _, _ = socket.recv_fds(connection, 1, 1)
                if not data:
                    os._exit(0)
                parent = os.getpid()
                for fd in fds:
                    if not os.fork():
                        _serve_channel(fd, parent, connection, function, described)
                    os.close(fd)
    finally:
        os._exit(1)


def _serve_channel(
    fd: int, parent: int, helper: socket.socket, function: Function, described: FunctionDescription
) -> NoReturn:
    try:
        linux.die_with_parent(parent)
        helper.close()
        channel = Channel(socket.socket(fileno=fd))
        begun = serving.begin(channel)
        if begun is not None:
            setup, mailbox, wake_fd, request = begun
            missing = sandbox.enter(sandbox.Policy(memory=setup.memory))
            channel.send(request, link.encode(link.Ready(missing_protections=missing)))
            Server(channel, mailbox, wake_fd, lambda content: _loaded(content, function, described)).serve()
        os._exit(0)
    finally:
        os._exit(1)


def _loaded(content: bytes, function: Function, described: FunctionDescription) -> FunctionKernel:
    wanted = description.read(content)
    if wanted != described:
        raise failed(Failure.MODULE, wanted.full_name, "another function here", described.full_name)
    return FunctionKernel(function, described)


def _stream(fd: int) -> TextIO | None:
    try:
        return open(fd, "w", buffering=1, errors="backslashreplace", closefd=False)
    except OSError:  # the program has closed it
        return None


def _leave_the_program(kept: int) -> None:
    """Give up what a fork has of its program: signal handlers, and descriptors but the one kept and streams.

    They become /dev/null, as objects of the program may still close their numbers. What is printed goes to
    the streams, whatever the program has in their place, such as a notebook's.
    """
    sys.stdout, sys.stderr = (_stream(fd) for fd in (1, 2))
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the program
    linux.unblock_signals()
    nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for name in os.listdir("/proc/self/fd"):
        fd = int(name)
        if fd > _LAST_STREAM and fd not in (kept, nothing):
            with contextlib.suppress(OSError):  # that of the list itself is closed by now
                os.fstat(fd)
                os.dup2(nothing, fd, inheritable=False)
