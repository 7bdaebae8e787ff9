"""Starting a daemon in the background and waiting for it, before anything of the daemon is imported."""

from __future__ import annotations

import os
import re
import select
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NoReturn

import msgspec

from softnpu.emulator import descriptor_limit
from softnpu.emulator.common import streams
from softnpu.emulator.interface import daemon_files, endpoint
from softnpu.emulator.interface.result import ErrorInfo, Refused, ZeResult

START_DEADLINE_S = 30.0
_INTERRUPTED_S = 5.0
_READY = re.compile(rb"ready (\d+)\n")


class StartingDaemon:
    """A process forked from this one that becomes a daemon, for a program that does nothing else.

    Told its socket at once it is the daemon, `serve(path, ready_fd)`, whose clients wait. Else it begins with
    what takes long and cannot be seen: its first children, and imports, which `prepare` makes. Untold it ends
    with this process.
    """

    def __init__(self, prepare: Callable[[], None], serve: Callable[[Path, int], None]) -> None:
        told, self._tell = (streams.above_streams(end) for end in os.pipe())
        self._answer, answer = (streams.above_streams(end) for end in os.pipe())
        self._pid = os.fork()
        if not self._pid:
            os.close(self._tell)
            os.close(self._answer)
            _become_daemon(told, answer, prepare, serve)
        os.close(told)
        os.close(answer)

    def begin(self, path: Path) -> None:
        """Have it serve `path`; wait until it takes connections, while its engines may still be starting.

        Raises `Refused` with its own reason.
        """
        with suppress(BrokenPipeError):  # it says why, or its log
            os.write(self._tell, os.fsencode(path))
        os.close(self._tell)
        with os.fdopen(self._answer, "rb") as reader, ended_if_interrupted(self._pid):
            check_answer(read_answer(reader.fileno(), START_DEADLINE_S), endpoint.log_path(path))


def _become_daemon(
    told: int, answer: int, prepare: Callable[[], None], serve: Callable[[Path, int], None]
) -> NoReturn:
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    try:
        poller = select.poll()
        poller.register(told, select.POLLIN)
        if not poller.poll(0):
            start_first_children()
            prepare()
        text = b""
        while part := os.read(told, 65536):
            text += part
        os.close(told)
        if text:
            path = Path(os.fsdecode(text))
            _log_into(path)
            serve(path, answer)
    except Refused as error:
        os.write(answer, msgspec.json.encode(error.info))
    sys.exit()


def _log_into(path: Path) -> None:
    daemon_files.check_folder(path.parent)
    output = daemon_files.open_own(endpoint.log_path(path), os.O_WRONLY | os.O_APPEND, "log file")
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)


def start_first_children() -> None:
    """Start the supervisor's first engine and compiler worker early, so that all import concurrently."""
    from softnpu.emulator.supervisor.children import child_process  # late: a client may wait for the socket
    from softnpu.emulator.supervisor.children.child_process import ChildProgram

    descriptor_limit.raise_it()  # they inherit it
    keep_ended_children()
    child_process.start_early(ChildProgram.ENGINE, ChildProgram.COMPILER)


def keep_ended_children() -> None:
    """Have each pid of a child stay its own until we wait for it, also if our starter ignores SIGCHLD."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)


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
