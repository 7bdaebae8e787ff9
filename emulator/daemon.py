"""Starting and ending a daemon: the lock that makes it the only one, its socket, its background life."""

from __future__ import annotations

import fcntl
import json
import logging
import os
import re
import select
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import msgspec

from softnpu.emulator import access
from softnpu.emulator.interface import places
from softnpu.emulator.interface.places import DaemonRecord
from softnpu.emulator.interface.result import Fault, Refused, ZeResult, refuse
from softnpu.emulator.interface.version import ENV_OUTSIDE
from softnpu.emulator.supervisor.settings import DaemonSettings
from softnpu.emulator.supervisor.supervisor import Supervisor, raise_descriptor_limit

log = logging.getLogger(__name__)

START_DEADLINE_S = 30.0
_READY = re.compile(rb"ready (\d+)\n")


class LineLimit(logging.Filter):
    """Lets a bounded number of lines through: clients that come and go must not fill a disk."""

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


class DaemonLock:
    """The lock of one socket path, held for the life of the daemon. Whoever holds it owns the path."""

    def __init__(self, path: Path) -> None:
        self._path = places.lock_path(path)
        self._fd = self._acquire(path)

    def record(self, status: str) -> None:
        """Writes who holds the lock."""
        record = DaemonRecord(
            pid=os.getpid(),
            start_time=places.process_start_time(os.getpid()),
            boot_id=places.boot_id(),
            status=status,
        )
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, msgspec.json.encode(record) + b"\n", 0)

    def release(self) -> None:
        """Removes the lock file while it is still locked, so nobody can meet a stale one."""
        self._path.unlink(missing_ok=True)
        os.close(self._fd)

    def _acquire(self, path: Path) -> int:
        while True:
            try:
                fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            except OSError as error:
                raise refuse(
                    ZeResult.ERROR_UNINITIALIZED,
                    f"lock file {self._path}",
                    error.strerror or str(error),
                    "a file that can be created",
                    "choose another place with --socket",
                ) from error
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(fd)
                raise _already_served(path) from None
            # the last holder may have unlinked the file between our open and our lock
            try:
                if os.path.samestat(os.fstat(fd), os.stat(self._path)):
                    return fd
            except FileNotFoundError:
                log.debug("%s went away while it was locked", self._path)
            os.close(fd)


def serve(settings: DaemonSettings, ready_fd: int | None = None) -> None:
    """Runs a daemon in this process until it is told to stop (request, SIGTERM, SIGINT, idle).

    Writes `ready` to `ready_fd` once every engine executes. Raises `Refused` when the socket is taken.
    """
    settings.check()
    path = Path(settings.socket)
    raise_descriptor_limit()
    _make_folder(settings)
    lock = DaemonLock(path)
    try:
        listener = _listen(path)
    except BaseException:
        lock.release()
        raise
    try:
        if settings.allow_users or settings.allow_groups:
            access.open_socket_to(path, settings.allow_users, settings.allow_groups)
        supervisor = Supervisor(settings, listener)
        lock.record(supervisor.status_path)
        _stop_on_signals(supervisor)
        _announce_ready(supervisor, ready_fd)
        log.info("serving %s with devices %s", path, ", ".join(settings.devices))
        supervisor.run()
    finally:
        path.unlink(missing_ok=True)
        lock.release()


