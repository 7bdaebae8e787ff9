"""The server that forks the processes of `forked`, and their preparation before their function runs."""

from __future__ import annotations

import atexit
import ctypes
import gc
import importlib
import logging
import os
import pkgutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Final, cast

import msgspec

from softnpu.emulator import daemon
from softnpu.emulator.common import failpoints, linux
from softnpu.emulator.supervisor.children import child_process
from softnpu.emulator.supervisor.children.child_process import ChildProcess, ChildProgram
from softnpu.emulator.supervisor.settings import DaemonSettings
from softnpu.plugin import log as plugin_log
from softnpu.plugin.properties.table import log_level_of_environment
from softnpu.tools.shared.fork_server import ChildFunction
from tests.support.forked import ProcessRequest
from tests.support.waiting import wait_readable

_STREAMS: Final = 3
_PID_LENGTH: Final = 16
_LONGEST_REQUEST: Final = 1 << 16
_PR_SET_CHILD_SUBREAPER: Final = 36
_ARGUMENTS_AT: Final = 48  # "arg_start" and "arg_end" of /proc/self/stat, counted from 1
_start_interpreter: Final = daemon.start_program
_inherited: Final[list[object]] = []
_decoder = msgspec.json.Decoder(ProcessRequest)


def child_function(_space_for_titles: str) -> ChildFunction:
    """Import modules of daemons, their children and clients, and map the libraries that they load."""
    # orphans stay below the server, where the test that leaked them finds them
    assert ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0
    import openvino

    import tests.support.client
    import tests.support.daemon_main  # noqa: F401
    from tests.support import cli_process

    cli_process.warm_up()
    _import_all(
        "emulator", "plugin", *(f"tools.{name}" for name in ("compare", "infer", "predict", "shared"))
    )

    libraries = Path(openvino.__file__).parent / "libs"
    for pattern in ("libopenvino_intel_cpu_plugin.so*", "libopenvino_ir_frontend.so*"):
        for library in libraries.glob(pattern):
            ctypes.CDLL(str(library))
    child_process.start = _fork_child
    _daemons.start()
    return _run


def _import_all(*packages: str) -> None:
    """Import what programs import once they run: 67 modules the supervisor, 116 the engine, 44 a compiler."""
    for name in packages:
        package = importlib.import_module(f"softnpu.{name}")
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not module.name.endswith(".__main__"):
                importlib.import_module(module.name)


def _run(message: bytes, connection: socket.socket) -> int:
    request = _decoder.decode(message)
    _, fds, _, _ = socket.recv_fds(connection, 1, _STREAMS + request.descriptors)
    for target, fd in enumerate(fds[:_STREAMS]):
        os.dup2(fd, target)
        os.close(fd)
    connection.close()
    _set_environment(request.environment)
    if request.alters_imports:
        daemon.start_program = _start_interpreter
    if (level := log_level_of_environment()) is not None:
        plugin_log.set_level(level)
    os.chdir(request.folder)
    _set_title(sys.executable, "-c", request.function, *request.arguments)
    module, _, name = request.function.partition(":")
    function = cast(Callable[..., int], getattr(importlib.import_module(module), name))
    return run_to_end(lambda: function(list(request.arguments), fds[_STREAMS:]))


def _set_environment(environment: Mapping[str, str]) -> None:
    os.environ.clear()
    os.environ.update(environment)
    failpoints.active = failpoints.from_environment()


def run_to_end(program: Callable[[], int | None]) -> int:
    """Run a program as an interpreter does; return its exit code."""
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
    variables, more_fds = failpoints.inherited()
    parent = os.getpid()
    with ExitStack() as undo:
        output, their_output = os.pipe()
        undo.callback(os.close, output)
        undo.callback(os.close, their_output)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        undo.callback(ours.close)
        undo.callback(theirs.close)
        pid = os.fork()
        undo.pop_all()
    if pid == 0:
        code = 1
        try:
            gc.freeze()  # this process must not finalize the daemon's objects
            atexit._clear()
            os.setpgid(0, 0)
            for stream in (1, 2):
                os.dup2(their_output, stream)
            _leave_daemon(theirs.fileno(), *more_fds)
            os.environ.update(variables)
            _inherited.append(failpoints.active)  # it would close a reused descriptor number
            failpoints.active = failpoints.from_environment()
            arguments = [str(theirs.fileno()), str(parent)]
            _set_title(sys.executable, "-P", "-m", program, *arguments)
            main = importlib.import_module(f"{program}.__main__").main
            code = run_to_end(lambda: main(arguments))
        finally:
            os._exit(code)
    theirs.close()
    os.close(their_output)
    return ChildProcess(cast("subprocess.Popen[bytes]", _DaemonChild(pid)), ours, output)


