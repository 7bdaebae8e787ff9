"""Compiled models, stored once per content however many graphs use them.

The identity of an image is the digest of its blob, which has a digest of every constant. Weights that can
still change (a file on disk) are shared only with users of the very same file and ranges of it: otherwise
a session that edits its file would change the results of another. Sealed memory cannot change, so the
digests in the blob are identity enough, wherever in it the constants lie. That holds for weights that were
compared with them: memory whose check is deferred is identified by itself, as a file is.
"""

from __future__ import annotations

import enum
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from softnpu.emulator.common import linux
from softnpu.emulator.interface.messages import WeightSource
from softnpu.emulator.interface.result import ErrorInfo
from softnpu.emulator.links.compiler import Compiled

LoadCallback = Callable[[ErrorInfo | None, float], None]


class ImageState(enum.Enum):
    """Where an image is. One that is `EVICTED` was on the device, and comes back when it is needed."""

    COMPILED = "compiled"
    LOADING = "loading"
    LOADED = "loaded"
    EVICTED = "evicted"


@dataclass
class Image:
    """One blob, its placement (encoded, if any) and the sources of its weights. Owns the descriptors.

    `deferred`: its weights are compared with the digests in the blob whenever an engine loads it. `compared`:
    the files of its weights as they were before the compiler compared them.
    `loader`: the process that asked for it to be loaded, as its `ban_key`, with `hint`. `record`: where the
    engine counts its inferences. `made`: when, by `time.monotonic`.
    """

    number: int
    key: tuple[bytes, ...]
    answer: Compiled
    weights: tuple[WeightSource, ...]
    fds: list[int]
    deferred: bool = False
    compared: tuple[bytes, ...] = ()
    loads: int = 0
    load_ms: float = 0.0
    users: int = 0
    state: ImageState = ImageState.COMPILED
    attempts: int = 0
    loader: str = ""
    hint: bytes = b""
    waiting: list[LoadCallback] = field(default_factory=list)
    record: int = 0
    made: float = field(default_factory=time.monotonic)

    @property
    def size(self) -> int:
        """Bytes of the blob and of the sources of its weights."""
        return self.answer.blob_length + sum(source.length for source in self.weights)

    @property
    def blob_fds(self) -> list[int]:
        """The blob, and its placement if it has one."""
        return self.fds[: 1 + (self.answer.placement_length > 0)]

    @property
    def must_be_compared(self) -> bool:
        """Whether its weights may be others than those that the compiler compared with their digests.

        The times of a file say so before the first load. Later nothing is enough but the content: what is
        written through a mapping changes a file without its times.
        """
        files = file_identities(self.fds[len(self.fds) - len(self.weights) :])
        return self.deferred or (any(files) and (self.loads > 0 or files != self.compared))

    def close(self) -> None:
        for fd in self.fds:
            os.close(fd)

    def finish_loading(self, info: ErrorInfo | None, load_ms: float) -> None:
        """Call everyone who waits for this image."""
        self.state = ImageState.COMPILED if info else ImageState.LOADED
        self.load_ms = load_ms
        waiting, self.waiting = self.waiting, []
        for on_loaded in waiting:
            on_loaded(info, load_ms)


class ImageRecords(Protocol):
    """Where an engine counts the inferences of images."""

    def take_image(self) -> int: ...
    def free_image(self, state: int) -> None: ...


class ImageStore:
    """The images of one device. `numbers`: those of images, which no other device uses."""

    def __init__(self, records: ImageRecords, numbers: Iterator[int]) -> None:
        self._images: dict[tuple[bytes, ...], Image] = {}
        self._records = records
        self._numbers = numbers

    def __len__(self) -> int:
        return len(self._images)

    def all(self) -> list[Image]:
        return list(self._images.values())

    def find(self, number: int) -> Image | None:
        return next((image for image in self._images.values() if image.number == number), None)

    def acquire(
        self,
        answer: Compiled,
        weights: tuple[WeightSource, ...],
        fds: list[int],
        compared: tuple[bytes, ...],
        deferred: bool = False,
    ) -> Image:
        """The image of this content; takes the descriptors (closes them if it has the content already).

        `fds`: those of `answer`, then the sources of `weights`, which were not checked if `deferred`; else
        they were the files `compared` before that.
        """
        key = _identity(answer, weights, fds[len(fds) - len(weights) :], deferred)
        image = self._images.get(key)
        if image is None:
            image = Image(next(self._numbers), key, answer, weights, fds, deferred, compared)
            image.record = self._records.take_image()
            self._images[key] = image
        else:
            for fd in fds:
                os.close(fd)
        image.users += 1
        return image

    def release(self, image: Image) -> bool:
        """One user less; True when the image ended with it."""
        image.users -= 1
        if image.users:
            return False
        del self._images[image.key]
        self._records.free_image(image.record)
        image.close()
        return True

    def close(self) -> None:
        for image in self._images.values():
            image.close()
        self._images.clear()


def file_identities(fds: Sequence[int]) -> tuple[bytes, ...]:
    """The very files behind descriptors, and their last change; empty for content that cannot change."""
    return tuple(_file_identity(fd, sealed_is_enough=True) for fd in fds)


def _identity(
    answer: Compiled, weights: tuple[WeightSource, ...], fds: list[int], deferred: bool
) -> tuple[bytes, ...]:
    files = [_file_identity(fd, sealed_is_enough=not deferred) for fd in fds]
    if not any(files):
        return (answer.blob_digest,)
    ranges = [f"{source.offset}:{source.length}".encode() for source in weights]
    return (answer.blob_digest, answer.placement_digest, *files, *ranges)


def _file_identity(fd: int, sealed_is_enough: bool) -> bytes:
    """Empty for content that cannot change; otherwise names the very file and its last change."""
    if sealed_is_enough and linux.has_seals(fd, linux.SEALS_IMMUTABLE):
        return b""
    info = os.fstat(fd)
    return f"{info.st_dev}:{info.st_ino}:{info.st_size}:{info.st_mtime_ns}:{info.st_ctime_ns}".encode()
