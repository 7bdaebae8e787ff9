"""Whose files: what another user can put in our way is neither opened for writing nor believed.

A name in a directory that others may write belongs to whoever comes first. With the sticky bit nobody can
replace a file of ours there, but one that was there before may be anybody's: so each file is checked as well.
"""

from __future__ import annotations

import errno
import grp
import os
import pwd
import stat
from collections.abc import Collection, Iterator
from pathlib import Path

from softnpu.emulator.interface.result import Refused, ZeResult, refuse

ROOT = 0
ACCESS_LIST = "system.posix_acl_access"
_NO_RIGHT = ZeResult.ERROR_INSUFFICIENT_PERMISSIONS
_MOST_LINKS = 40  # as many as the kernel follows


def check_folder(folder: Path) -> None:
    """Refuses a directory in which a user who is neither this one nor root can replace or remove files."""
    name, info = _check_way(folder, (os.geteuid(), ROOT))
    if _others_write(name, info) and not info.st_mode & stat.S_ISVTX:
        raise _bad(
            f"directory {name}",
            f"others may write it (mode {stat.S_IMODE(info.st_mode):o}, no sticky bit)",
            "a directory that only its owner may write, or with the sticky bit",
            f"correct it (chmod go-w {name}), or choose another place with --socket",
        )


def check_folder_of(folder: Path, user: int) -> None:
    """Refuses a directory in which others than `user`, this user and root can make or replace files."""
    owners = (user, os.geteuid(), ROOT)
    last = folder.resolve()
    for name, info in _way(folder):
        _check_owner(name, info, owners)
        public = not stat.S_ISLNK(info.st_mode) and _others_write(name, info)
        if public and (name == last or not info.st_mode & stat.S_ISVTX):
            raise _bad(
                f"directory {name}",
                f"others may write it (mode {stat.S_IMODE(info.st_mode):o}): this may be anybody's socket",
                f"a directory that only user {user} or root may write, for a daemon of user {user}",
                "have the owner of the daemon move it into a directory that only the owner can write",
            )


def open_own(path: Path, flags: int, what: str) -> int:
    """Opens a regular file of this user that nobody else may write; makes it with mode 600 if there is none.

    Refuses anything else that has this name: a link, a pipe, a file of another user or with a second name.
    """
    flags |= os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK  # to open a pipe would wait
    try:
        fd = os.open(path, flags, 0o600)
    except OSError as error:
        obstacle = _obstacle(path)
        raise refuse(
            _NO_RIGHT if obstacle else ZeResult.ERROR_UNINITIALIZED,
            f"{what} {path}",
            found=obstacle or error.strerror or str(error),
            expected="a file that can be created, or a regular file of this user",
            hint="remove it, or choose another place with --socket",
        ) from error
    try:
        found = _not_own(fd)
        if found:
            raise _bad(
                f"{what} {path}",
                found,
                f"a regular file of user {os.geteuid()} that nobody else may write",
                "remove it, or choose another place with --socket",
            )
    except BaseException:
        os.close(fd)
        raise
    return fd


def distrust(fd: int) -> str:
    """Why what a file says may have been said by others than this user and root; empty if it cannot."""
    info = os.fstat(fd)
    if not stat.S_ISREG(info.st_mode):
        return "it is no regular file"
    if info.st_uid not in (os.geteuid(), ROOT):
        return f"it belongs to user {info.st_uid}, neither to user {os.geteuid()} nor to root"
    if _others_write(fd, info):
        return f"others may write it (mode {stat.S_IMODE(info.st_mode):o})"
    return ""


