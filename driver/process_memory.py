"""Memory of this process as descriptors, for weights that a program names by their address.

A read-only mapping of a file is passed as its descriptor, without a copy. Everything else is copied once,
into sealed memory files: heap memory, and memory that the program could still change (a writable mapping, the
driver's own allocations), because the device may use the weights long after the call.
"""

from __future__ import annotations

import bisect
import ctypes
import os
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from softnpu.driver.errors import ZeError, error, invalid_argument
from softnpu.driver.graph_source import WeightFile
from softnpu.driver.process_maps import Area, open_mapped_file, read_areas
from softnpu.emulator.blob.weights import CONSTANT_ALIGNMENT, MAX_SOURCES, SpaceLayout
from softnpu.emulator.common import linux
from softnpu.emulator.interface.messages import WeightSource
from softnpu.emulator.interface.result import ZeResult

_SMAPS = "/proc/self/smaps"
_CHUNK = 1 << 30
_MOST_COPIES = 4
_SEVERAL_FROM = 64 << 20
"""Bytes from which on copies go into several files."""


@dataclass(frozen=True)
class Piece:
    """`length` bytes at `address`, called `name` in errors."""

    name: str
    address: int
    length: int


@dataclass(frozen=True)
class _InFile:
    """A piece inside a file, at `offset`."""

    file: tuple[int, int, int]
    offset: int


class _Place(NamedTuple):
    """The target of a copy: which file of copies, at which offset."""

    file: int
    offset: int


class _Plan(NamedTuple):
    """The target of each copied piece, by address and length, and the sizes of the files of copies."""

    places: dict[tuple[int, int], _Place]
    sizes: tuple[int, ...]


@dataclass(frozen=True)
class Gathered:
    """Weight files (the caller owns their descriptors) and the offset of each piece in their space."""

    files: tuple[WeightFile, ...]
    offsets: tuple[int, ...]


def gather(
    pieces: Sequence[Piece], call: str, known: Mapping[int, tuple[int, int]] | None = None
) -> Gathered:
    """Gather pieces of this process's memory into weight files.

    `known` maps the index of a piece to a descriptor and offset with the same bytes, to be read instead.
    Raises `ZeError`: INVALID_ARGUMENT for an unreadable piece, by its name, before any piece is read;
    OUT_OF_HOST_MEMORY when there is no room for the copies.
    """
    areas = read_areas()
    covering = [_covering(areas, piece, call) for piece in pieces]
    opened: dict[tuple[int, int, int], int] = {}
    try:
        private = _Private()
        located = [
            _in_file(piece, cover, opened, private) for piece, cover in zip(pieces, covering, strict=True)
        ]
        for index, (fd, offset) in (known or {}).items():
            located[index] = _InFile(_keep_open(fd, opened), offset)
        located = _limited(located, pieces, opened)
        return _gathered(pieces, located, opened, call)
    finally:
        for fd in opened.values():
            os.close(fd)


def _keep_open(fd: int, opened: dict[tuple[int, int, int], int]) -> tuple[int, int, int]:
    """Add the caller's descriptor to the open ones; return its file."""
    info = os.fstat(fd)
    file = (os.major(info.st_dev), os.minor(info.st_dev), info.st_ino)
    if file not in opened:
        opened[file] = os.dup(fd)
    return file


def _gathered(
    pieces: Sequence[Piece],
    located: Sequence[_InFile | None],
    opened: dict[tuple[int, int, int], int],
    call: str,
) -> Gathered:
    begins: dict[tuple[int, int, int], int] = {}
    ends: dict[tuple[int, int, int], int] = {}
    for piece, in_file in zip(pieces, located, strict=True):
        if in_file is not None:
            begins[in_file.file] = min(in_file.offset, begins.get(in_file.file, in_file.offset))
            ends[in_file.file] = max(in_file.offset + piece.length, ends.get(in_file.file, 0))
    files = [WeightFile(os.dup(opened[file]), begins[file], ends[file] - begins[file]) for file in begins]
    try:
        plan = _plan(pieces, located, MAX_SOURCES - 1 - len(files))
        files += _copies(pieces, plan, call)
    except BaseException:
        for file in files:
            os.close(file.fd)
        raise
    sources = [WeightSource(offset=file.offset, length=file.length) for file in files]
    starts = SpaceLayout(sources).starts
    start_of = dict(zip(begins, starts, strict=False))
    offsets = []
    for piece, in_file in zip(pieces, located, strict=True):
        if in_file is not None:
            offsets.append(start_of[in_file.file] + in_file.offset - begins[in_file.file])
        elif piece.length:
            place = plan.places[piece.address, piece.length]
            offsets.append(starts[len(begins) + place.file] + place.offset)
        else:
            offsets.append(0)
    return Gathered(tuple(files), tuple(offsets))


def _limited(
    located: list[_InFile | None], pieces: Sequence[Piece], opened: dict[tuple[int, int, int], int]
) -> list[_InFile | None]:
    """Keep the largest files, as many as a message carries; pieces in other files are copied."""
    sizes = dict.fromkeys(opened, 0)
    for piece, in_file in zip(pieces, located, strict=True):
        if in_file is not None:
            sizes[in_file.file] += piece.length
    if len(sizes) < MAX_SOURCES:
        return located
    kept = set(sorted(sizes, key=lambda file: sizes[file], reverse=True)[: MAX_SOURCES - 1])
    return [in_file if in_file is not None and in_file.file in kept else None for in_file in located]


