"""Starting the processes of engines and compiler workers.

The first engine is started before the supervisor is imported (`start_early`), so that both import what they
need side by side; this module imports little for that.
"""

from __future__ import annotations

import enum
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Final, NamedTuple

from softnpu.emulator.common import failpoints
from softnpu.emulator.supervisor.children.spawner import Spawned, Spawner


class ChildProgram(enum.StrEnum):
    """The modules that children run, by name: the supervisor must not import compute code."""

    ENGINE = "softnpu.emulator.engine"
    COMPILER = "softnpu.emulator.compiler"
    CACHE_FILL = "softnpu.emulator.openvino.cache_fill"
    KERNELS = "softnpu.emulator.kernels.wasm_process"


class ChildProcess(NamedTuple):
    """`python -m PROGRAM FD PARENT_PID`, with `channel` to its FD; `output`: the pipe that it writes to."""

    process: subprocess.Popen[bytes]
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
_TUNABLES: Final = "GLIBC_TUNABLES"
_HUGE_PAGES: Final = "glibc.malloc.hugetlb=1"
"""Huge pages for large heap blocks, where the kernel grants them on request.

Converting 2 GiB of weights took 1.15 s without, 0.7 s with it: most of the time went into page faults. A
process of a compiler, whose pages are all new, reads YOLOv8n in 19 ms instead of 23.
"""

# The OpenBLAS of numpy would start a thread for each core, which spins while the process imports the rest:
# 75 ms of CPU time on two cores. Nothing here multiplies matrices with numpy. A process that locks itself in
# has one thread, so this is no choice of the user.
ONE_THREAD: Final = {"OPENBLAS_NUM_THREADS": "1"}

_early: Final[dict[ChildProgram, ChildProcess]] = {}


def start_early(program: ChildProgram) -> None:
    """Start the first process of this program ahead of use; harmless when repeated.

    It ends with this process in any case.
    """
    if program not in _early:
        _early[program] = start(program)


def take(program: ChildProgram) -> ChildProcess:
    """Return a process of this program: the one started early, or a new one. Raises `OSError`."""
    early = _early.pop(program, None)
    return start(program) if early is None else early


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
        # the user's choices come last and win
        variables[_TUNABLES] = ":".join(filter(None, (_HUGE_PAGES, os.environ.get(_TUNABLES))))
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
