"""Starting the processes of engines and compiler workers.

The first ones are started before the supervisor is imported (`start_early`), so that all import what they
need side by side; this module imports little for that.
"""

from __future__ import annotations

import enum
import importlib
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from functools import partial
from typing import Final, NamedTuple

from softnpu.emulator.common import failpoints
from softnpu.emulator.interface.environment import HUGE_PAGES, TUNABLES, with_huge_pages
from softnpu.emulator.supervisor.children import forked
from softnpu.emulator.supervisor.children.forked import ForkedProcess
from softnpu.emulator.supervisor.children.spawner import Spawned, Spawner


class ChildProgram(enum.StrEnum):
    """The modules that children run, by name: the supervisor must not import compute code."""

    ENGINE = "softnpu.emulator.engine"
    COMPILER = "softnpu.emulator.compiler"
    CACHE_FILL = "softnpu.emulator.openvino.cache_fill"
    KERNELS = "softnpu.emulator.kernels.wasm_process"


class ChildProcess(NamedTuple):
    """`python -m PROGRAM FD PARENT_PID`, with `channel` to its FD; `output`: the pipe that it writes to."""

    process: subprocess.Popen[bytes] | ForkedProcess
    channel: socket.socket
    output: int

    def abandon(self) -> None:
        """End it: nobody came to use it."""
        try:
            self.process.kill()
        finally:
            self.channel.close()
            os.close(self.output)
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(_KILLED_S)


_KILLED_S: Final = 1.0  # that a killed process may need
# The OpenBLAS of numpy would start a thread for each core, which spins while the process imports the rest:
# 75 ms of CPU time on two cores. Nothing here multiplies matrices with numpy. A process that locks itself in
# has one thread, so this is no choice of the user.
ONE_THREAD: Final = {"OPENBLAS_NUM_THREADS": "1"}

_NEEDED_BY_ALL: Final = (
    "softnpu.emulator.kernels.trust",
    "softnpu.emulator.links.engine",
    "softnpu.emulator.blob.weights",
    "softnpu.emulator.common.log_lines",
    "softnpu.emulator.common.untrusted_fds",
    "softnpu.emulator.interface.commands",
    "softnpu.emulator.platforms",
)
"""What engine, supervisor and mostly the worker import, with what it imports: once instead of three times."""

_early: Final[dict[ChildProgram, ChildProcess]] = {}


def start_early(*programs: ChildProgram) -> None:
    """Fork the first process of each program ahead of use, in this order; harmless when repeated.

    This process must be one thread. They end with it in any case. Nothing is done if they would need another
    environment, which only a program of its own can have.
    """
    alike = failpoints.active is None and HUGE_PAGES in os.environ.get(TUNABLES, "")
    for module in _NEEDED_BY_ALL if alike else ():
        importlib.import_module(module)
    for program in programs:
        if alike and program not in _early:
            _early[program] = _fork(program)


def take(program: ChildProgram) -> ChildProcess:
    """Return a process of this program: the one started early, or a new one. Raises `OSError`."""
    if program not in _early:
        return start(program)
    _spawner(failpoints.inherited()[1])  # it begins before clients send files, which it must not inherit
    return _early.pop(program)


def _fork(program: ChildProgram) -> ChildProcess:
    with ExitStack() as undo:
        output, their_output = os.pipe()
        undo.callback(os.close, output)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        undo.callback(ours.close)
        try:
            process = forked.start(program, theirs.fileno(), their_output, ONE_THREAD)
        finally:
            theirs.close()
            os.close(their_output)
        undo.pop_all()
    return ChildProcess(process, ours, output)


def start(program: ChildProgram) -> ChildProcess:
    """Return a new process of this program. Raises `OSError`."""
    variables, more_fds = failpoints.inherited()
    process, fds = _spawner(more_fds).start(partial(_start, program, variables, more_fds))
    try:
        return ChildProcess(process, socket.socket(fileno=fds[0]), fds[1])
    except BaseException:
        for fd in fds:
            os.close(fd)
        raise


_spawners: Final[list[Spawner]] = []  # the last one serves


def _spawner(keep: Sequence[int]) -> Spawner:
    if not _spawners or not _spawners[-1].serves or _spawners[-1].keep != tuple(keep):
        _spawners.append(Spawner(keep))
    return _spawners[-1]


def _start(program: ChildProgram, variables: dict[str, str], more_fds: Sequence[int]) -> Spawned:
    """Return a new process with its channel and output, in the thread of a spawner."""
    output, their_output = os.pipe()
    try:
        process, channel = _started(program, their_output, variables, more_fds)
        return Spawned(process, [channel.detach(), output])
    except BaseException:
        os.close(output)
        raise
    finally:
        os.close(their_output)


def _started(
    program: ChildProgram, output: int, variables: dict[str, str], more_fds: Sequence[int]
) -> tuple[subprocess.Popen[bytes], socket.socket]:
    if program in (ChildProgram.ENGINE, ChildProgram.COMPILER):
        variables |= with_huge_pages(os.environ)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", program, str(theirs.fileno()), str(os.getpid())],
                pass_fds=(theirs.fileno(), *more_fds),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**os.environ, **ONE_THREAD, **variables},
                process_group=0,  # Ctrl-C in a terminal is for the supervisor, which ends its children
            )
    except BaseException:
        ours.close()
        raise
    return process, ours
