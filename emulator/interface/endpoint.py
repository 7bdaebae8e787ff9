"""The address of a daemon: its socket, and the lock file beside it.

A daemon holds an exclusive lock on `SOCKET.lock` while it serves the socket. The kernel drops the lock when
the daemon ends, however it ends: holding the lock proves that no daemon lives. Its JSON content
(`DaemonRecord`) lets a monitor find the status page without a session.
"""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from softnpu.emulator.common import streams
from softnpu.emulator.common.file_ownership import ROOT
from softnpu.emulator.interface import socket_place
from softnpu.emulator.interface.environment import ENV_SOCKET
from softnpu.emulator.interface.result import Refused, ZeResult, refuse
from softnpu.emulator.interface.socket_place import MAX_SUN_PATH

_ACCEPT_S = 1.0
_MAX_RECORD = 4096


class DaemonRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Content of the lock file. `start_time` in clock ticks since boot, as in /proc/PID/stat."""

    pid: int
    start_time: int
    boot_id: str
    status: str


def default_socket() -> Path:
    """Return `SOFTNPU_SOCKET`, else `softnpu.sock` in a directory that only this user can enter.

    That directory is `softnpu` in `XDG_RUNTIME_DIR`, or in /run/user/UID, or else /tmp/softnpu-UID.
    """
    chosen = os.environ.get(ENV_SOCKET)
    if chosen:
        return Path(chosen).absolute()
    folder = Path(socket_place.runtime_folder())
    if not socket_place.is_private(str(folder)):
        info = folder.lstat()
        raise refuse(
            ZeResult.ERROR_INSUFFICIENT_PERMISSIONS,
            f"runtime directory {folder}",
            found=f"owner {info.st_uid}, mode {stat.S_IMODE(info.st_mode):o}",
            expected=f"a directory of owner {os.geteuid()} with mode 700",
            hint=f"correct it, or choose another path with {ENV_SOCKET}",
        )
    return folder / "softnpu.sock"


def lock_path(path: Path) -> Path:
    """Return the lock file of the daemon that serves `path`."""
    return Path(socket_place.lock_of(str(path)))


def log_path(path: Path) -> Path:
    """Return the log of a background daemon that serves `path`."""
    return Path(socket_place.log_of(str(path)))


def older_log_path(path: Path) -> Path:
    """Return the rotated log, from before the log became too long."""
    return path.with_name(path.name + ".log.1")


@contextmanager
def socket_address(path: Path) -> Iterator[str]:
    """Yield an address for `bind` and `connect`, even for paths over the 107 bytes of `sun_path`."""
    if len(os.fsencode(path)) <= MAX_SUN_PATH:
        yield str(path)
        return
    try:
        folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise refuse(
            ZeResult.ERROR_UNINITIALIZED,
            f"socket {path}",
            found=error.strerror or str(error),
            expected="a directory to hold it",
        ) from error
    try:
        address = f"/proc/self/fd/{folder}/{path.name}"
        if len(os.fsencode(address)) > MAX_SUN_PATH:
            raise refuse(
                ZeResult.ERROR_INVALID_SIZE,
                f"socket {path}",
                found=f"a file name of {len(os.fsencode(path.name))} bytes",
                expected=f"at most {MAX_SUN_PATH - 24}",
            )
        yield address
    finally:
        os.close(folder)


def new_socket() -> socket.socket:
    """Create a socket of the interface's type."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    return socket.socket(fileno=streams.above_streams(sock.detach()))


def accepts(path: Path) -> bool:
    """Return whether a process accepts connections at a socket."""
    with new_socket() as sock:
        sock.settimeout(_ACCEPT_S)
        try:
            with socket_address(path) as address:
                sock.connect(address)
        except (OSError, Refused):
            return False
    return True


def read_record(path: Path) -> DaemonRecord | None:
    """Return the record in the lock file of `path`; None without a readable one.

    A record is trusted if the file belongs to this user, to root, or to the user of the recorded process.
    """
    try:
        fd = os.open(lock_path(path), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        record = msgspec.json.decode(os.read(fd, _MAX_RECORD), type=DaemonRecord)
        info = os.fstat(fd)
        if info.st_uid not in (os.geteuid(), ROOT) and info.st_uid != os.stat(f"/proc/{record.pid}").st_uid:
            return None
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return None
    finally:
        os.close(fd)
    return record
