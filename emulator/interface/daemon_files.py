"""Files and directories of a daemon, by the rules of interface.md, section 1.

In a directory that others may write, a name belongs to whoever comes first. With the sticky bit nobody can
replace a file of ours there, but an older one may be anybody's: so each file is checked as well.
This module imports little: a program may wait for it.
"""

from __future__ import annotations

import errno
import os
import stat

from softnpu.emulator.common.file_ownership import ROOT, distrust, is_unmapped, others_write

TYPE_CHECKING = False  # that of `typing` takes longer to import than all of this
if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from softnpu.emulator.interface.result import Refused

    AnyPath = str | os.PathLike[str]

_MAX_LINKS = 40  # as many as the kernel follows


def check_folder(folder: AnyPath) -> None:
    """Refuse a directory in which users other than this one and root can replace or remove files."""
    owners = (os.geteuid(), ROOT)
    path, info = "/", os.lstat("/")
    for path, info in _steps_to(folder):
        _check_owner(path, info, owners)
    if info.st_uid not in owners:
        raise _wrong_owner(path, info, owners)
    if others_write(path, info) and not info.st_mode & stat.S_ISVTX:
        raise _denied(
            f"directory {path}",
            found=f"others may write it (mode {stat.S_IMODE(info.st_mode):o}, no sticky bit)",
            expected="a directory that only its owner may write, or with the sticky bit",
            hint=f"correct it (chmod go-w {path}), or choose another directory with --socket",
        )


def check_folder_of(folder: AnyPath, user: int) -> None:
    """Refuse a directory in which others than `user`, this user and root can create or replace files."""
    owners = (user, os.geteuid(), ROOT)
    last = os.path.realpath(folder)
    for path, info in _steps_to(folder):
        _check_owner(path, info, owners)
        public = not stat.S_ISLNK(info.st_mode) and others_write(path, info)
        if public and (path == last or not info.st_mode & stat.S_ISVTX):
            raise _denied(
                f"directory {path}",
                found=f"others may write it (mode {stat.S_IMODE(info.st_mode):o}) and replace the socket",
                expected=f"a directory that only user {user} or root may write, for a daemon of user {user}",
                hint="have the owner of the daemon move it into a directory that only the owner can write",
            )


def open_own(path: AnyPath, flags: int, kind: str) -> int:
    """Open a regular file of this user that nobody else may write; create it with mode 600 if missing.

    Refuses anything else of this name: a link, a pipe, a file of another user or with a second name. `kind`
    names the file in the refusal.
    """
    flags |= os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK  # opening a pipe would block
    try:
        fd = os.open(path, flags, 0o600)
    except OSError as error:
        name, expected = f"{kind} {path}", "a file that can be created, or a regular file of this user"
        hint = "remove it, or choose another directory with --socket"
        if obstacle := _obstacle(path):
            raise _denied(name, found=obstacle, expected=expected, hint=hint) from error
        raise unusable(name, error, expected, hint) from error
    try:
        if reason := _not_own(fd):
            raise _denied(
                f"{kind} {path}",
                found=reason,
                expected=f"a regular file of user {os.geteuid()} that nobody else may write",
                hint="remove it, or choose another directory with --socket",
            )
    except BaseException:
        os.close(fd)
        raise
    return fd


def _check_owner(path: str, info: os.stat_result, owners: Collection[int]) -> None:
    if info.st_uid not in owners and not is_unmapped(info.st_uid):
        raise _wrong_owner(path, info, owners)


def _wrong_owner(path: str, info: os.stat_result, owners: Collection[int]) -> Refused:
    kind = "symbolic link" if stat.S_ISLNK(info.st_mode) else "directory"
    return _denied(
        f"{kind} {path}",
        found=f"it belongs to user {info.st_uid}",
        expected=f"a {kind} of {' or '.join(f'user {uid}' for uid in dict.fromkeys(owners))}",
        hint="choose another path with --socket, in a directory that you or root made",
    )


def unusable(
    object: str, error: OSError, expected: str, hint: str = "choose another place with --socket"
) -> Refused:
    """Build the refusal of a place where the system does not allow a daemon."""
    from softnpu.emulator.interface.result import ZeResult, refuse  # late: there is room mostly

    found = error.strerror or str(error)
    return refuse(ZeResult.ERROR_UNINITIALIZED, object, found=found, expected=expected, hint=hint)


def _denied(object: str, *, found: str, expected: str, hint: str) -> Refused:
    from softnpu.emulator.interface.result import ZeResult, refuse  # late, as above

    return refuse(ZeResult.ERROR_INSUFFICIENT_PERMISSIONS, object, found=found, expected=expected, hint=hint)


def _steps_to(folder: AnyPath) -> Iterator[tuple[str, os.stat_result]]:
    """Yield every directory and symbolic link on the way to `folder`, and `folder` last."""
    path, links = "/", 0
    left = _parts(os.fspath(folder) if os.path.isabs(folder) else os.path.join(os.getcwd(), folder))
    yield path, os.lstat(path)
    while left:
        part = left.pop()
        if part == "..":
            path = os.path.dirname(path)
            continue
        name = os.path.join(path, part)
        try:
            info = os.lstat(name)
            target = os.readlink(name) if stat.S_ISLNK(info.st_mode) else None
            links += target is not None
            if links > _MAX_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        except OSError as error:
            hint = "make it, or choose another directory with --socket"
            raise unusable(f"directory {name}", error, "a directory to hold the socket", hint) from error
        yield name, info
        if target is None:
            path = name
        else:
            path = "/" if os.path.isabs(target) else path
            left += _parts(target)


def _parts(path: str) -> list[str]:
    """Return the names in a path, the last one first."""
    return [part for part in reversed(path.split("/")) if part not in ("", ".")]


def _not_own(fd: int) -> str:
    """Return why a file was not created by this user alone; empty if it was."""
    info = os.fstat(fd)
    if info.st_uid != os.geteuid():
        return f"it belongs to user {info.st_uid}"
    if info.st_nlink > 1:  # 0: the last user has just removed it
        return f"it has {info.st_nlink} names"
    return distrust(fd)


def _obstacle(path: AnyPath) -> str:
    """Return the obstacle: a link, or another user's file, if visible."""
    try:
        info = os.lstat(path)
    except OSError:
        return ""
    if stat.S_ISLNK(info.st_mode):
        return f"it is a symbolic link of user {info.st_uid}"
    return f"it belongs to user {info.st_uid}" if info.st_uid != os.geteuid() else ""
