"""The mappings of this process: /proc/self/maps."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import struct
from dataclasses import dataclass
from typing import Final

from softnpu.emulator.common import linux

_MAPS = "/proc/self/maps"
_PATH_MAX = 4096

# PROCMAP_QUERY (Linux 6.11) finds one area; reading all of them takes 4 us each
_QUERY: Final = struct.Struct("9Q4I2Q")
_PROCMAP_QUERY: Final = 3 << 30 | _QUERY.size << 16 | ord("f") << 8 | 17
_READABLE, _WRITABLE, _EXECUTABLE, _SHARED = 1, 2, 4, 8


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
    """Return all areas, ordered by address."""
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


def find_area(address: int) -> Area | None:
    """Return the area that contains an address."""
    name = ctypes.create_string_buffer(_PATH_MAX)
    query = bytearray(
        _QUERY.pack(_QUERY.size, 0, address, *bytes(8), len(name), 0, ctypes.addressof(name), 0)
    )
    try:
        with open(_MAPS, "rb", buffering=0) as file:
            fcntl.ioctl(file, _PROCMAP_QUERY, query)
    except OSError as failure:
        if failure.errno == errno.ENOENT:
            return None
        # an older kernel
        return next((area for area in read_areas() if area.start <= address < area.end), None)
    _, _, _, start, end, flags, _, offset, inode, major, minor, named, _, _, _ = _QUERY.unpack(query)
    access = "".join(
        letter if flags & bit else "-"
        for letter, bit in (("r", _READABLE), ("w", _WRITABLE), ("x", _EXECUTABLE))
    )
    path = os.fsdecode(name.value) if named else ""
    return Area(start, end, access + ("s" if flags & _SHARED else "p"), offset, (major, minor), inode, path)


def open_mapped_file(area: Area, access: int = os.O_RDONLY) -> int | None:
    """Open the very file that is mapped; return None if that is impossible."""
    for name in (f"/proc/self/map_files/{area.start:x}-{area.end:x}", area.path):
        try:
            fd = os.open(name, access | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError:
            continue
        if is_file(fd, area):
            return fd
        os.close(fd)
    # a memory file, or a removed one: this process may still have it open
    for name in os.listdir("/proc/self/fd"):
        try:
            if is_file(int(name), area):
                return os.dup(int(name))
        except OSError:
            continue
    return None


def is_file(fd: int, area: Area) -> bool:
    """Whether it is the very file that is mapped."""
    info = os.fstat(fd)
    if info.st_ino != area.inode:
        return False
    if not linux.is_layered(fd):
        return (os.major(info.st_dev), os.minor(info.st_dev)) == area.device
    # Two layers may have a file of the same number; on an overlay a file that was written after it had been
    # mapped is another one of the same number. To look at a private page that may be written would copy it.
    is_copied = area.access[3] == "p" and "w" in area.access
    return not is_copied and linux.is_same_page(area.start, fd, area.offset)
