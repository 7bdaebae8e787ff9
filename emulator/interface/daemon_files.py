"""Files and directories of a daemon, by the rules of interface.md, section 1.

In a directory that others may write, a name belongs to whoever comes first. With the sticky bit nobody can
replace a file of ours there, but an older one may be anybody's: so each file is checked as well.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Collection, Iterator
from pathlib import Path

from softnpu.emulator.common.file_ownership import ROOT, distrust, is_unmapped, others_write
from softnpu.emulator.interface.result import Refused, ZeResult, refuse

_DENIED = ZeResult.ERROR_INSUFFICIENT_PERMISSIONS
_MAX_LINKS = 40  # as many as the kernel follows


def check_folder(folder: Path) -> None:
    """Refuse a directory in which users other than this one and root can replace or remove files."""
    owners = (os.geteuid(), ROOT)
    path, info = Path("/"), os.lstat("/")
    for path, info in _steps_to(folder):
        _check_owner(path, info, owners)
    if info.st_uid not in owners:
        raise _wrong_owner(path, info, owners)
    if others_write(path, info) and not info.st_mode & stat.S_ISVTX:
        raise refuse(
            _DENIED,
            f"directory {path}",
            found=f"others may write it (mode {stat.S_IMODE(info.st_mode):o}, no sticky bit)",
            expected="a directory that only its owner may write, or with the sticky bit",
            hint=f"correct it (chmod go-w {path}), or choose another directory with --socket",
        )


def check_folder_of(folder: Path, user: int) -> None:
    """Refuse a directory in which others than `user`, this user and root can create or replace files."""
    owners = (user, os.geteuid(), ROOT)
    last = folder.resolve()
    for path, info in _steps_to(folder):
        _check_owner(path, info, owners)
        public = not stat.S_ISLNK(info.st_mode) and others_write(path, info)
        if public and (path == last or not info.st_mode & stat.S_ISVTX):
            raise refuse(
                _DENIED,
                f"directory {path}",
                found=f"others may write it (mode {stat.S_IMODE(info.st_mode):o}) and replace the socket",
                expected=f"a directory that only user {user} or root may write, for a daemon of user {user}",
                hint="have the owner of the daemon move it into a directory that only the owner can write",
            )


def open_own(path: Path, flags: int, kind: str) -> int:
    """Open a regular file of this user that nobody else may write; create it with mode 600 if missing.

    Refuses anything else of this name: a link, a pipe, a file of another user or with a second name. `kind`
    names the file in the refusal.
    """
    flags |= os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK  # opening a pipe would block
    try:
        fd = os.open(path, flags, 0o600)
    except OSError as error:
        obstacle = _obstacle(path)
        raise refuse(
            _DENIED if obstacle else ZeResult.ERROR_UNINITIALIZED,
            f"{kind} {path}",
            found=obstacle or error.strerror or str(error),
            expected="a file that can be created, or a regular file of this user",
            hint="remove it, or choose another directory with --socket",
        ) from error
    try:
        if reason := _not_own(fd):
            raise refuse(
                _DENIED,
                f"{kind} {path}",
                found=reason,
                expected=f"a regular file of user {os.geteuid()} that nobody else may write",
                hint="remove it, or choose another directory with --socket",
            )
    except BaseException:
        os.close(fd)
        raise
    return fd


def _check_owner(path: Path, info: os.stat_result, owners: Collection[int]) -> None:
    if info.st_uid not in owners and not is_unmapped(info.st_uid):
        raise _wrong_owner(path, info, owners)


def _wrong_owner(path: Path, info: os.stat_result, owners: Collection[int]) -> Refused:
    kind = "symbolic link" if stat.S_ISLNK(info.st_mode) else "directory"
    return refuse(
        _DENIED,
        f"{kind} {path}",
        found=f"it belongs to user {info.st_uid}",
        expected=f"a {kind} of {' or '.join(f'user {uid}' for uid in dict.fromkeys(owners))}",
        hint="choose another path with --socket, in a directory that you or root made",
    )


def unusable(
    object: str, error: OSError, expected: str, hint: str = "choose another place with --socket"
) -> Refused:
    """Build the refusal of a place where the system does not allow a daemon."""
    found = error.strerror or str(error)
    return refuse(ZeResult.ERROR_UNINITIALIZED, object, found=found, expected=expected, hint=hint)


def _steps_to(folder: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Yield every directory and symbolic link on the way to `folder`, and `folder` last."""
    path, links = Path("/"), 0
    left = list(reversed(folder.absolute().parts[1:]))
    yield path, os.lstat(path)
    while left:
        part = left.pop()
        if part == "..":
            path = path.parent
            continue
        name = path / part
        try:
            info = os.lstat(name)
            target = Path(os.readlink(name)) if stat.S_ISLNK(info.st_mode) else None
            links += target is not None
            if links > _MAX_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        except OSError as error:
            hint = "make it, or choose another directory with --socket"
            raise unusable(f"directory {name}", error, "a directory to hold the socket", hint) from error
        yield name, info
        if target is None:
            path = name
        elif target.is_absolute():
            path = Path("/")
            left.extend(reversed(target.parts[1:]))
        else:
            left.extend(reversed(target.parts))


def _not_own(fd: int) -> str:
    """Return why a file was not created by this user alone; empty if it was."""
    info = os.fstat(fd)
    if info.st_uid != os.geteuid():
        return f"it belongs to user {info.st_uid}"
    if info.st_nlink > 1:  # 0: the last user has just removed it
        return f"it has {info.st_nlink} names"
    return distrust(fd)


def _obstacle(path: Path) -> str:
    """Return the obstacle: a link, or another user's file, if visible."""
    try:
        info = path.lstat()
    except OSError:
        return ""
    if stat.S_ISLNK(info.st_mode):
        return f"it is a symbolic link of user {info.st_uid}"
    return f"it belongs to user {info.st_uid}" if info.st_uid != os.geteuid() else ""
