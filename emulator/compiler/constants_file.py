"""The memory file of a blob that has its constants, and their digest, before all else of it is known.

That takes as long as OpenVINO takes to write the XML, and both can go on at once.
"""

from __future__ import annotations

import mmap
import os
import weakref
from collections.abc import Sequence

from softnpu.emulator.blob import container
from softnpu.emulator.common import linux

_AT_ONCE = 1000
"""Pieces in one system call; Linux takes 1024."""


class ConstantsFile:
    """A memory file with constants at `offset`; closed with this object unless `sealed` has given it away."""

    def __init__(self, offset: int, chunks: Sequence[bytes | memoryview]) -> None:
        """Write them; raises `OSError`."""
        fd = linux.memfd("blob")
        self._close = weakref.finalize(self, os.close, fd)
        self._fd = fd
        self._offset = offset
        end = _write(fd, offset, chunks)
        # private, since none that is shared may exist when the file is sealed
        protection, lead = mmap.PROT_READ, offset % mmap.ALLOCATIONGRANULARITY
        mapping = mmap.mmap(fd, end - offset + lead, mmap.MAP_PRIVATE, protection, offset=offset - lead)
        self.view = memoryview(mapping)[lead:]
        """All of them."""
        self.digest = container.digest_of_chunks([self.view])

    def sealed(self, parts: Sequence[bytes | memoryview]) -> int:
        """Write all parts of the blob but `view`, which is one of them; return the immutable file."""
        at = 0
        for part in parts:
            if part is self.view:
                if at != self._offset:
                    raise ValueError(f"the constants of a blob are at {self._offset}, not at {at}")
                at += len(part)
            else:
                at = _write(self._fd, at, [part])
        linux.seal(self._fd, linux.SEALS_IMMUTABLE)
        self._close.detach()
        return self._fd


def _write(fd: int, at: int, chunks: Sequence[bytes | memoryview]) -> int:
    """Write them one after the other; return where they end."""
    left = [memoryview(chunk) for chunk in chunks if len(chunk)]
    while left:
        done = os.pwritev(fd, left[:_AT_ONCE], at)
        at += done
        written = 0
        while written < len(left) and done >= len(left[written]):
            done -= len(left[written])
            written += 1
        left = left[written:]
        if done:
            left[0] = left[0][done:]
    return at
