"""Starting and ending a daemon, in this process or in the background."""

from __future__ import annotations

import gc
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from softnpu.emulator import access, activation, background, descriptor_limit
from softnpu.emulator.common import linux, log_lines, streams
from softnpu.emulator.common.home import ensure_home
from softnpu.emulator.interface import daemon_files, endpoint
from softnpu.emulator.interface.environment import ENV_SAVED_ENV, variables_outside, with_huge_pages
from softnpu.emulator.interface.result import ErrorInfo, Refused, ZeResult, refuse
from softnpu.emulator.log_file import LogRotation
from softnpu.emulator.supervisor.settings import DaemonSettings

if TYPE_CHECKING:
    from softnpu.emulator.served_socket import TakenSocket
    from softnpu.emulator.supervisor.supervisor import Supervisor

log = logging.getLogger(__name__)


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


class ReadyPipe:
    """A pipe to the process that waits for this daemon, which is told once; `fd` -1: nobody waits."""

    def __init__(self, fd: int = -1) -> None:
        self._fd = fd

    def tell(self) -> None:
        """Tell it that the daemon is ready."""
        self._write(b"ready %d\n" % os.getpid())

    def refuse(self, info: ErrorInfo) -> None:
        """Tell it why there is no daemon."""
        self._write(msgspec.json.encode(info))

    def _write(self, text: bytes) -> None:
        fd, self._fd = self._fd, -1
        if fd < 0:
            return
        try:
            os.write(fd, text)
        except BrokenPipeError:
            log.info("the process that started this daemon has ended")
        os.close(fd)


def prepare() -> None:
    """Import what a daemon needs."""
    from softnpu.emulator.served_socket import ServedSocket  # noqa: F401
    from softnpu.emulator.supervisor.supervisor import Supervisor  # noqa: F401


def serve(
    settings: DaemonSettings,
    ready: ReadyPipe | None = None,
    *,
    engines: bool = True,
    taken: TakenSocket | None = None,
) -> int:
    """Run a daemon in this process until it has to stop; return the signal that ended it, or 0.

    It ends by request, SIGTERM, SIGINT, or when it is idle. Tells `ready` once every engine
    executes, or without `engines` as soon as connections wait. Raises `Refused` if the socket is in use.
    `taken`: it was taken before.
    """
    # a program that only starts a background daemon does not wait for these imports
    from softnpu.emulator.served_socket import ServedSocket

    ready = ReadyPipe() if ready is None else ready
    settings.check()
    ensure_home()
    stops = _Stops()
    descriptor_limit.raise_it()
    background.keep_ended_children()
    _prepare_folder(settings)
    with _reasons_told(settings.socket):
        served = ServedSocket(settings, taken)
    try:
        if not engines:
            with _reasons_told(settings.socket):
                served.reserve()  # what could not be written is told, too
            ready.tell()
            with suppress(OSError):  # the supervisor starts what is missing, or says why not
                _start_first_children(settings)  # only now: its client goes on meanwhile
        from softnpu.emulator.supervisor.supervisor import Supervisor  # clients need not wait for that

        with _reasons_told(settings.socket):
            supervisor = Supervisor(settings, served.listener, served.close)
            served.record(supervisor.status_path)
        stops.apply_to(supervisor)
        _announce_ready(supervisor, ready)
        strict = ", strict" if settings.is_strict else ""
        log.info("serving %s with devices %s%s", served.path, ", ".join(settings.devices), strict)
        gc.freeze()  # what was imported stays
        gc.enable()
        if taken is not None:
            signal.alarm(0)  # that of `quick_daemon`
        supervisor.run()
    finally:
        served.close()
    return stops.number


@contextmanager
def _reasons_told(path: str) -> Iterator[None]:
    """Refuse with the reason where the system refuses: a full disk has no room for it in the log."""
    try:
        yield
    except OSError as error:
        place = f"{os.fsdecode(error.filename)}: " if error.filename else ""
        raise refuse(
            ZeResult.ERROR_UNINITIALIZED,
            f"daemon at {path}",
            found=f"{place}{error.strerror}",
            expected="room and permission for its files",
        ) from error


def saved_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment as it was before `softnpu run`: the emulator must not load its own driver.

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
    read_end, write_end = (streams.above_streams(end) for end in os.pipe())
    with os.fdopen(read_end, "rb") as reader:
        process = start_program(settings, write_end, output, environment)
        os.close(write_end)
        os.close(output)
        with background.ended_if_interrupted(process.pid):
            answer = background.read_answer(reader.fileno(), background.START_DEADLINE_S)
            process.wait(background.START_DEADLINE_S)
    return background.check_answer(answer, log_file)


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
        env={**environment, **with_huge_pages(environment)},
    )


def run_as_program(arguments: list[str]) -> int:
    """`python -m softnpu.emulator SETTINGS-JSON READY-FD`: what `start_background` starts."""
    if os.fork():
        return 0  # the daemon becomes a child of init: its starter need not wait for its end
    settings = msgspec.json.decode(arguments[0], type=DaemonSettings)
    return serve_in_background(settings, int(arguments[1]), engines=True)


def serve_in_background(
    settings: DaemonSettings, ready_fd: int, *, engines: bool, taken: TakenSocket | None = None
) -> int:
    """`serve`, with a log that is moved aside in time; the exit code. `ready_fd`: to its starter."""
    ready = ReadyPipe(ready_fd)
    try:
        if engines:
            _start_first_children(settings)
        configure_logging(settings.log_level)
        for handler in logging.getLogger().handlers:
            handler.addFilter(LogRotation(sys.stderr.fileno(), Path(settings.socket)))
        serve(settings, ready, engines=engines, taken=taken)
    except Refused as error:
        ready.refuse(error.info)
        log.error("%s", error)
        return 1
    return 0


def _start_first_children(settings: DaemonSettings) -> None:
    if not settings.failpoints:  # the supervisor sets them up, for the children that it starts
        background.start_first_children()


def _prepare_folder(settings: DaemonSettings) -> None:
    path = Path(settings.socket)
    if settings.allow_users or settings.allow_groups:
        access.make_folder(path, settings.allow_users, settings.allow_groups)
    else:
        daemon_files.check_folder(path.parent)


def configure_logging(level: str) -> None:
    """Log lines of the daemon go to stderr, of each level at most 2000 in 10 s below `error`."""
    log_lines.begin(level, waits=False)
    for handler in logging.getLogger().handlers:
        handler.addFilter(LineLimit())


class _Stops:
    """SIGTERM and SIGINT stop the daemon, also while it starts. `number` is the one that came, or 0."""

    def __init__(self) -> None:
        self.number = 0
        self._supervisor: Supervisor | None = None
        signal.signal(signal.SIGTERM, self._stop)
        signal.signal(signal.SIGINT, self._stop)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        linux.unblock_signals()

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


def _announce_ready(supervisor: Supervisor, pipe: ReadyPipe) -> None:
    waiting = set(range(len(supervisor.devices)))

    def ready(index: int) -> None:
        waiting.discard(index)
        if not waiting:
            supervisor.watch_idle()
            pipe.tell()
        supervisor.devices[index].on_ready = _nothing  # last: after an error the next engine comes here again

    for device in supervisor.devices:
        device.on_ready = partial(ready, device.info.index)


def _nothing() -> None:
    return
