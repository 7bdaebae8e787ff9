"""The fork server of a worker: it forks a fresh process for each job.

A model can compromise the process that inspects it, and could then falsify other models, even in the caches.
The fork server preloads what such a process needs, and never sees a job itself. It is forked before the
worker has seen one.
"""

from __future__ import annotations

import math
import os
import resource
import signal
import socket
import struct
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final, NamedTuple, NoReturn

from softnpu.emulator.common import linux
from softnpu.emulator.interface.channel import Channel

_BEGIN, _BEGIN_LOADED, _END, _STATUS = b"begin", b"begin loaded", b"end", b"status"
"""Requests: a process for the descriptor that comes with it (answered with its pid), without or with all that
is loaded for it; the end of that process; the same, answered with how it has ended."""
_ANSWER: Final = struct.Struct("=i")
LOAD_S: Final = 10
"""CPU seconds for loading, which takes less than one. Without memory OpenVINO's TBB spins forever instead."""


class Program(NamedTuple):
    """The code run for a worker. `load` runs once before any job; `loads_early` waits, and tells whether to.

    `work` serves one job of its channel.
    """

    loads_early: Callable[[socket.socket], bool]
    load: Callable[[], None]
    work: Callable[[Channel], None]


class ForkServer:
    """The fork server, seen from the worker, which has one process of it at a time."""

    def __init__(self, program: Program, outside: Channel) -> None:
        """Fork it, without the worker's channel `outside`; this process must not have threads yet."""
        self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._code: int | None = None  # once it was waited for: its pid may be another's then
        parent = os.getpid()
        self.pid = os.fork()
        if not self.pid:
            self._requests.close()
            outside.close()
            _run(partial(_serve, theirs, program), parent)
        theirs.close()

    def fileno(self) -> int:
        """Return the descriptor that is readable between two jobs when it has ended."""
        return self._requests.fileno()

    def begin(self, *, loaded: bool) -> tuple[int, Channel]:
        """A new process, which has loaded what takes long if `loaded`: its pid, and the channel for its job.

        Raises `ConnectionError` if the fork server has ended.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            try:
                request = _BEGIN_LOADED if loaded else _BEGIN
                socket.send_fds(self._requests, [request], [theirs.fileno()])
                return self._answer(), Channel(ours)
            except BaseException:
                ours.close()
                raise

    def end(self) -> None:
        """End the process that has done its job, whatever else it does."""
        with suppress(ConnectionError):  # the next request tells
            self._requests.send(_END)

    def status(self) -> int:
        """End the process; how it has ended, a signal as a negative number. Raises `ConnectionError`."""
        self._requests.send(_STATUS)
        return self._answer()

    def own_status(self) -> int:
        """End the fork server; how it has ended."""
        if self._code is None:
            self._code = _ended(self.pid)
        return self._code

    def close(self) -> None:
        """End it, and wait for its end."""
        self._requests.close()
        if self._code is None:
            os.waitpid(self.pid, 0)

    def _answer(self) -> int:
        data = self._requests.recv(_ANSWER.size)
        if not data:
            raise ConnectionResetError("the fork server has ended")
        return int(_ANSWER.unpack(data)[0])


def _run(serve: Callable[[], None], parent: int) -> NoReturn:
    """Run in a forked process; never return to the caller's code."""
    code = 1
    try:
        linux.die_with_parent(parent)
        serve()
        code = 0
    except ConnectionError:
        pass  # its worker has ended
    except BaseException:  # noqa: BLE001  # the frames above belong to the parent
        traceback.print_exc()
    finally:
        os._exit(code)


def _serve(requests: socket.socket, program: Program) -> None:
    """Fork processes until the worker has ended."""
    is_loaded = program.loads_early(requests)
    if is_loaded:
        _load(program)
    child = 0
    while True:
        request, fds, _, _ = socket.recv_fds(requests, 64, 1)
        if not request:
            return  # the child ends with this process
        code = _ended(child) if child else 0
        child = 0
        if request == _STATUS:
            requests.send(_ANSWER.pack(code))
        elif request != _END:
            if request == _BEGIN_LOADED and not is_loaded:
                _load(program)
                is_loaded = True
            with socket.socket(fileno=fds[0]) as theirs:
                child = _forked(theirs, requests, program)
            requests.send(_ANSWER.pack(child))


def _load(program: Program) -> None:
    """Load what processes need; end by SIGXCPU, without a core file, if that takes longer than `LOAD_S`."""
    core, cpu = resource.getrlimit(resource.RLIMIT_CORE), resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CORE, (0, core[1]))
    resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(time.process_time()) + LOAD_S, cpu[1]))
    program.load()
    resource.setrlimit(resource.RLIMIT_CPU, cpu)
    resource.setrlimit(resource.RLIMIT_CORE, core)


def _forked(channel: socket.socket, requests: socket.socket, program: Program) -> int:
    parent = os.getpid()
    child = os.fork()
    if not child:
        requests.close()
        _run(lambda: program.work(Channel(channel)), parent)
    return child


def _ended(child: int) -> int:
    os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
