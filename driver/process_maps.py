"""What is mapped into this process: /proc/self/maps."""

from __future__ import annotations

import os
from dataclasses import dataclass

_MAPS = "/proc/self/maps"


@dataclass(frozen=True)
class Area:
    """One line of /proc/self/maps."""

    start: int
    end: int
    access: str
    offset: int
    device: tuple[int, int]
    inode: int
    path: str

    @property
    def file(self) -> tuple[int, int, int]:
        return (*self.device, self.inode)


def read_areas() -> list[Area]:
    """All areas, in the order of their addresses."""
    with open(_MAPS, "rb") as file:
        lines = file.read().decode(errors="surrogateescape").splitlines()
    areas = []
    for line in lines:
        fields = line.split(maxsplit=5)
        start, end = (int(text, 16) for text in fields[0].split("-"))
        major, minor = (int(text, 16) for text in fields[3].split(":"))
        path = fields[5] if len(fields) > 5 else ""
        areas.append(Area(start, end, fields[1], int(fields[2], 16), (major, minor), int(fields[4]), path))
    return areas


def open_mapped_file(area: Area, access: int = os.O_RDONLY) -> int | None:
    """A descriptor of the very file that is mapped; None if it cannot be had."""
    for name in (f"/proc/self/map_files/{area.start:x}-{area.end:x}", area.path):
        try:
            fd = os.open(name, access | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError:
            continue
        if _is_file(fd, area):
            return fd
        os.close(fd)
    # a memory file, or one that was removed: this process may still have it open
    for name in os.listdir("/proc/self/fd"):
        try:
            if _is_file(int(name), area):
                return os.dup(int(name))
        except OSError:
            continue
    return None


def _is_file(fd: int, area: Area) -> bool:
    info = os.fstat(fd)
    return info.st_ino == area.inode and (os.major(info.st_dev), os.minor(info.st_dev)) == area.device
