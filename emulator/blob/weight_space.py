"""The weights space of a model's sources, mapped into this process: see `weights`."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Sequence

from softnpu.emulator.blob.weights import SpaceLayout, check_sources, page_up
from softnpu.emulator.common import linux
from softnpu.emulator.common.address_range import AddressRange
from softnpu.emulator.interface.messages import WeightSource
from softnpu.emulator.interface.records import PAGE
from softnpu.emulator.interface.result import ZeResult, refuse

_KINDS = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFDIR: "a directory",
    stat.S_IFCHR: "a character device",
    stat.S_IFBLK: "a block device",
}


class WeightSpace:
    """Weights as one buffer: the sources, followed by the constants inside a blob.

    `view` ends with the last of them and is never empty; `layout` is that of the sources, `embedded` the
    bytes after it, `in_memory` whether the sources are memory files. The memory is unmapped when nothing
    refers to `view` any more. Refuses anything but a regular file (`ERROR_INVALID_ARGUMENT`) and ranges
    outside of it (`ERROR_INVALID_SIZE`); raises `OSError` when the kernel does not map it.
    """

    def __init__(
        self,
        sources: Sequence[WeightSource],
        fds: Sequence[int],
        subject: str,
        section: tuple[int, int, int] | None = None,
    ) -> None:
        check_sources(sources, subject)
        self.layout = SpaceLayout(sources)
        self.embedded = section[2] if section is not None else 0
        self.in_memory = all(map(linux.is_memory_file, fds))
        size = self.layout.size + page_up(self.embedded)
        memory = AddressRange(max(PAGE, size))
        for number, (source, fd) in enumerate(zip(sources, fds, strict=True)):
            name = f"{subject}, weights" + (f" {number}" if len(sources) > 1 else "")
            check_range(fd, source.offset, source.length, name)
            lead = source.offset % PAGE
            memory.map(self.layout.starts[number] - lead, fd, source.offset - lead, source.length + lead)
        if section is not None and self.embedded:
            fd, offset, length = section
            memory.map(self.layout.size, fd, offset, length)
        if not size:
            # OpenVINO reads a byte of an empty constant when it converts it
            fd = linux.sealed_copy("no weights", bytes(PAGE))
            memory.map(0, fd, 0, PAGE)
            os.close(fd)
        self.address = memory.address
        self._memory = memory
        end = self.layout.size + self.embedded if self.embedded else self.layout.end
        self.view = memory.view()[: max(1, end)]

    def before_unmap(self, call: Callable[[int], None], argument: int) -> None:
        """Call this before the memory is unmapped."""
        self._memory.before_unmap(call, argument)

    def release_pages(self, begin: int = 0, end: int | None = None) -> None:
        """Release pages of the sources; a touched page is read from its file again."""
        end = self.layout.size if end is None else end
        if begin < end:
            self._memory.release_pages(begin, end - begin)

    def offset_of(self, address: int, length: int) -> int | None:
        """Return the offset in the space of `length` bytes at an address; None outside of sources."""
        offset = address - self.address
        return offset if self.layout.holds(offset, length) else None

    def covers(self, address: int) -> bool:
        """Return whether an address of this process belongs to the space: a source, or a gap between two."""
        return 0 <= address - self.address < self.layout.size


def check_range(fd: int, offset: int, length: int, subject: str) -> None:
    """Refuse bytes `offset` to `offset + length` of `fd` unless they lie inside a regular file.

    `ERROR_INVALID_ARGUMENT` unless it is a regular (or memory) file, `ERROR_INVALID_SIZE` for the range.
    """
    info = os.fstat(fd)
    if not stat.S_ISREG(info.st_mode):
        kind = _KINDS.get(stat.S_IFMT(info.st_mode), "a descriptor without content")
        raise refuse(
            ZeResult.ERROR_INVALID_ARGUMENT, subject, found=kind, expected="a regular file or a memory file"
        )
    size = info.st_size
    if offset < 0 or length <= 0 or offset > size or length > size - offset:
        raise refuse(
            ZeResult.ERROR_INVALID_SIZE,
            subject,
            found=f"{length} bytes at offset {offset} of a file of {size} bytes",
            expected="a range of at least one byte that lies inside the file",
        )