def open_trusted(path: Path) -> int:
    """Opens a file to read it. Raises `PermissionError` if there is a reason to `distrust` it."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        reason = distrust(fd)
        if reason:
            raise PermissionError(errno.EPERM, reason, str(path))
    except BaseException:
        os.close(fd)
        raise
    return fd


# ------------------------------------------------------------


def _bad(object: str, found: str, expected: str, hint: str) -> Refused:
    return refuse(_NO_RIGHT, object, found=found, expected=expected, hint=hint)


def _check_way(folder: Path, owners: Collection[int]) -> tuple[Path, os.stat_result]:
    """Refuses an owner of the directory, one above it or a link on the way; what is at its end."""
    at, found = Path("/"), os.lstat("/")
    for at, found in _way(folder):
        _check_owner(at, found, owners)
    if found.st_uid not in owners:
        raise _foreign(at, found, owners)
    return at, found


def _check_owner(name: Path, info: os.stat_result, owners: Collection[int]) -> None:
    if info.st_uid not in owners and not _is_unmapped(info.st_uid):
        raise _foreign(name, info, owners)


def _foreign(name: Path, info: os.stat_result, owners: Collection[int]) -> Refused:
    kind = "symbolic link" if stat.S_ISLNK(info.st_mode) else "directory"
    return _bad(
        f"{kind} {name}",
        f"it belongs to user {info.st_uid}",
        f"a {kind} of {' or '.join(f'user {uid}' for uid in dict.fromkeys(owners))}",
        "choose another place with --socket, in a directory that you or root made",
    )


def _way(folder: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Every directory and symbolic link that leads to `folder`, which comes last."""
    at, links = Path("/"), 0
    left = list(reversed(folder.absolute().parts[1:]))
    yield at, os.lstat(at)
    while left:
        part = left.pop()
        if part == "..":
            at = at.parent
            continue
        name = at / part
        try:
            info = os.lstat(name)
            target = Path(os.readlink(name)) if stat.S_ISLNK(info.st_mode) else None
            links += target is not None
            if links > _MOST_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        except OSError as error:
            raise refuse(
                ZeResult.ERROR_UNINITIALIZED,
                f"directory {name}",
                found=error.strerror or str(error),
                expected="a directory to hold the socket",
                hint="make it, or choose another place with --socket",
            ) from error
        yield name, info
        if target is None:
            at = name
        elif target.is_absolute():
            at = Path("/")
            left.extend(reversed(target.parts[1:]))
        else:
            left.extend(reversed(target.parts))


def _others_write(place: Path | int, info: os.stat_result) -> bool:
    if info.st_mode & stat.S_IWOTH:
        return True
    if not info.st_mode & stat.S_IWGRP:
        return False
    return _has_access_list(place) or not _is_private_group(info.st_gid, info.st_uid)


def _has_access_list(place: Path | int) -> bool:
    try:
        os.getxattr(place, ACCESS_LIST)
    except OSError as error:
        return error.errno not in (errno.ENODATA, errno.ENOTSUP)
    return True


def _is_private_group(gid: int, uid: int) -> bool:
    """Whether a group is that of one user alone, as accounts are made with a umask of 002."""
    try:
        group, user = grp.getgrgid(gid), pwd.getpwuid(uid)
    except KeyError:
        return False
    return user.pw_gid == gid and group.gr_name == user.pw_name and set(group.gr_mem) <= {user.pw_name}


def _is_unmapped(uid: int) -> bool:
    """Whether `uid` stands for any user of the machine outside of this user namespace, root among them."""
    with open("/proc/sys/kernel/overflowuid") as file:
        if uid != int(file.read()):
            return False
    with open("/proc/self/uid_map") as file:
        ranges = [tuple(map(int, line.split())) for line in file]
    return not any(first <= uid < first + count for first, _, count in ranges)


def _not_own(fd: int) -> str:
    """Why a file is not one that this user alone has made; empty if it is."""
    info = os.fstat(fd)
    if info.st_uid != os.geteuid():
        return f"it belongs to user {info.st_uid}"
    if info.st_nlink > 1:  # none: whoever used it last has just removed it
        return f"it has {info.st_nlink} names"
    return distrust(fd)


def _obstacle(path: Path) -> str:
    """What is in the way, if it is a link or somebody else's and can be seen."""
    try:
        info = path.lstat()
    except OSError:
        return ""
    if stat.S_ISLNK(info.st_mode):
        return f"it is a symbolic link of user {info.st_uid}"
    return f"it belongs to user {info.st_uid}" if info.st_uid != os.geteuid() else ""
