"""The server that forks the processes of `forked`, and what such a process does before its function runs."""

from __future__ import annotations

import atexit
import ctypes
import gc
import importlib
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final, cast

import msgspec

from softnpu.emulator.common import failpoints
from softnpu.emulator.supervisor import child_process
from softnpu.emulator.supervisor.child_process import ChildProcess, ChildProgram
from softnpu.plugin import log as plugin_log
from softnpu.plugin.properties.settings import log_level_of_environment
from softnpu.tools.fork_server import ChildFunction
from tests.support.forked import ProcessRequest
from tests.support.waiting import wait_readable

_STREAMS: Final = 3
_PR_SET_CHILD_SUBREAPER: Final = 36
_ARGUMENTS_AT: Final = 48  # "arg_start" and "arg_end" of /proc/self/stat, counted from 1
_inherited: Final[list[object]] = []
_decoder = msgspec.json.Decoder(ProcessRequest)


def child_function(_space_for_titles: str) -> ChildFunction:
    """Import what daemons, their children and clients import, and map the libraries that they load."""
    # orphans stay below the server, where the test that left them behind finds them
    assert ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
    import openvino

    import tests.support.client
    import tests.support.daemon_main  # noqa: F401
    from tests.support import cli_process

    cli_process.warm_up()

    libraries = Path(openvino.__file__).parent / "libs"
    for pattern in ("libopenvino_intel_cpu_plugin.so*", "libopenvino_ir_frontend.so*"):
        for library in libraries.glob(pattern):
            ctypes.CDLL(str(library))
    child_process.start = _fork_child
    return _run


def _run(message: bytes, connection: socket.socket) -> int:
    request = _decoder.decode(message)
    _, fds, _, _ = socket.recv_fds(connection, 1, _STREAMS + request.descriptors)
    for target, fd in enumerate(fds[:_STREAMS]):
        os.dup2(fd, target)
        os.close(fd)
    connection.close()
    os.environ.clear()
    os.environ.update(request.environment)
    failpoints.active = failpoints.from_environment()
    if (level := log_level_of_environment()) is not None:
        plugin_log.set_level(level)
    os.chdir(request.folder)
    _set_title(sys.executable, "-c", request.function, *request.arguments)
    module, _, name = request.function.partition(":")
    function = cast(Callable[..., int], getattr(importlib.import_module(module), name))
    return run_to_end(lambda: function(list(request.arguments), fds[_STREAMS:]))


def run_to_end(program: Callable[[], int | None]) -> int:
    """Run a program as an interpreter does: its exit code."""
    try:
        code = program()
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
            code = 1
        else:
            code = end.code
    except BaseException:  # noqa: BLE001 - as the interpreter does
        sys.excepthook(*sys.exc_info())
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    return code or 0


def _fork_child(program: ChildProgram) -> ChildProcess:
    """As `child_process.start`, forked from this process: what a child of a daemon inherits, and no more."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    variables, more_fds = failpoints.inherited()
    parent = os.getpid()
    try:
        pid = os.fork()
    except OSError:
        ours.close()
        theirs.close()
        raise
    if pid == 0:
        code = 1
        try:
            gc.freeze()  # the daemon's objects are not this process's to end
            atexit._clear()
            os.setpgid(0, 0)
            _leave_daemon(theirs.fileno(), *more_fds)
            os.environ.update(variables)
            _inherited.append(failpoints.active)  # it would close a descriptor that is also the new one's
            failpoints.active = failpoints.from_environment()
            arguments = [str(theirs.fileno()), str(parent)]
            _set_title(sys.executable, "-P", "-m", program, *arguments)
            main = importlib.import_module(f"{program}.__main__").main
            code = run_to_end(lambda: main(arguments))
        finally:
            os._exit(code)
    theirs.close()
    return ChildProcess(cast("subprocess.Popen[bytes]", _DaemonChild(pid)), ours)


def _leave_daemon(*kept: int) -> None:
    """Close the descriptors of the daemon but these, and have signals and log lines as at a start."""
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    below = _STREAMS
    for fd in sorted(kept):
        os.closerange(below, fd)
        below = fd + 1
    os.closerange(below, os.sysconf("SC_OPEN_MAX"))
    for handler in logging.root.handlers[:]:
        logging.root.removeHandler(handler)


class _DaemonChild:
    """A child of this process, with what the supervisor uses of `subprocess.Popen`."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            pidfd = os.pidfd_open(self.pid)
            try:
                if not wait_readable(pidfd, 3600.0 if timeout is None else timeout):
                    raise subprocess.TimeoutExpired("child of the daemon", timeout or 0.0)
            finally:
                os.close(pidfd)
            _, status = os.waitpid(self.pid, 0)
            self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def kill(self) -> None:
        if self.returncode is None:
            os.kill(self.pid, signal.SIGKILL)


def _set_title(*words: str) -> None:
    """Have /proc show these words as the command line: they take the place of the server's own."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    begin, end = (int(fields[at - 3]) for at in (_ARGUMENTS_AT, _ARGUMENTS_AT + 1))
    title = b"".join(word.encode() + b"\0" for word in words)[: end - begin - 1]
    ctypes.memset(begin, 0, end - begin)
    ctypes.memmove(begin, title, len(title))