def _plan(pieces: Sequence[Piece], located: Sequence[_InFile | None], room: int) -> _Plan:
    """Assign each copied piece to the least filled file; at most `room` files."""
    lengths = {
        (piece.address, piece.length): piece.length
        for piece, in_file in zip(pieces, located, strict=True)
        if in_file is None and piece.length
    }
    several = sum(lengths.values()) >= _SEVERAL_FROM
    sizes = [0] * max(1, min(_MOST_COPIES, room) if several else 1)
    places: dict[tuple[int, int], _Place] = {}
    for key, length in lengths.items():
        file = sizes.index(min(sizes))
        offset = -(-sizes[file] // CONSTANT_ALIGNMENT) * CONSTANT_ALIGNMENT
        places[key] = _Place(file, offset)
        sizes[file] = offset + length
    return _Plan(places, tuple(size for size in sizes if size))


def _copies(pieces: Sequence[Piece], plan: _Plan, call: str) -> list[WeightFile]:
    """Make the files of a plan in parallel: the kernel lets one thread at a time write to a file."""
    left = deque(range(len(plan.sizes)))
    fds: dict[int, int] = {}
    failures: list[Exception] = []

    def copy() -> None:
        while not failures:
            try:
                file = left.popleft()
            except IndexError:
                return
            try:
                fds[file] = _copy(pieces, plan, file, call)
            except (ZeError, OSError, MemoryError) as failure:
                failures.append(failure)

    threads = _start(copy, min(len(plan.sizes), len(os.sched_getaffinity(0))) - 1)
    try:
        copy()
        for thread in threads:
            thread.join()
        if failures:
            raise failures[0]
        return [WeightFile(fds[file], 0, size) for file, size in enumerate(plan.sizes)]
    except BaseException:
        left.clear()
        for thread in threads:
            thread.join()
        for fd in fds.values():
            os.close(fd)
        raise


def _start(work: Callable[[], None], count: int) -> list[threading.Thread]:
    """Start threads, fewer where the system runs out: the caller works as well."""
    threads = []
    for _ in range(count):
        thread = threading.Thread(target=work, name="weights")
        try:
            thread.start()
        except RuntimeError:
            break
        threads.append(thread)
    return threads


def _copy(pieces: Sequence[Piece], plan: _Plan, file: int, call: str) -> int:
    size = plan.sizes[file]
    fd = linux.memfd("weights", size)
    names = {(piece.address, piece.length): piece.name for piece in pieces}
    try:
        linux.use_huge_pages(fd, size)
        for (address, length), place in plan.places.items():
            if place.file == file:
                _write(fd, address, length, place.offset, names[address, length], call)
        linux.seal(fd, linux.SEALS_IMMUTABLE)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _write(fd: int, address: int, length: int, offset: int, name: str, call: str) -> None:
    # the kernel reads the memory: unmapped memory is an error (EFAULT), not a crash
    done = 0
    while done < length:
        count = min(length - done, _CHUNK)
        part = (ctypes.c_ubyte * count).from_address(address + done)
        try:
            done += os.pwrite(fd, part, offset + done)
        except OSError as failure:
            raise error(
                call,
                ZeResult.ERROR_OUT_OF_HOST_MEMORY,
                f"constant '{name}'",
                found=f"its {length} bytes cannot be copied: {failure.strerror}",
                expected="memory for a copy of the weights",
            ) from failure


def _covering(areas: list[Area], piece: Piece, call: str) -> list[Area]:
    """Return the mappings of a piece; reject a piece that is not readable from end to end."""
    cover: list[Area] = []
    at, end = piece.address, piece.address + piece.length
    index = bisect.bisect_right(areas, at, key=lambda area: area.start) - 1
    while at < end and 0 <= index < len(areas):
        area = areas[index]
        if not area.start <= at < area.end or not area.access.startswith("r"):
            break
        cover.append(area)
        at, index = area.end, index + 1
    if at < end:
        raise invalid_argument(
            call,
            f"constant '{piece.name}'",
            found=f"{piece.length} bytes at {piece.address:#x}, of which {at:#x} is no readable memory",
            expected="memory of this process that stays valid during the call",
        )
    return cover


def _in_file(
    piece: Piece, cover: list[Area], opened: dict[tuple[int, int, int], int], private: _Private
) -> _InFile | None:
    """Return where in a file a piece lies, if it does and can be passed as a descriptor."""
    if len(cover) != 1 or not piece.length:
        return None
    (area,) = cover
    if not area.inode or "w" in area.access or not area.path.startswith("/"):
        return None
    if area.file not in opened:
        fd = open_mapped_file(area)
        if fd is None:
            return None
        opened[area.file] = fd
    offset = area.offset + piece.address - area.start
    if offset + piece.length > os.fstat(opened[area.file]).st_size:
        return None
    # written before the mapping became read-only
    if area.access[3] == "p" and private.has(area):
        return None
    return _InFile(area.file, offset)


class _Private:
    """Private mappings with pages that differ from the file's: read once, if at all."""

    def __init__(self) -> None:
        self._starts: set[int] | None = None

    def has(self, area: Area) -> bool:
        if self._starts is None:
            self._starts = self._read()
        return area.start in self._starts

    @staticmethod
    def _read() -> set[int]:
        starts = set()
        start = 0
        with open(_SMAPS, "rb") as file:
            for line in file:
                if line.startswith(b"Anonymous:"):
                    if line.split()[1] != b"0":
                        starts.add(start)
                elif line[:1] in b"0123456789abcdef":
                    start = int(line[: line.index(b"-")], 16)
        return starts
