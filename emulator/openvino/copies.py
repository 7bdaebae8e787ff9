"""Copies of images, made in a thread of their own, used once they have computed the bits of the image."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Final

import numpy as np

from softnpu.emulator.common.arrays import Bytes, aligned
from softnpu.emulator.openvino import memory_limit
from softnpu.emulator.openvino.binding import Bindable, Binding
from softnpu.emulator.openvino.cache import cpu_cache
from softnpu.emulator.openvino.image import LoadedImage

log = logging.getLogger(__name__)

_RANDOM: Final = frozenset(("Multinomial", "RandomUniform"))


class CopyMaker:
    """Makes copies one after the other, in a thread that ends when idle.

    It computes while it has entered `computing()`.
    """

    def __init__(self, computing: Callable[[], AbstractContextManager[None]] = nullcontext) -> None:
        self._computing = computing
        self._jobs: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._running = False

    def ask(self, make: Callable[[list[bytes]], None], image: LoadedImage, views: Sequence[Bytes]) -> None:
        """Have `make` called with the values of the inputs among `views`, the memory of an inference.

        Raises `MemoryError`, and `RuntimeError` without a thread.
        """
        self._put(partial(make, [view.tobytes() for view in views[: len(image.meta.inputs)]]))

    def _put(self, job: Callable[[], None]) -> None:
        with self._lock:
            if not self._running:
                thread = threading.Thread(target=self._run, name="copies", daemon=True)
                thread.start()  # may fail; it waits for the lock
                self._running = True
            self._jobs.put(job)

    def _run(self) -> None:
        while True:
            with self._lock:
                if self._jobs.empty():
                    self._running = False
                    return
                job = self._jobs.get()
            try:
                with memory_limit.lifted(), self._computing():
                    job()
            except Exception:
                log.warning("making a copy", exc_info=True)
            del job  # it would keep the image


def can_be_copied(image: LoadedImage) -> bool:
    """Whether an image is one compiled model of one stream, all tensors of which are known and can be set."""
    return (
        not image.has_kernels
        and not image.meta.dynamic_states
        and image.streams == 1
        and not image.has_layers
        and not image.computes_sizes
        and not image.unbound
        and not image.separated
        and not any(argument.is_dynamic or argument.shape_of >= 0 for argument in image.meta.arguments)
        and all(argument.byte_size for argument in image.meta.arguments)
        and cpu_cache.fits(image.compiled, image.meta)
    )


def is_repeatable(image: LoadedImage) -> bool:
    """Whether an inference leaves others as they are: random numbers come from a sequence."""
    return not _RANDOM & image.operations()


def memory_of(image: Bindable, inputs: Sequence[bytes]) -> list[Bytes]:
    """Return memory for one inference, one view per argument, with these values of the inputs."""
    views = [aligned(argument.byte_size) for argument in image.meta.arguments]
    for view, data in zip(views, inputs, strict=False):
        view[:] = np.frombuffer(data, np.uint8)
    return views


def outputs_in(image: Bindable, views: Sequence[Bytes]) -> list[bytes]:
    """Return the values of the outputs among `views`."""
    return [view.tobytes() for view in views[len(image.meta.inputs) :]]


def expected_of(image: Bindable, inputs: Sequence[bytes]) -> list[bytes]:
    """Return what the image itself computes from these inputs. Raises `RuntimeError`."""
    views = memory_of(image, inputs)
    Binding(image, views, lambda _: None).run(lambda: False)
    return outputs_in(image, views)
