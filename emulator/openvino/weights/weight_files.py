"""Weight files that others can change while an image uses them in place.

Truncating one harms only its users: the guard (`cut_guard`) maps zero pages there and marks the range. Writes
are reported by inotify: the images affected are reloaded, and checked against their digests, before they run
again. Both cost an inference no more than reading a flag.
"""

from __future__ import annotations

import ctypes
import errno
import logging
import os
import struct
import threading
from collections.abc import Sequence

from softnpu.emulator.blob.weight_space import WeightSpace
from softnpu.emulator.common import linux, native_files
from softnpu.emulator.common.cut_guard import guard
from softnpu.emulator.interface.result import ZeResult, refuse

log = logging.getLogger(__name__)

_IN_MODIFY = 2
_EVENT = struct.Struct("=iIII")
_EVENTS_BYTES = 65536
_QUEUE_OVERFLOW = -1
_libc = ctypes.CDLL(None, use_errno=True)


class GuardedWeights:
    """The address range of weight files that others can truncate."""

    def __init__(self, space: WeightSpace, paths: str) -> None:
        self._marks = guard().marks
        self._slot = guard().add(space.address, space.layout.size)
        self._paths = paths
        self._space = space  # the slot is that of its range
        space.before_unmap(guard().remove, self._slot)

    def check(self, model: str) -> None:
        """Refuse the result if a page of them was missing."""
        if self._marks[self._slot]:
            raise refuse(
                ZeResult.ERROR_INVALID_ARGUMENT,
                f"model '{model}', weights",
                found=f"{self._paths} was cut while the device used it",
                expected="a file that nobody changes in place",
                hint="write weights to a new file and rename it; compile the model again",
            )


def guarded(space: WeightSpace, fds: Sequence[int]) -> GuardedWeights | None:
    """Guard weights whose files can be truncated; return None if none can, or without the guard library."""
    files = changeable(fds)
    if not files or not native_files.guard().exists():
        return None
    return GuardedWeights(space, ", ".join(os.readlink(f"/proc/self/fd/{fd}") for fd in files))


def changeable(fds: Sequence[int]) -> list[int]:
    """Return the files that are not sealed against every change."""
    return [fd for fd in fds if not linux.has_seals(fd, linux.SEALS_IMMUTABLE)]


class WeightChanges:
    """Reports images whose files were written to; `fd` is readable then.

    Writes through a mapping, or from another machine, go unnoticed.
    """

    def __init__(self) -> None:
        self.fd: int = _libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self.fd < 0:
            log.warning("files of weights are not watched: %s", os.strerror(ctypes.get_errno()))
            self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)  # never readable
        self._lock = threading.Lock()
        self._images: dict[int, set[int]] = {}  # by watch

    def watch(self, image: int, fds: Sequence[int]) -> None:
        """Watch the files of an image; may hang with their file system."""
        for fd in changeable(fds):
            path = f"/proc/self/fd/{fd}".encode()
            number = _libc.inotify_add_watch(self.fd, path, _IN_MODIFY)
            if number < 0:
                # not readable by name, or too many watches: its next load checks it all the same
                log.info("image %d: a file is not watched: %s", image, os.strerror(ctypes.get_errno()))
                continue
            with self._lock:
                self._images.setdefault(number, set()).add(image)

    def forget(self, image: int) -> None:
        """Stop watching the files of an image."""
        with self._lock:
            for number in [number for number, images in self._images.items() if image in images]:
                self._images[number].discard(image)
                if not self._images[number]:
                    del self._images[number]
                    _libc.inotify_rm_watch(self.fd, number)

    def read(self) -> set[int]:
        """Return the images whose files were written to since the last call."""
        try:
            data = os.read(self.fd, _EVENTS_BYTES)
        except OSError as error:
            if error.errno != errno.EAGAIN:
                raise
            return set()
        changed: set[int] = set()
        at = 0
        with self._lock:
            while at < len(data):
                number, mask, _, length = _EVENT.unpack_from(data, at)
                at += _EVENT.size + length
                if number == _QUEUE_OVERFLOW:
                    return set().union(*self._images.values())
                if mask & _IN_MODIFY:
                    changed |= self._images.get(number, set())
        return changed