def _leave_daemon(*kept: int) -> None:
    """Close the daemon's descriptors except these; reset signals and logging to their initial state."""
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    _close_all_but(*kept)
    for handler in logging.root.handlers[:]:
        logging.root.removeHandler(handler)


def _close_all_but(*kept: int) -> None:
    below = _STREAMS
    for fd in sorted(kept):
        os.closerange(below, fd)
        below = fd + 1
    os.closerange(below, os.sysconf("SC_OPEN_MAX"))


class _DaemonChild:
    """A child of this process, with the part of `subprocess.Popen` that the supervisor uses."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            if timeout is not None:
                self._await(timeout)
            _, status = os.waitpid(self.pid, 0)
            self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def _await(self, timeout: float) -> None:
        pidfd = os.pidfd_open(self.pid)
        try:
            if not wait_readable(pidfd, timeout):
                raise subprocess.TimeoutExpired("child of the daemon", timeout)
        finally:
            os.close(pidfd)

    def kill(self) -> None:
        if self.returncode is None:
            os.kill(self.pid, signal.SIGKILL)


def _set_title(*words: str) -> None:
    """Show these words in /proc as the command line, in place of the server's own."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    begin, end = (int(fields[at - 3]) for at in (_ARGUMENTS_AT, _ARGUMENTS_AT + 1))
    title = b"".join(word.encode() + b"\0" for word in words)[: end - begin - 1]
    ctypes.memset(begin, 0, end - begin)
    ctypes.memmove(begin, title, len(title))


class _BackgroundDaemons:
    """Starts the daemons that commands launch in the background: forked from a process dedicated to that.

    A command may have threads, which its fork would lack.
    """

    def start(self) -> None:
        """Fork the process; it ends with this one."""
        self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        parent = os.getpid()
        if os.fork() == 0:
            linux.die_with_parent(parent)
            _close_all_but(theirs.fileno())
            signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps its children
            while self._serve(theirs):
                pass
            os._exit(0)
        theirs.close()
        daemon.start_program = self.start_program  # type: ignore[assignment]

    def start_program(
        self, settings: DaemonSettings, ready_fd: int, log_fd: int, environment: Mapping[str, str]
    ) -> _Starter:
        """Start as `daemon.start_program` does."""
        settings_text = msgspec.json.encode(settings).decode()
        request = ProcessRequest(settings_text, (), dict(environment), str(Path.cwd()), 0)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours, theirs:
            fds = [ready_fd, log_fd, theirs.fileno()]
            socket.send_fds(self._requests, [msgspec.json.encode(request)], fds)
            theirs.close()
            return _Starter(int(ours.recv(_PID_LENGTH)))

    @staticmethod
    def _serve(requests: socket.socket) -> bool:
        message, fds, _, _ = socket.recv_fds(requests, _LONGEST_REQUEST, _STREAMS)
        if not message:
            return False
        pid = os.fork()
        if pid == 0:
            request, (ready_fd, log_fd, answer_fd) = _decoder.decode(message), fds
            os.setsid()
            os.close(answer_fd)
            _leave_daemon(ready_fd, log_fd)
            os.dup2(log_fd, 1)
            os.dup2(log_fd, 2)
            os.close(log_fd)
            _set_environment(request.environment)
            os.chdir(request.folder)
            arguments = [request.function, str(ready_fd)]
            _set_title(sys.executable, "-P", "-m", "softnpu.emulator", *arguments)
            os._exit(run_to_end(lambda: daemon.run_as_program(arguments)))
        os.write(fds[-1], str(pid).encode())
        for fd in fds:
            os.close(fd)
        return True


_daemons = _BackgroundDaemons()


class _Starter:
    """The process that starts a daemon and ends at once; the kernel reaps it."""

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def wait(self, _timeout: float) -> None:
        return
