"""The images on the device, loaded in a thread of their own so that rings go on being served."""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable

from softnpu.emulator.common import failpoints
from softnpu.emulator.engine import self_check
from softnpu.emulator.engine.executor import LoadedImage, timed_load
from softnpu.emulator.engine.faults import EngineFaults
from softnpu.emulator.interface.result import ErrorInfo, Refused
from softnpu.emulator.links import engine as link

log = logging.getLogger(__name__)


class EngineImage:
    """An image that is loading (`loaded` is None), loaded, or failed (`fault` is set)."""

    __slots__ = ("fault", "loaded", "number")

    def __init__(self, number: int) -> None:
        self.number = number
        self.loaded: LoadedImage | None = None
        self.info: ErrorInfo | None = None


class ImageLoader:
    """Loads images in the order in which they are asked for.

    `tell(message)` is called in the loader's thread when one is ready; it must be thread-safe. With
    `self_check` an image that does not pass it is not loaded.
    """

    def __init__(
        self, tell: Callable[[link.ImageLoaded], None], faults: EngineFaults, self_check: bool
    ) -> None:
        self._tell = tell
        self._self_check = self_check
        self._faults = faults
        self._jobs: queue.SimpleQueue[tuple[EngineImage, link.ImageLoad, list[int]]] = queue.SimpleQueue()
        self._images: dict[int, EngineImage] = {}
        threading.Thread(target=self._run, name="image-loader", daemon=True).start()

    def image(self, number: int) -> EngineImage:
        """The image of this number."""
        return self._images[number]

    def load(self, order: link.ImageLoad, fds: list[int]) -> None:
        """Queues one image; takes the descriptors."""
        image = EngineImage(order.image)
        self._images[order.image] = image
        self._jobs.put((image, order, fds))

    def unload(self, number: int) -> None:
        """Forgets an image; its memory goes when the last program that uses it does."""
        self._images.pop(number, None)

    def _run(self) -> None:
        while True:
            image, order, fds = self._jobs.get()
            load_ms = 0.0
            if failpoints.active is not None:
                failpoints.hit("engine.load")
                self._faults.load()
            try:
                loaded, load_ms = timed_load(order, fds)
                if self._self_check:
                    self_check.check(loaded)
                image.loaded = loaded
                del loaded
            except Refused as error:
                image.info = error.info.shortened()
                log.warning("image %d: %s", order.image, error)
            self._tell(link.ImageLoaded(image=order.image, load_ms=load_ms, info=image.info))
            del image
