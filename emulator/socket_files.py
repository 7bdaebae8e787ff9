"""The files of the socket that a daemon serves: its exclusive lock, and the socket itself.

It imports little: a daemon's socket may be taken before anything else of the daemon is imported.
"""

from __future__ import annotations

import _socket  # `socket` takes ten times as long to import
import os
import stat

from softnpu.emulator.common import streams
from softnpu.emulator.common.file_claim import FileClaim
from softnpu.emulator.interface import daemon_files, socket_place

TYPE_CHECKING = False  # that of `typing` takes longer to import than all of this
if TYPE_CHECKING:
    from pathlib import Path

    from softnpu.emulator.interface.result import Refused

_RECORD_ROOM = 256
_BACKLOG = 4096


class DaemonLock:
    """The lock of one socket path, held as long as a daemon serves it. Whoever holds it owns the path."""

    def __init__(self, path: str | Path, taken: int = -1) -> None:
        """Take the lock, or take over a descriptor that has it."""
        place = socket_place.lock_of(str(path))
        claim = FileClaim.acquire(place, open_file=_open_lock_file) if taken < 0 else FileClaim(place, taken)
        if claim is None:
            raise _already_served(str(path))
        self._claim = claim

    @property
    def fd(self) -> int:
        """The locked file."""
        return self._claim.fd

    def reserve(self) -> None:
        """Take the room of the record, which says already who may have to be killed."""
        begun = _begun().ljust(_RECORD_ROOM)
        at = 0
        while at < _RECORD_ROOM:  # the first call may write a part, the next one says why
            at += os.pwrite(self._claim.fd, begun[at:], at)

    def record(self, status: str) -> None:
        """Write who holds the lock."""
        import msgspec  # late, as the others: the socket is taken before

        from softnpu.emulator.common.process_identity import ProcessIdentity
        from softnpu.emulator.interface.endpoint import DaemonRecord

        record = DaemonRecord(**ProcessIdentity.current()._asdict(), status=status)
        written = os.pwrite(self._claim.fd, msgspec.json.encode(record) + b"\n", 0)
        os.ftruncate(self._claim.fd, written)

    def release(self) -> None:
        """Release the path for the next daemon."""
        self._claim.release()


def _begun() -> bytes:
    """Return the record of this process while it has no status page; without the modules of one."""
    with open(f"/proc/{os.getpid()}/stat", "rb") as file:
        start_time = file.read().rpartition(b")")[2].split()[19]
    with open("/proc/sys/kernel/random/boot_id", "rb") as file:
        boot_id = file.read().strip()
    words = os.getpid(), start_time, boot_id
    return b'{"pid":%d,"start_time":%b,"boot_id":"%b","status":""}\n' % words


def take(path: str) -> tuple[DaemonLock, int]:
    """Return the lock of a path, with the room of its record, and the listener. Raises `OSError` as well."""
    lock = DaemonLock(path)
    try:
        listener = listen(path)
        try:
            lock.reserve()
        except BaseException:
            os.unlink(path)
            raise
    except BaseException:
        lock.release()
        raise
    return lock, listener


def _open_lock_file(path: str) -> int:
    return daemon_files.open_own(path, os.O_RDWR, "lock file")


def listen(path: str) -> int:
    """Return a listener at a path that is ours; replace what a dead daemon left, refuse anything else."""
    try:
        info = os.lstat(path)
        kind = info.st_mode
    except FileNotFoundError:
        kind = 0
    else:
        _check_owner(path, info)
    if kind and not stat.S_ISSOCK(kind):
        raise _refused(
            "ERROR_INVALID_ARGUMENT",
            path,
            found=f"a {_file_kind(kind)}",
            expected="a socket or nothing",
            hint="remove it, or choose another place with --socket",
        )
    if len(os.fsencode(path)) <= socket_place.MAX_SUN_PATH:
        return _listen_at(path, path, replace=bool(kind))
    from pathlib import Path  # late, as the next: few paths are as long

    from softnpu.emulator.interface import endpoint

    with endpoint.socket_address(Path(path)) as address:
        return _listen_at(path, address, replace=bool(kind))


def _listen_at(path: str, address: str, *, replace: bool) -> int:
    listener = new_socket()
    try:
        if replace:
            _remove_stale(path, address)
        old = os.umask(0o177)  # the socket must never be open to others, not even for a moment
        try:
            listener.bind(address)
        finally:
            os.umask(old)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise daemon_files.unusable(
            f"socket path {path}", error, "a place where a socket can be made"
        ) from error
    except BaseException:
        listener.close()
        raise
    return listener.detach()


def new_socket() -> _socket.socket:
    """Create a socket of the interface's type."""
    sock = _socket.socket(_socket.AF_UNIX, _socket.SOCK_SEQPACKET)
    return _socket.socket(fileno=streams.above_streams(sock.detach()))


def _remove_stale(path: str, address: str) -> None:
    # we hold the lock, so no softnpu daemon lives here; but it may be somebody else's socket
    probe = new_socket()
    try:
        probe.connect(address)
    except (ConnectionRefusedError, FileNotFoundError):
        import logging  # late: most daemons end in order

        logging.getLogger(__name__).info("replacing the stale socket %s", path)
        if os.path.lexists(path):
            os.unlink(path)
        return
    except OSError as error:
        found = error.strerror or str(error)
    else:
        found = "a live server that is not a softnpu daemon"
    finally:
        probe.close()
    raise _refused(
        "ERROR_NOT_AVAILABLE",
        path,
        found=found,
        expected="a free path",
        hint="choose another place with --socket",
    )


def _already_served(path: str) -> Refused:
    from pathlib import Path  # late, as the others: nobody serves mostly

    from softnpu.emulator.interface import endpoint
    from softnpu.emulator.interface.result import ZeResult, refuse

    record = endpoint.read_record(Path(path))
    holder = f"by the daemon with pid {record.pid}" if record else "by another daemon"
    return refuse(
        ZeResult.ERROR_NOT_AVAILABLE,
        f"socket {path}",
        found=f"served {holder}",
        expected="a socket that no daemon serves",
        hint="use that daemon, stop it with 'softnpu stop', or choose another place with --socket",
    )


def _check_owner(path: str, info: os.stat_result) -> None:
    if info.st_uid != os.geteuid():
        raise _refused(
            "ERROR_INSUFFICIENT_PERMISSIONS",
            path,
            found=f"a {_file_kind(info.st_mode)} of user {info.st_uid}",
            expected=f"a socket of user {os.geteuid()} or nothing",
            hint="remove it, or choose another place with --socket",
        )


def _refused(result: str, path: str, *, found: str, expected: str, hint: str) -> Refused:
    from softnpu.emulator.interface.result import ZeResult, refuse  # late: the path is free mostly

    return refuse(ZeResult[result], f"socket path {path}", found=found, expected=expected, hint=hint)


def _file_kind(mode: int) -> str:
    kinds = {
        stat.S_IFSOCK: "socket",
        stat.S_IFREG: "regular file",
        stat.S_IFDIR: "directory",
        stat.S_IFLNK: "symbolic link",
    }
    return kinds.get(stat.S_IFMT(mode), "special file")
