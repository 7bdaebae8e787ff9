"""Load images in a thread of its own, so that the engine keeps serving rings."""

from __future__ import annotations

import logging
import os
import queue
import threading
import time
from collections.abc import Callable

from softnpu.emulator.common import failpoints
from softnpu.emulator.engine import self_check, tracing
from softnpu.emulator.engine.cpu_cache import CpuCache
from softnpu.emulator.engine.cpu_cache_writer import CpuCacheWriter
from softnpu.emulator.engine.device_clock import Modelled
from softnpu.emulator.engine.executor import LoadedImage, core, load_device, properties_of, timed_load
from softnpu.emulator.interface import trace
from softnpu.emulator.interface.result import ErrorInfo, Refused, ZeResult
from softnpu.emulator.links import engine as link

log = logging.getLogger(__name__)

_EXPECTED_S = 10.0  # from a program's first look at a model until it asks for it


class EngineImage:
    """An image that is loading (`loaded` is None), loaded, or failed (`info` is set).

    One that is `evicted` is asked for with `ask`, once.
    """

    __slots__ = ("_counts", "ask", "evicted", "info", "loaded", "number")

    def __init__(self, number: int, counts: memoryview) -> None:
        self.number = number
        self._counts = counts
        self.loaded: LoadedImage | None = None
        self.info: ErrorInfo | None = None
        self.evicted = False
        self.ask: Callable[[link.ImageNeeded], None] | None = None

    def is_ready(self) -> bool:
        """Whether it is loaded; has it loaded again if it was evicted."""
        if self.loaded is None and self.ask is not None:
            ask, self.ask = self.ask, None
            ask(link.ImageNeeded(image=self.number))
        return self.loaded is not None

    @property
    def counts(self) -> memoryview:
        """Its record in memory that outlives the engine."""
        return self._counts

    def count(self, time_ns: int) -> None:
        """Count an inference that took so long, in memory that outlives the engine."""
        counts = self._counts
        counts[0] += 1
        counts[1] += time_ns


_Job = tuple[EngineImage, link.ImageLoad, list[int]]


class ImageLoader:
    """Load images in the order of their messages.

    `before_load` and `report` are called in the loader's thread, the first only while fail-points are active.
    With `self_check` an image that does not pass it is refused. What `cache` lacks is stored later.
    """

    def __init__(
        self,
        report: Callable[[link.ImageLoaded], None],
        before_load: Callable[[], None],
        modelled: Modelled,
        self_check: bool,
        cache: CpuCache | None,
    ) -> None:
        self._report = report
        self._before_load = before_load
        self._modelled = modelled
        self._self_check = self_check
        self._cache = cache
        self._cache_writer = CpuCacheWriter()
        self._jobs: queue.SimpleQueue[_Job | link.ImageExpected] = queue.SimpleQueue()
        self._images: dict[int, EngineImage] = {}
        threading.Thread(target=self._run, name="image-loader", daemon=True).start()

    def image(self, number: int) -> EngineImage:
        """Return the image of this number."""
        return self._images[number]

    def expect(self, message: link.ImageExpected) -> None:
        """Import an image that will probably be asked for, unless there is something else to load."""
        if self._cache is not None and self._jobs.empty():
            self._jobs.put(message)

    def load(self, message: link.ImageLoad, fds: list[int], counts: memoryview) -> None:
        """Queue an image, whose inferences are counted in `counts`; take the descriptors."""
        image = self._images.setdefault(message.image, EngineImage(message.image, counts))
        image.evicted, image.ask, image.info = False, None, None
        self._jobs.put((image, message, fds))

    def evict(self, number: int, ask: Callable[[link.ImageNeeded], None]) -> None:
        """Drop what was loaded of an image; `ask` is called when a command needs it again."""
        image = self._images.get(number)
        if image is not None and image.loaded is not None:
            image.loaded, image.evicted, image.ask = None, True, ask

    def unload(self, number: int) -> None:
        """Drop an image; its memory is freed with the last program that uses it."""
        image = self._images.pop(number, None)
        if image is not None and image.evicted:
            image.info = ErrorInfo(
                result=ZeResult.ERROR_INVALID_ARGUMENT,
                object="graph",
                found="destroyed before it was loaded again",
                expected="a live graph",
            )

    def _run(self) -> None:
        try:
            self._load_each()
        except BaseException:
            # a defect: without this thread whoever asked for an image waits forever; a new engine loads it
            log.critical("loading images", exc_info=True)
            os._exit(1)

    def _load_each(self) -> None:
        load_device()
        cache = self._cache
        while True:
            try:
                expecting = cache is not None and cache.is_expecting
                job = self._jobs.get(timeout=_EXPECTED_S if expecting else None)
            except queue.Empty:
                if cache is not None:
                    cache.forget_expected()
                continue
            if not isinstance(job, link.ImageExpected):
                self._load(*job)
                del job
            elif cache is not None and self._jobs.empty():
                loaded = [image.loaded for image in list(self._images.values())]
                cache.expect(core(), job.hint, {each.key for each in loaded if each is not None})
                del loaded

    def _load(self, image: EngineImage, message: link.ImageLoad, fds: list[int]) -> None:
        cache = self._cache
        load_ms = 0.0
        started = time.monotonic_ns()
        if failpoints.active is not None:
            failpoints.hit("engine.load")
            self._before_load()
        kept_fds = [] if cache is None else [os.dup(fd) for fd in fds]
        key = lacking = ""
        try:
            loaded, load_ms = timed_load(message, fds, self._modelled, cache)
            if self._self_check:
                self_check.check(loaded)
            image.loaded, meta, key, lacking = loaded, loaded.meta, loaded.key, loaded.lacking
            del loaded
        except Refused as error:
            image.info = error.info.shortened()
            log.warning("image %d: %s", message.image, error)
        if trace.active is not None:
            name = f"image {message.image}" if image.loaded is None else image.loaded.meta.name
            tracing.write_load(trace.active, name, started, 0 if image.info is None else image.info.result)
        self._report(link.ImageLoaded(image=message.image, load_ms=load_ms, info=image.info))
        if cache is not None and key and message.hint:
            cache.note(message.hint, key, properties_of(meta))
        if lacking:
            self._cache_writer.add(message, kept_fds, lacking)
        else:
            for fd in kept_fds:
                os.close(fd)
