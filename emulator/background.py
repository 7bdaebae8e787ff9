"""Starting a daemon in the background and waiting for it, before anything of the daemon is imported."""

from __future__ import annotations

import os
import re
import resource
import select
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from softnpu.emulator.common import linux
from softnpu.emulator.interface import daemon_files, endpoint
from softnpu.emulator.interface.result import ErrorInfo, Refused, ZeResult, refuse
from softnpu.emulator.supervisor.children import child_process
from softnpu.emulator.supervisor.children.child_process import ChildProgram

START_DEADLINE_S = 30.0
LEAST_DESCRIPTORS = 32
_INTERRUPTED_S = 5.0
_READY = re.compile(rb"ready (\d+)\n")


def start_by_fork(path: Path, serve: Callable[[int], None]) -> bool:
    """Start a daemon in a process that is forked from this one, and wait until it takes connections.

    `serve(ready_fd)` is the daemon of the socket `path`; the first engine imports what it needs before and
    beside that. Its engines may still be starting in the end. Returns whether this is the process that
    waited; in the other one the daemon has ended. For a program that does nothing else. Raises `Refused` with
    the daemon's own reason.
    """
    daemon_files.check_folder(path.parent)
    log_file = endpoint.log_path(path)
    output = daemon_files.open_own(log_file, os.O_WRONLY | os.O_APPEND, "log file")
    read_end, write_end = (linux.above_streams(end) for end in os.pipe())
    if pid := os.fork():
        os.close(write_end)
        os.close(output)
        with os.fdopen(read_end, "rb") as reader, ended_if_interrupted(pid):
            check_answer(read_answer(reader.fileno(), START_DEADLINE_S), log_file)
        return True
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDONLY)
    for fd, stream in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(fd, stream)
    for fd in (read_end, output, nothing):
        os.close(fd)
    try:
        start_first_engine()
        serve(write_end)
    except Refused as error:
        os.write(write_end, msgspec.json.encode(error.info))
    return False


def start_first_engine() -> None:
    """Start the supervisor's first engine early, so that both import concurrently."""
    raise_descriptor_limit()  # the engine inherits it
    child_process.start_early(ChildProgram.ENGINE)


def raise_descriptor_limit() -> None:
    """Raise the soft limit of descriptors to the hard one: a daemon holds some for every session.

    Refuses a limit with which it could not serve a single program.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < LEAST_DESCRIPTORS:
        raise refuse(
            ZeResult.ERROR_OUT_OF_HOST_MEMORY,
            "limit of descriptors",
            found=f"{hard}",
            expected=f"{LEAST_DESCRIPTORS} or more",
            hint="raise it (ulimit -Hn, or --ulimit nofile of a container)",
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def check_answer(answer: bytes, log_file: Path) -> int:
    """Return the pid of the daemon that is ready. Raises `Refused` if none is."""
    ready = _READY.fullmatch(answer)
    if ready:
        return int(ready.group(1))
    try:
        info = msgspec.json.decode(answer, type=ErrorInfo)
    except msgspec.DecodeError:
        info = ErrorInfo(
            result=ZeResult.ERROR_UNINITIALIZED,
            object="daemon",
            found="it did not come up",
            expected="a running daemon",
            hint=f"read {log_file}",
        )
    raise Refused(info)


@contextmanager
def ended_if_interrupted(pid: int) -> Iterator[None]:
    """End the daemon in the process group of our child `pid` if the block is interrupted (Ctrl-C)."""
    try:
        yield
    except BaseException:
        with suppress(ProcessLookupError):
            for number in (signal.SIGTERM, signal.SIGKILL):
                os.killpg(pid, number)
                end = time.monotonic() + _INTERRUPTED_S
                while time.monotonic() < end:
                    with suppress(ChildProcessError):
                        os.waitpid(pid, os.WNOHANG)
                    os.killpg(pid, 0)
                    time.sleep(0.01)  # the daemon is no child of this process
        raise


def read_answer(fd: int, deadline_s: float) -> bytes:
    poller = select.poll()
    poller.register(fd, select.POLLIN)
    answer, end = b"", time.monotonic() + deadline_s
    while (left := end - time.monotonic()) > 0 and poller.poll(left * 1000):
        part = os.read(fd, 65536)
        answer += part
        if not part or _READY.fullmatch(answer):
            break
    return answer
