"""The fork server of a worker: it forks a fresh process for each job.

A model can compromise the process that inspects it, and could then falsify other models, even in the caches.
The fork server preloads what such a process needs, and never sees a job itself. It is forked before the
worker has seen one. Once loaded, it keeps a *spare* process, which has only to receive its job.
"""

from __future__ import annotations

import errno
import math
import os
import resource
import select
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
"""Requests: a process, without or with all that is loaded for it, answered with its pid and the descriptor of
its channel, or with an error number below zero; the end of that process; the same, answered with how it has
ended."""
_ANSWER: Final = struct.Struct("=i")
_IDLE_MS: Final = 100  # the client of the last job has priority
LOAD_S: Final = 10
"""CPU seconds for loading, which takes less than one. Without memory OpenVINO's TBB spins forever instead."""


class Program(NamedTuple):
    """The code run for a worker. `load` runs once before any job; `loads_early` waits, and tells whether to.

    `work` prepares itself, then serves one job of its channel.
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

        Raises `ConnectionError` if the fork server has ended, `OSError` if it cannot make them.
        """
        self._requests.send(_BEGIN_LOADED if loaded else _BEGIN)
        data, fds, _, _ = socket.recv_fds(self._requests, _ANSWER.size, 1)
        answer = _unpacked(data)
        if answer < 0:
            raise OSError(-answer, os.strerror(-answer))
        if not fds:  # the kernel drops what this process has no room for; the next request ends its owner
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return answer, Channel(socket.socket(fileno=fds[0]))

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
        return _unpacked(self._requests.recv(_ANSWER.size))


def _unpacked(data: bytes) -> int:
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
    processes = _Processes(requests, program)
    idle = select.poll()
    idle.register(requests, select.POLLIN)
    try:
        if program.loads_early(requests):
            processes.load()
        while True:
            if not idle.poll(_IDLE_MS):
                processes.prepare()
            request = requests.recv(64)
            if not request:
                return
            code = processes.end()
            if request == _STATUS:
                requests.send(_ANSWER.pack(code))
            elif request != _END:
                processes.begin(loaded=request == _BEGIN_LOADED)
    finally:
        processes.close()


class _Processes:
    """The processes of a fork server: the one that has a job, and the spare."""

    def __init__(self, requests: socket.socket, program: Program) -> None:
        self._requests = requests
        self._program = program
        self._is_loaded = False
        self._busy = 0
        self._spare: tuple[int, socket.socket] | None = None

    def load(self) -> None:
        """Load what processes need."""
        if not self._is_loaded:
            _load(self._program)
            self._is_loaded = True

    def prepare(self) -> None:
        """Fork the spare, unless what it needs is not loaded, or a process has a job."""
        if self._is_loaded and not self._busy and self._spare is None:
            with suppress(OSError):  # whoever needs a process is told
                self._spare = self._forked()

    def begin(self, *, loaded: bool) -> None:
        """Answer with a process for a job, or with the error."""
        if loaded:
            self.load()
        try:
            self._busy, channel = self._taken_spare() or self._forked()
            with channel:
                socket.send_fds(self._requests, [_ANSWER.pack(self._busy)], [channel.fileno()])
        except ConnectionError:
            raise
        except OSError as error:
            self.end()
            self._requests.send(_ANSWER.pack(-(error.errno or errno.EIO)))

    def end(self) -> int:
        """End the process that has a job; return how it has ended."""
        busy, self._busy = self._busy, 0
        return _ended(busy) if busy else 0

    def close(self) -> None:
        """End all."""
        self.end()
        if self._spare is not None:
            _ended(self._spare[0])

    def _taken_spare(self) -> tuple[int, socket.socket] | None:
        """Take the spare; None if there is none, or it has not lived until now."""
        spare, self._spare = self._spare, None
        if spare is not None and os.waitpid(spare[0], os.WNOHANG)[0]:
            spare[1].close()
            return None
        return spare

    def _forked(self) -> tuple[int, socket.socket]:
        """Fork a process; return its pid and the other end of its channel."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            parent = os.getpid()
            try:
                child = os.fork()
            except OSError:
                ours.close()
                raise
            if not child:
                self._requests.close()
                ours.close()
                _run(lambda: self._program.work(Channel(theirs)), parent)
        return child, ours


def _load(program: Program) -> None:
    """Load what processes need; end by SIGXCPU, without a core file, if that takes longer than `LOAD_S`."""
    core, cpu = resource.getrlimit(resource.RLIMIT_CORE), resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CORE, (0, core[1]))
    resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(time.process_time()) + LOAD_S, cpu[1]))
    program.load()
    resource.setrlimit(resource.RLIMIT_CPU, cpu)
    resource.setrlimit(resource.RLIMIT_CORE, core)


def _ended(child: int) -> int:
    os.kill(child, signal.SIGKILL)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
