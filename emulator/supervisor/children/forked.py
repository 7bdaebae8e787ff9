"""Processes that a daemon forks from itself while it is one thread that has imported little.

They need not start an interpreter and import again what it has imported. Later ones are programs of their
own: by then it has threads, clients and their descriptors.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import logging
import os
import select
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final, NoReturn

from softnpu.emulator.common import linux

_STREAMS: Final = 3
_ARGUMENTS_AT: Final = 48
"""The place of "arg_start" in /proc/self/stat, counted from 1; "arg_end" follows."""


class ForkedProcess:
    """A child of this process, with the part of `subprocess.Popen` that the supervisor uses."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end; return its exit code. Raises `subprocess.TimeoutExpired`."""
        if self.returncode is None:
            if timeout is not None and not self._ends_within(timeout):
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout)
            _, status = os.waitpid(self.pid, 0)
            self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def kill(self) -> None:
        """Send SIGKILL, unless its end was waited for: its pid may be another's then."""
        if self.returncode is None:
            os.kill(self.pid, signal.SIGKILL)

    def _ends_within(self, timeout: float) -> bool:
        pidfd = os.pidfd_open(self.pid)  # ours until we wait for it
        try:
            poller = select.poll()
            poller.register(pidfd, select.POLLIN)
            return bool(poller.poll(timeout * 1000))
        finally:
            os.close(pidfd)


def start(program: str, channel: int, output: int, variables: dict[str, str]) -> ForkedProcess:
    """Fork a process that runs `python -m PROGRAM FD PARENT-PID`, with its FD open as `channel`.

    It writes into `output`, and inherits no other descriptor. Raises `OSError`.
    """
    parent = os.getpid()
    pid = os.fork()
    if not pid:
        _become(program, channel, output, variables, parent)
    return ForkedProcess(pid)


def _become(program: str, channel: int, output: int, variables: dict[str, str], parent: int) -> NoReturn:
    code = 1
    try:
        gc.freeze()  # objects of the daemon are never finalized here
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        logging.getLogger().handlers.clear()
        os.setpgid(0, 0)
        os.dup2(output, 1)
        os.dup2(output, 2)
        _close_all_but(channel)
        os.environ.update(variables)
        with suppress(OSError, ValueError, IndexError):  # where /proc does not tell: only the name is missing
            show_as(program, str(channel), str(parent))
        code = importlib.import_module(f"{program}.__main__").main([str(channel), str(parent)])
    except BaseException:  # noqa: BLE001  # the frames above are the daemon's
        sys.excepthook(*sys.exc_info())
    finally:
        with suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _close_all_but(kept: int) -> None:
    try:
        linux.leave_descriptors((kept,))
    except OSError:  # an older kernel
        os.closerange(_STREAMS, kept)
        os.closerange(kept + 1, os.sysconf("SC_OPEN_MAX"))


def show_as(program: str, *arguments: str) -> None:
    """Show this process in /proc as `python -P -m PROGRAM ARGUMENTS...`, as far as there is room."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    begin, end = (int(fields[at - _STREAMS]) for at in (_ARGUMENTS_AT, _ARGUMENTS_AT + 1))
    words = [sys.orig_argv[0], "-P", "-m", program, *arguments]
    title = b"".join(os.fsencode(word) + b"\0" for word in words)[: end - begin - 1]
    ctypes.memset(begin, 0, end - begin)
    ctypes.memmove(begin, title, len(title))
