"""File modes and access lists that let allowed users reach the socket, and no others.

The daemon also checks each peer with the kernel (`SO_PEERCRED`); this is the first barrier.
"""

from __future__ import annotations

import errno
import os
import stat
import struct
from collections.abc import Iterator
from pathlib import Path

from softnpu.emulator.common.file_ownership import ACCESS_LIST
from softnpu.emulator.interface.daemon_files import check_folder, unusable
from softnpu.emulator.interface.result import Refused, ZeResult, refuse

_VERSION = struct.pack("<I", 2)
_ENTRY = struct.Struct("<HHI")
_OWNER, _USER, _OWNING_GROUP, _GROUP, _MASK, _OTHERS = 1, 2, 4, 8, 0x10, 0x20
_NO_ID = 0xFFFFFFFF
_READ_WRITE, _SEARCH = 6, 1


def make_folder(path: Path, users: tuple[int, ...], groups: tuple[int, ...]) -> None:
    """Make the directory of a socket, if it is missing, for its owner and the allowed users."""
    folder = path.parent
    check_folder(folder.parent)
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        check_folder(folder)
        # one with a list of ours is from an earlier daemon, which may have let in others
        if folder.stat().st_uid == os.geteuid() and any(_entries(folder)):
            _grant(folder, 7, _SEARCH, users, groups)
        _check_folders(folder, users, groups)
        return
    except OSError as error:
        raise unusable(f"directory {folder}", error, "a directory that can be made") from error
    try:
        _grant(folder, 7, _SEARCH, users, groups)
        _check_folders(folder, users, groups)
    except Refused:
        folder.rmdir()
        raise


def open_socket_to(path: Path, users: tuple[int, ...], groups: tuple[int, ...]) -> None:
    """Let the allowed users connect to a socket of mode 600."""
    _grant(path, _READ_WRITE, _READ_WRITE, users, groups)


def _grant(path: Path, owner: int, others: int, users: tuple[int, ...], groups: tuple[int, ...]) -> None:
    entries = [
        (_OWNER, owner, _NO_ID),
        *((_USER, others, uid) for uid in sorted(set(users))),
        (_OWNING_GROUP, 0, _NO_ID),
        *((_GROUP, others, gid) for gid in sorted(set(groups))),
        (_MASK, others, _NO_ID),
        (_OTHERS, 0, _NO_ID),
    ]
    try:
        os.setxattr(path, ACCESS_LIST, _VERSION + b"".join(_ENTRY.pack(*entry) for entry in entries))
    except OSError as error:
        if error.errno != errno.ENOTSUP:
            raise
        raise refuse(
            ZeResult.ERROR_UNSUPPORTED_FEATURE,
            f"{path}",
            found="a file system without access lists",
            expected="one that can let single users in",
            hint="choose another place with --socket, such as one in /tmp or /run",
        ) from error


def _check_folders(folder: Path, users: tuple[int, ...], groups: tuple[int, ...]) -> None:
    """Refuse a directory that an allowed user or group cannot reach."""
    for name in (folder.resolve(), *folder.resolve().parents):
        for kind, number in [*((_USER, uid) for uid in users), *((_GROUP, gid) for gid in groups)]:
            if not _may_enter(name, kind, number):
                who = f"user {number}" if kind == _USER else f"group {number}"
                raise refuse(
                    ZeResult.ERROR_INSUFFICIENT_PERMISSIONS,
                    f"directory {name}",
                    found=f"{who} cannot enter it (mode {stat.S_IMODE(name.stat().st_mode):o})",
                    expected="a way to the socket for everybody who is allowed",
                    hint="choose a new directory in one that they can enter and that only you or root can"
                    " write, such as --socket /run/npu/npu.sock for a daemon of root",
                )


def _may_enter(folder: Path, kind: int, number: int) -> bool:
    """Whether a user or group, by itself, may search a directory; the groups of a user do not count."""
    info = folder.stat()
    if kind == _USER and number in (0, info.st_uid):
        return number == 0 or bool(info.st_mode & stat.S_IXUSR)
    entries = list(_entries(folder))
    mask = next((rights for tag, rights, _ in entries if tag == _MASK), 7)
    for tag, rights, identity in entries:
        if tag == kind and identity == number:
            return bool(rights & mask & _SEARCH)
    if kind == _GROUP and number == info.st_gid:
        return bool(info.st_mode & stat.S_IXGRP)
    return bool(info.st_mode & stat.S_IXOTH)


def _entries(path: Path) -> Iterator[tuple[int, int, int]]:
    try:
        data = os.getxattr(path, ACCESS_LIST)
    except OSError:
        return  # no list, or none can be: the mode is all there is
    yield from _ENTRY.iter_unpack(data[len(_VERSION) :])
