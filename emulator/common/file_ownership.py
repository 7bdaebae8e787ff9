"""Trust in files: those that users other than this one and root may have written are not trusted."""

from __future__ import annotations

import errno
import grp
import os
import pwd
import stat

TYPE_CHECKING = False  # that of `typing` takes longer to import than all of this
if TYPE_CHECKING:
    from pathlib import Path

ROOT = 0
ACCESS_LIST = "system.posix_acl_access"


def distrust(fd: int) -> str:
    """Return why users other than this one and root may have written a file; empty if they cannot."""
    info = os.fstat(fd)
    if not stat.S_ISREG(info.st_mode):
        return "it is no regular file"
    if info.st_uid not in (os.geteuid(), ROOT):
        return f"it belongs to user {info.st_uid}, neither to user {os.geteuid()} nor to root"
    if others_write(fd, info):
        return f"others may write it (mode {stat.S_IMODE(info.st_mode):o})"
    return ""


def open_trusted(path: Path) -> int:
    """Open a file to read it. Raises `PermissionError` if there is a reason to `distrust` it."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        reason = distrust(fd)
        if reason:
            raise PermissionError(errno.EPERM, reason, str(path))
    except BaseException:
        os.close(fd)
        raise
    return fd


def others_write(file: str | Path | int, info: os.stat_result) -> bool:
    """Whether users other than the owner may write a file or directory; `info` is what `stat` says of it."""
    if info.st_mode & stat.S_IWOTH:
        return True
    if not info.st_mode & stat.S_IWGRP:
        return False
    return _has_access_list(file) or not _is_private_group(info.st_gid, info.st_uid)


def is_unmapped(uid: int) -> bool:
    """Whether `uid` stands for any user of the machine outside of this user namespace, root among them."""
    with open("/proc/sys/kernel/overflowuid") as file:
        if uid != int(file.read()):
            return False
    with open("/proc/self/uid_map") as file:
        ranges = [tuple(map(int, line.split())) for line in file]
    return not any(first <= uid < first + count for first, _, count in ranges)


def _has_access_list(file: str | Path | int) -> bool:
    try:
        os.getxattr(file, ACCESS_LIST)
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
