"""Starting and ending a daemon, in this process or in the background."""

from __future__ import annotations

import logging
import os
import re
import resource
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from softnpu.emulator import access, activation
from softnpu.emulator.common import linux
from softnpu.emulator.common.home import ensure_home
from softnpu.emulator.interface import daemon_files, endpoint
from softnpu.emulator.interface.environment import ENV_SAVED_ENV, variables_outside
from softnpu.emulator.interface.result import ErrorInfo, Refused, ZeResult, refuse
from softnpu.emulator.log_file import LogRotation
from softnpu.emulator.supervisor import child_process
from softnpu.emulator.supervisor.child_process import ChildProgram
from softnpu.emulator.supervisor.settings import DaemonSettings

if TYPE_CHECKING:
    from softnpu.emulator.supervisor.supervisor import Supervisor

log = logging.getLogger(__name__)

START_DEADLINE_S = 30.0
LEAST_DESCRIPTORS = 32
_INTERRUPTED_S = 5.0
_READY = re.compile(rb"ready (\d+)\n")


class LineLimit(logging.Filter):
    """Pass a bounded number of lines: clients that come and go must not fill a disk."""

    def __init__(self, lines: int = 2000, period_s: float = 10.0) -> None:
        super().__init__()
        self._lines = lines
        self._period_s = period_s
        self._begun = 0.0
        self._counts: dict[int, int] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno >= logging.ERROR:
            return True
        if not 0 <= record.created - self._begun < self._period_s:
            left_out = sum(max(0, count - self._lines) for count in self._counts.values())
            self._begun, self._counts = record.created, {}
            if left_out:
                record.msg = f"({left_out} lines were left out before this one) {record.msg}"
        self._counts[record.levelno] = count = self._counts.get(record.levelno, 0) + 1
        return count <= self._lines


def serve(settings: DaemonSettings, ready_fd: int | None = None, *, engines: bool = True) -> int:
    """Run a daemon in this process until it has to stop; return the signal that ended it, or 0.

    It ends by request, SIGTERM, SIGINT, or when it is idle. Writes `ready` to `ready_fd` once every engine
    executes, or without `engines` as soon as it takes connections. Raises `Refused` if the socket is in use.
    """
    # who only starts a daemon in the background does not wait for these
    from softnpu.emulator.served_socket import ServedSocket
    from softnpu.emulator.supervisor.supervisor import Supervisor

    settings.check()
    ensure_home()
    stops = _Stops()
    raise_descriptor_limit()
    _prepare_folder(settings)
    served = ServedSocket(settings)
    try:
        supervisor = Supervisor(settings, served.listener, served.close)
        served.record(supervisor.status_path)
        stops.apply_to(supervisor)
        if ready_fd is not None and not engines:
            _write_ready(ready_fd)
            ready_fd = None
        _announce_ready(supervisor, ready_fd)
        strict = ", strict" if settings.is_strict else ""
        log.info("serving %s with devices %s%s", served.path, ", ".join(settings.devices), strict)
        supervisor.run()
    finally:
        served.close()
    return stops.number


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


