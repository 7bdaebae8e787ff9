"""Counts the system calls of processes: with the kernel's tracepoints for root, else with ptrace.

ptrace, in a process of its own as `strace -c`, stops a thread twice for each call. So a traced program is
slow, and calls made after some time (a look at other events, the end of a spin) come more often. A process
that makes no call is not disturbed.
"""

from __future__ import annotations

import ctypes
import errno
import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Final, NoReturn

import msgspec

from softnpu.tools.bench import perf_calls
from softnpu.tools.bench.worker import Worker

_SEIZE, _INTERRUPT, _TO_NEXT_CALL, _CALL_INFO = 0x4206, 0x4207, 24, 0x420E
_OPTIONS: Final = 1 | 8  # PTRACE_O_TRACESYSGOOD, PTRACE_O_TRACECLONE
_AT_CALL: Final = signal.SIGTRAP | 0x80
_ENTRY: Final = 1
_NUMBER: Final = slice(24, 32)
_ALL_THREADS: Final = 0x40000000  # __WALL
_PR_SET_PTRACER, _ANYONE = 0x59616D61, -1
_libc = ctypes.CDLL(None, use_errno=True)
_libc.ptrace.argtypes = (ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p)
_libc.ptrace.restype = ctypes.c_long


class Watched(msgspec.Struct, frozen=True):
    """Processes to count in."""

    pids: list[int]


class Called(msgspec.Struct):
    """Calls by pid and name; and why the kernel refused to trace a process, by pid.

    `exact`: counting slowed nothing.
    """

    calls: dict[int, dict[str, int]]
    refused: dict[int, str]
    exact: bool = False


@contextmanager
def counted(pids: list[int]) -> Iterator[Called]:
    """Yield what has the calls of these processes after the block."""
    result = Called({}, {})
    with ExitStack() as stack:
        try:
            result.calls = stack.enter_context(perf_calls.counted(pids))
            result.exact = True
        except OSError:
            stack.enter_context(_traced(pids, result))
        yield result


@contextmanager
def _traced(pids: list[int], result: Called) -> Iterator[None]:
    with Worker("counter of system calls", "system_calls:prepare", Watched(pids)) as worker:
        worker.wait_until_ready()
        worker.begin()
        yield
        os.kill(worker.pid, signal.SIGUSR1)
        answer = worker.answer(Called, 60.0)
    result.calls, result.refused = answer.calls, answer.refused


def allow_tracing() -> None:
    """Allow any process of this user to trace this one; without Yama in the kernel all may anyway."""
    _libc.prctl(_PR_SET_PTRACER, ctypes.c_ulong(_ANYONE), 0, 0, 0)


class _Ended(Exception):
    """The counted program is done."""


class _Tracer:
    def __init__(self) -> None:
        self.calls: dict[int, Counter[str]] = {}
        self.refused: dict[int, str] = {}
        self._owners: dict[int, int] = {}

    def attach(self, pid: int) -> None:
        """Trace all threads of a process, which then wait for `follow`."""
        try:
            for thread in sorted(map(int, os.listdir(f"/proc/{pid}/task"))):
                _ptrace(_SEIZE, thread, _OPTIONS)
                _ptrace(_INTERRUPT, thread)
                self._owners[thread] = pid
        except OSError as error:
            self.refused[pid] = error.strerror or str(error)
        else:
            self.calls[pid] = Counter()

    def follow(self) -> None:
        """Count until a signal comes or nothing is left to trace."""
        while True:
            thread, status = os.waitpid(-1, _ALL_THREADS)
            if os.WIFSTOPPED(status):
                self._stopped(thread, os.WSTOPSIG(status), status >> 16)

    def _stopped(self, thread: int, stop: int, event: int) -> None:
        deliver = 0
        if stop == _AT_CALL:
            self._count(thread)
        elif not event:
            deliver = stop
        try:
            _ptrace(_TO_NEXT_CALL, thread, deliver)
        except ProcessLookupError:  # killed meanwhile
            return

    def _count(self, thread: int) -> None:
        info = ctypes.create_string_buffer(96)
        if _libc.ptrace(_CALL_INFO, thread, ctypes.sizeof(info), info) > 0 and info.raw[0] == _ENTRY:
            number = int.from_bytes(info.raw[_NUMBER], "little")
            self.calls[self._owner(thread)][perf_calls.NAMES.get(number, f"call {number}")] += 1

    def _owner(self, thread: int) -> int:
        """Return the process of a thread, which may be younger than the trace."""
        if thread not in self._owners:
            self._owners[thread] = next(
                pid for pid in self.calls if os.path.exists(f"/proc/{pid}/task/{thread}")
            )
        return self._owners[thread]


def prepare(start: Watched) -> Callable[[float], Called]:
    """Attach to the processes; return a turn that counts until SIGUSR1. The end of this process detaches."""
    signal.signal(signal.SIGUSR1, _end)
    tracer = _Tracer()
    for pid in start.pids:
        tracer.attach(pid)

    def turn(_: float) -> Called:
        try:
            tracer.follow()
        except (_Ended, ChildProcessError):  # nothing to trace
            signal.signal(signal.SIGUSR1, signal.SIG_IGN)
        return Called({pid: dict(calls) for pid, calls in tracer.calls.items()}, tracer.refused)

    return turn


def _end(*_: object) -> NoReturn:
    raise _Ended


def _ptrace(request: int, thread: int, data: int = 0) -> None:
    if _libc.ptrace(request, thread, None, data) == -1:
        error = ctypes.get_errno()
        if error == errno.ESRCH:
            raise ProcessLookupError(error, os.strerror(error))
        raise OSError(error, os.strerror(error))