def outside(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment as it was before `softnpu run`: the emulator must not load its own driver."""
    found = dict(environment)
    for name, value in json.loads(found.pop(ENV_OUTSIDE, "{}")).items():
        found[name] = value
        if not value:
            del found[name]
    return found


def start_background(settings: DaemonSettings) -> int:
    """Starts a daemon in a process of its own, waits until it is ready, returns its pid.

    Raises `Refused` with the daemon's own reason when it does not come up.
    """
    settings.check()
    _make_folder(settings)
    read_end, write_end = os.pipe()
    log_file = places.log_path(Path(settings.socket))
    try:
        output = os.open(log_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    except OSError as error:
        os.close(read_end)
        os.close(write_end)
        raise refuse(
            ZeResult.ERROR_UNINITIALIZED,
            f"log file {log_file}",
            error.strerror or str(error),
            "a file that can be written",
            "choose another place with --socket",
        ) from error
    with os.fdopen(read_end, "rb") as reader:
        process = subprocess.Popen(
            [
                sys.executable,
                "-P",
                "-m",
                "softnpu.emulator",
                msgspec.json.encode(settings).decode(),
                str(write_end),
            ],
            pass_fds=(write_end,),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            env=outside(os.environ),
        )
        os.close(write_end)
        os.close(output)
        answer = _read_answer(reader.fileno(), START_DEADLINE_S)
    process.wait(START_DEADLINE_S)
    ready = _READY.fullmatch(answer)
    if ready:
        return int(ready.group(1))
    try:
        fault = msgspec.json.decode(answer, type=Fault)
    except msgspec.DecodeError:
        fault = Fault(
            result=ZeResult.ERROR_UNINITIALIZED,
            object="daemon",
            found="it did not come up",
            expected="a running daemon",
            hint=f"read {log_file}",
        )
    raise Refused(fault)


def run_as_program(arguments: list[str]) -> int:
    """`python -m softnpu.emulator SETTINGS-JSON READY-FD`: what `start_background` starts."""
    if os.fork():
        return 0  # the daemon is nobody's child: whoever asked for it need not wait for its end
    settings = msgspec.json.decode(arguments[0], type=DaemonSettings)
    ready_fd = int(arguments[1])
    configure_logging(settings.log_level)
    try:
        serve(settings, ready_fd)
    except Refused as error:
        os.write(ready_fd, msgspec.json.encode(error.fault))
        log.error("%s", error)
        return 1
    return 0


def _make_folder(settings: DaemonSettings) -> None:
    if settings.allow_users or settings.allow_groups:
        access.make_folder(Path(settings.socket), settings.allow_users, settings.allow_groups)


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


def _listen(path: Path) -> socket.socket:
    """Binds the socket; a leftover of a dead daemon is replaced, anything else is refused."""
    try:
        kind = os.lstat(path).st_mode
    except FileNotFoundError:
        kind = 0
    if kind and not stat.S_ISSOCK(kind):
        raise refuse(
            ZeResult.ERROR_INVALID_ARGUMENT,
            f"socket path {path}",
            f"a {_file_kind(kind)}",
            "a socket or nothing",
            "remove it, or choose another place with --socket",
        )
    listener = places.new_socket()
    try:
        with places.socket_address(path) as address:
            if kind:
                _remove_stale(path, address)
            old = os.umask(0o177)  # the socket must never be open to others, not even for a moment
            try:
                listener.bind(address)
            finally:
                os.umask(old)
        listener.listen(4096)
    except OSError as error:
        listener.close()
        raise refuse(
            ZeResult.ERROR_UNINITIALIZED,
            f"socket path {path}",
            error.strerror or str(error),
            "a place where a socket can be made",
            "choose another place with --socket",
        ) from error
    except BaseException:
        listener.close()
        raise
    return listener


def _remove_stale(path: Path, address: str) -> None:
    # we hold the lock, so no softnpu daemon lives here; but it may be somebody else's socket
    with places.new_socket() as probe:
        try:
            probe.connect(address)
        except (ConnectionRefusedError, FileNotFoundError):
            log.info("replacing the stale socket %s", path)
            path.unlink(missing_ok=True)
            return
        except OSError as error:
            found = error.strerror or str(error)
        else:
            found = "a live server that is not a softnpu daemon"
    raise refuse(
        ZeResult.ERROR_NOT_AVAILABLE,
        f"socket path {path}",
        found,
        "a free path",
        "choose another place with --socket",
    )


def _stop_on_signals(supervisor: Supervisor) -> None:
    def stop(_number: int, _frame: object) -> None:
        supervisor.stop()

    read_end, write_end = socket.socketpair()
    read_end.setblocking(False)
    write_end.setblocking(False)
    signal.set_wakeup_fd(write_end.detach(), warn_on_full_buffer=False)
    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    # only to end the select: the handler above has already run by then
    supervisor.reactor.watch(read_end.fileno(), lambda: _drain(read_end))


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
            try:
                os.write(ready_fd, b"ready %d\n" % os.getpid())
            except BrokenPipeError:
                log.info("whoever started this daemon has gone")
            os.close(ready_fd)

    for device in supervisor.devices:
        device.on_ready = partial(ready, device.info.index)


def _nothing() -> None:
    return


def _already_served(path: Path) -> Refused:
    record = places.read_record(path)
    holder = f"by the daemon with pid {record.pid}" if record else "by another daemon"
    return refuse(
        ZeResult.ERROR_NOT_AVAILABLE,
        f"socket {path}",
        f"served {holder}",
        "a socket that no daemon serves",
        "use that daemon, stop it with 'softnpu stop', or choose another place with --socket",
    )


def _file_kind(mode: int) -> str:
    kinds = {stat.S_IFREG: "regular file", stat.S_IFDIR: "directory", stat.S_IFLNK: "symbolic link"}
    return kinds.get(stat.S_IFMT(mode), "special file")