def saved_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment as it was before `softnpu run`: the emulator must not load its own driver.

    Refuses what `softnpu run` does not write.
    """
    saved = dict(environment)
    before = variables_outside(saved.pop(ENV_SAVED_ENV, ""))
    for name, value in before.items():
        saved[name] = value
        if not value:
            del saved[name]
    return saved


def start_background(settings: DaemonSettings) -> int:
    """Start a daemon in a process of its own, wait until it is ready, return its pid.

    Raises `Refused` with the daemon's own reason when it does not come up.
    """
    settings.check()
    if activation.passed_sockets():
        raise refuse(
            ZeResult.ERROR_INVALID_ARGUMENT,
            "passed socket (LISTEN_FDS)",
            found="a daemon in the background",
            expected="one in the process that the socket was passed to",
            hint="start it with --foreground",
        )
    environment = saved_environment(os.environ)
    _prepare_folder(settings)
    log_file = endpoint.log_path(Path(settings.socket))
    output = daemon_files.open_own(log_file, os.O_WRONLY | os.O_APPEND, "log file")
    read_end, write_end = (linux.above_streams(end) for end in os.pipe())
    with os.fdopen(read_end, "rb") as reader:
        process = start_program(settings, write_end, output, environment)
        os.close(write_end)
        os.close(output)
        with _ended_if_interrupted(process.pid):
            answer = _read_answer(reader.fileno(), START_DEADLINE_S)
            process.wait(START_DEADLINE_S)
    return _check_answer(answer, log_file)


def start_program(
    settings: DaemonSettings, ready_fd: int, log_fd: int, environment: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    """Start `run_as_program` in a session of its own."""
    command = [sys.executable, "-P", "-m", "softnpu.emulator"]
    return subprocess.Popen(
        [*command, msgspec.json.encode(settings).decode(), str(ready_fd)],
        pass_fds=(ready_fd,),
        stdin=subprocess.DEVNULL,
        stdout=log_fd,
        stderr=log_fd,
        start_new_session=True,
        env=environment,
    )


def _check_answer(answer: bytes, log_file: Path) -> int:
    """The pid of the daemon that is ready. Raises `Refused` if none is."""
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
def _ended_if_interrupted(pid: int) -> Iterator[None]:
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


def start_by_fork(settings: DaemonSettings) -> bool:
    """Start a daemon in a process that is forked from this one, and wait until it takes connections.

    Its engines may still be starting then. Returns whether this is the process that waited; in the other one
    the daemon has ended. For a program that does nothing else. Raises `Refused` with the daemon's own reason.
    """
    settings.check()
    _prepare_folder(settings)
    log_file = endpoint.log_path(Path(settings.socket))
    output = daemon_files.open_own(log_file, os.O_WRONLY | os.O_APPEND, "log file")
    read_end, write_end = (linux.above_streams(end) for end in os.pipe())
    if pid := os.fork():
        os.close(write_end)
        os.close(output)
        with os.fdopen(read_end, "rb") as reader, _ended_if_interrupted(pid):
            _check_answer(_read_answer(reader.fileno(), START_DEADLINE_S), log_file)
        return True
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDONLY)
    for fd, stream in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(fd, stream)
    for fd in (read_end, output, nothing):
        os.close(fd)
    _serve_in_background(settings, write_end, engines=False)
    return False


def run_as_program(arguments: list[str]) -> int:
    """`python -m softnpu.emulator SETTINGS-JSON READY-FD`: what `start_background` starts."""
    if os.fork():
        return 0  # the daemon becomes a child of init: its starter need not wait for its end
    settings = msgspec.json.decode(arguments[0], type=DaemonSettings)
    return _serve_in_background(settings, int(arguments[1]), engines=True)


def _serve_in_background(settings: DaemonSettings, ready_fd: int, *, engines: bool) -> int:
    configure_logging(settings.log_level)
    for handler in logging.getLogger().handlers:
        handler.addFilter(LogRotation(sys.stderr.fileno(), Path(settings.socket)))
    try:
        raise_descriptor_limit()
        if not settings.failpoints:  # the supervisor sets them up, for the engines that it starts
            child_process.start_early(ChildProgram.ENGINE)
        serve(settings, ready_fd, engines=engines)
    except Refused as error:
        os.write(ready_fd, msgspec.json.encode(error.info))
        log.error("%s", error)
        return 1
    return 0


def _prepare_folder(settings: DaemonSettings) -> None:
    path = Path(settings.socket)
    if settings.allow_users or settings.allow_groups:
        access.make_folder(path, settings.allow_users, settings.allow_groups)
    else:
        daemon_files.check_folder(path.parent)


def configure_logging(level: str) -> None:
    """Log lines of the daemon go to stderr, of each level at most 2000 in 10 s below `error`."""
    logging.basicConfig(
        level=level.upper(), format="%(asctime)s %(levelname)-7s %(name)s: %(message)s", stream=sys.stderr
    )
    for handler in logging.getLogger().handlers:
        handler.addFilter(LineLimit())


def _read_answer(fd: int, deadline_s: float) -> bytes:
    poller = select.poll()
    poller.register(fd, select.POLLIN)
    answer, end = b"", time.monotonic() + deadline_s
    while (left := end - time.monotonic()) > 0 and poller.poll(left * 1000):
        part = os.read(fd, 65536)
        answer += part
        if not part or _READY.fullmatch(answer):
            break
    return answer


class _Stops:
    """SIGTERM and SIGINT stop the daemon, also while it starts. `number` is the one that came, or 0."""

    def __init__(self) -> None:
        self.number = 0
        self._supervisor: Supervisor | None = None
        signal.signal(signal.SIGTERM, self._stop)
        signal.signal(signal.SIGINT, self._stop)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    def apply_to(self, supervisor: Supervisor) -> None:
        read_end, write_end = socket.socketpair()
        read_end.setblocking(False)
        write_end.setblocking(False)
        signal.set_wakeup_fd(write_end.detach(), warn_on_full_buffer=False)
        # only to end the select: the handler has already run by then
        supervisor.reactor.watch(read_end.fileno(), lambda: _drain(read_end))
        self._supervisor = supervisor
        if self.number:
            supervisor.stop()

    def _stop(self, number: int, _frame: object) -> None:
        self.number = number
        if self._supervisor is not None:
            self._supervisor.stop()


def _drain(sock: socket.socket) -> None:
    try:
        sock.recv(4096)
    except BlockingIOError:
        return


def _announce_ready(supervisor: Supervisor, ready_fd: int | None) -> None:
    waiting = set(range(len(supervisor.devices)))

    def ready(index: int) -> None:
        waiting.discard(index)
        supervisor.devices[index].on_ready = _nothing
        if not waiting:
            supervisor.watch_idle()
        if not waiting and ready_fd is not None:
            _write_ready(ready_fd)

    for device in supervisor.devices:
        device.on_ready = partial(ready, device.info.index)


def _write_ready(fd: int) -> None:
    try:
        os.write(fd, b"ready %d\n" % os.getpid())
    except BrokenPipeError:
        log.info("the process that started this daemon has ended")
    os.close(fd)


def _nothing() -> None:
    return
