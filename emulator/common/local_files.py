"""Whether a file lies on a local disk, found without asking its file system, which may hang."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

_LOCAL: Final = (
    "ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "bcachefs", "zfs",
    "overlay", "tmpfs", "erofs", "squashfs",
)  # fmt: skip
"""Without fuse and the like, where a program answers, and networks."""


def is_local(fd: int) -> bool:
    """Whether its mount is one of this namespace, with a file system that the kernel serves locally.

    A user may mount anything in a namespace of their own; such a mount is unknown here.
    """
    # what has no path is no file: an inotify or epoll descriptor would list all that it watches as well
    if not os.readlink(f"/proc/self/fd/{fd}").startswith("/"):
        return False
    mount = _mount_of(fd)
    if mount is None:
        return False
    for line in Path("/proc/self/mountinfo").read_bytes().splitlines():
        fields = line.split()
        if fields[0] == mount:
            return fields[fields.index(b"-") + 1].decode() in _LOCAL
    return False


def _mount_of(fd: int) -> bytes | None:
    """Return the number of the mount that the descriptor was opened on."""
    for line in Path(f"/proc/self/fdinfo/{fd}").read_bytes().splitlines():
        name, _, value = line.partition(b":")
        if name == b"mnt_id":
            return value.strip()
    return None
