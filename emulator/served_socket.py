"""The socket served by a daemon: its exclusive lock, and the listener."""

from __future__ import annotations

import logging
import os
import socket
import stat
from pathlib import Path

import msgspec

from softnpu.emulator import access, activation
from softnpu.emulator.common import failpoints
from softnpu.emulator.common.file_claim import FileClaim
from softnpu.emulator.common.process_identity import ProcessIdentity
from softnpu.emulator.interface import daemon_files, endpoint
from softnpu.emulator.interface.endpoint import DaemonRecord
from softnpu.emulator.interface.result import Refused, ZeResult, refuse
from softnpu.emulator.supervisor.settings import DaemonSettings

log = logging.getLogger(__name__)

_RECORD_ROOM = 256


class ServedSocket:
    """A socket path that this daemon serves until `close`."""

    def __init__(self, settings: DaemonSettings) -> None:
        self.path = Path(settings.socket)
        self._lock: DaemonLock | None = DaemonLock(self.path)
        others = bool(settings.allow_users or settings.allow_groups)
        try:
            passed = activation.take_listener(self.path, others=others)
            self.listener = _listen(self.path) if passed is None else passed
        except BaseException:
            self._lock.release()
            raise
        self._is_passed = passed is not None
        try:
            if others:
                access.open_socket_to(self.path, settings.allow_users, settings.allow_groups)
        except BaseException:
            self.close()
            raise

    def reserve(self) -> None:
        """Take the room of the record. Raises `OSError` if it could not be written."""
        assert self._lock is not None
        self._lock.reserve()

    def record(self, status: str) -> None:
        """Write who serves the path."""
        assert self._lock is not None
        self._lock.record(status)

    def close(self) -> None:
        """Release the path for the next daemon; harmless when repeated.

        The listener goes first: a client that waits there sees its connection end. The lock goes last:
        without it the path may be another daemon's. Of a socket that was passed only the copy goes: who waits
        there is the next daemon's.
        """
        if self._lock is None:
            return
        if not self._is_passed:
            self.listener.shutdown(socket.SHUT_RDWR)  # a child that is being started may still have a copy
        self.listener.close()
        if failpoints.active is not None:
            failpoints.hit("supervisor.release")
        if not self._is_passed:
            self.path.unlink(missing_ok=True)
        self._lock.release()
        self._lock = None


class DaemonLock:
    """The lock of one socket path, held as long as a daemon serves it. Whoever holds it owns the path."""

    def __init__(self, path: Path) -> None:
        claim = FileClaim.acquire(endpoint.lock_path(path), open_file=_open_lock_file)
        if claim is None:
            raise _already_served(path)
        self._claim = claim

    def reserve(self) -> None:
        """Take the room of the record: who reads it finds none yet."""
        at = 0
        while at < _RECORD_ROOM:  # the first call may write a part, the next one says why
            at += os.pwrite(self._claim.fd, b" " * (_RECORD_ROOM - at), at)

    def record(self, status: str) -> None:
        """Write who holds the lock."""
        record = DaemonRecord(**ProcessIdentity.current()._asdict(), status=status)
        written = os.pwrite(self._claim.fd, msgspec.json.encode(record) + b"\n", 0)
        os.ftruncate(self._claim.fd, written)

    def release(self) -> None:
        """Release the path for the next daemon."""
        self._claim.release()


def _open_lock_file(path: Path) -> int:
    return daemon_files.open_own(path, os.O_RDWR, "lock file")


def _listen(path: Path) -> socket.socket:
    """Bind the socket; replace what a dead daemon left, refuse anything else."""
    try:
        info = os.lstat(path)
        kind = info.st_mode
    except FileNotFoundError:
        kind = 0
    else:
        _check_owner(path, info)
    if kind and not stat.S_ISSOCK(kind):
        raise refuse(
            ZeResult.ERROR_INVALID_ARGUMENT,
            f"socket path {path}",
            found=f"a {_file_kind(kind)}",
            expected="a socket or nothing",
            hint="remove it, or choose another place with --socket",
        )
    listener = endpoint.new_socket()
    try:
        with endpoint.socket_address(path) as address:
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
        raise daemon_files.unusable(
            f"socket path {path}", error, "a place where a socket can be made"
        ) from error
    except BaseException:
        listener.close()
        raise
    return listener


def _remove_stale(path: Path, address: str) -> None:
    # we hold the lock, so no softnpu daemon lives here; but it may be somebody else's socket
    with endpoint.new_socket() as probe:
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
        found=found,
        expected="a free path",
        hint="choose another place with --socket",
    )


def _already_served(path: Path) -> Refused:
    record = endpoint.read_record(path)
    holder = f"by the daemon with pid {record.pid}" if record else "by another daemon"
    return refuse(
        ZeResult.ERROR_NOT_AVAILABLE,
        f"socket {path}",
        found=f"served {holder}",
        expected="a socket that no daemon serves",
        hint="use that daemon, stop it with 'softnpu stop', or choose another place with --socket",
    )


def _check_owner(path: Path, info: os.stat_result) -> None:
    if info.st_uid != os.geteuid():
        raise refuse(
            ZeResult.ERROR_INSUFFICIENT_PERMISSIONS,
            f"socket path {path}",
            found=f"a {_file_kind(info.st_mode)} of user {info.st_uid}",
            expected=f"a socket of user {os.geteuid()} or nothing",
            hint="remove it, or choose another place with --socket",
        )


def _file_kind(mode: int) -> str:
    kinds = {
        stat.S_IFSOCK: "socket",
        stat.S_IFREG: "regular file",
        stat.S_IFDIR: "directory",
        stat.S_IFLNK: "symbolic link",
    }
    return kinds.get(stat.S_IFMT(mode), "special file")
