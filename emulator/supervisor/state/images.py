"""Compiled models, stored once per content however many graphs use them.

The identity of an image is the digest of its blob, which has a digest of every constant. Weights that can
still change (a file on disk) are shared only with users of the very same file and ranges of it: otherwise
a session that edits its file would change the results of another. Sealed memory cannot change, so the
digests in the blob are identity enough, wherever in it the constants lie. That holds for weights that were
compared with them: memory whose check is deferred is identified by itself, as a file is.
"""

from __future__ import annotations

import enum
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Protocol

import msgspec

from softnpu.emulator.common.untrusted_fds import close_untrusted
from softnpu.emulator.interface.messages import WeightSource
from softnpu.emulator.interface.result import ErrorInfo
from softnpu.emulator.links.compiler import Compiled
from softnpu.emulator.supervisor.limits import Account, Quota
from softnpu.emulator.supervisor.undoing import move

LoadCallback = Callable[[ErrorInfo | None, float], None]


class ImageState(enum.Enum):
    """The state of an image. An `EVICTED` one was on the device, and is reloaded when needed."""

    COMPILED = "compiled"
    LOADING = "loading"
    LOADED = "loaded"
    EVICTED = "evicted"


class Image(msgspec.Struct):
    """One blob, its placement (encoded, if any) and the sources of its weights, whose files are parked.

    Owns the descriptors.

    `owner`: the user whose descriptors they are. `deferred`: its weights are compared with the digests in the
    blob whenever an engine loads it. `files`: where its descriptors count.
    `loader`: the process that asked for it to be loaded, as its `ban_key`, with `hint` and for `session`.
    `record`: where the engine counts its inferences. `made`: when, by `time.monotonic`.
    """

    number: int
    key: tuple[bytes, ...]
    answer: Compiled
    weights: tuple[WeightSource, ...]
    fds: list[int]
    owner: int
    deferred: bool = False
    files: Account = msgspec.field(default_factory=Account)
    loads: int = 0
    load_ms: float = 0.0
    users: int = 0
    state: ImageState = ImageState.COMPILED
    attempts: int = 0
    loader: str = ""
    hint: bytes = b""
    session: int = 0
    waiting: list[LoadCallback] = msgspec.field(default_factory=list)
    record: int = 0
    made: float = msgspec.field(default_factory=time.monotonic)

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
        """Whether its weights are compared with their digests, whatever the times of their files say.

        Before the first load the engine looks at the times. Later nothing is enough but the content: what is
        written through a mapping changes a file without its times.
        """
        return self.deferred or (any(self.answer.files) and self.loads > 0)

    def close(self) -> None:
        """Close its descriptors; harmless when repeated."""
        fds, self.fds = self.fds, []
        close_untrusted(fds, self.owner)
        self.files.close()

    def finish_loading(self, info: ErrorInfo | None, load_ms: float) -> None:
        """Call back all waiters for this image, whatever one of them raises."""
        self.state = ImageState.COMPILED if info else ImageState.LOADED
        self.load_ms = load_ms
        with ExitStack() as steps:
            for _ in range(len(self.waiting)):  # requests made meanwhile wait for the next load
                steps.callback(self._call_back, info, load_ms)

    def _call_back(self, info: ErrorInfo | None, load_ms: float) -> None:
        waiter = self.waiting.pop(0)
        try:
            waiter(info, load_ms)
        except BaseException:
            self.waiting.append(waiter)  # it was not called: what it raises itself ends its client
            raise


class ImageRecords(Protocol):
    """The records in which an engine counts the inferences of images."""

    def take_image(self) -> int: ...
    def free_image(self, state: int) -> None: ...


class ImageStore:
    """The images of one device. `numbers`: those of images, which no other device uses."""

    def __init__(self, records: ImageRecords, numbers: Iterator[int]) -> None:
        self._images: dict[tuple[bytes, ...], Image] = {}
        self._by_number: dict[int, Image] = {}
        self._records = records
        self._numbers = numbers

    def __len__(self) -> int:
        return len(self._images)

    def all(self) -> list[Image]:
        return list(self._images.values())

    def find(self, number: int) -> Image | None:
        return self._by_number.get(number)

    def acquire(
        self,
        answer: Compiled,
        weights: tuple[WeightSource, ...],
        fds: list[int],
        owner: int,
        deferred: bool = False,
        quota: Quota | None = None,
    ) -> Image:
        """Return the image of this content; a new one takes the descriptors out of the list.

        `users` does not count the caller yet: until then `drop_unused` ends it.
        `fds`: those of `answer`, then the sources of `weights`, which were not checked if `deferred`.
        `owner`: the user who sent them. `quota`: of their descriptors, which may refuse a new image.
        """
        key = _identity(answer, weights)
        image = self._images.get(key)
        if image is None:
            files = Account()
            if quota is not None:
                quota.check(len(fds), "graph")
                files = Account(quota)
            image = Image(next(self._numbers), key, answer, weights, [], owner, deferred, files)
            image.record = self._records.take_image()
            self._images[key] = self._by_number[image.number] = image
            move(fds, image.fds)
            files.set(len(image.fds))
        return image

    def drop_unused(self) -> None:
        """Drop unused images, left by an error."""
        for unused in [image for image in self._images.values() if not image.users]:
            self._end(unused)

    def release(self, image: Image) -> bool:
        """Remove a user; return True if the image ended with it."""
        image.users -= 1
        if image.users:
            return False
        self._end(image)
        return True

    def _end(self, image: Image) -> None:
        del self._images[image.key], self._by_number[image.number]
        self._records.free_image(image.record)
        image.close()

    def close(self) -> None:
        for image in self._images.values():
            image.close()
        self._images.clear()
        self._by_number.clear()


def _identity(answer: Compiled, weights: tuple[WeightSource, ...]) -> tuple[bytes, ...]:
    assert answer.blob_digest
    if not any(answer.files):
        return (answer.blob_digest,)
    ranges = [f"{source.offset}:{source.length}".encode() for source in weights]
    return (answer.blob_digest, answer.placement_digest, *answer.files, *ranges)
