"""Loading of images in a separate thread, so that the engine keeps serving rings."""

from __future__ import annotations

import gc
import logging
import os
import threading
import time
from collections.abc import Callable
from typing import Final, NamedTuple

from softnpu.emulator.blob.container import GraphMeta
from softnpu.emulator.common import failpoints
from softnpu.emulator.common.untrusted_fds import close_untrusted
from softnpu.emulator.engine import failures, tracing, workers
from softnpu.emulator.engine.round_robin_queue import RoundRobinQueue
from softnpu.emulator.interface import trace
from softnpu.emulator.interface.result import ErrorInfo, Refused, ZeResult
from softnpu.emulator.links import engine as link
from softnpu.emulator.links.internal_errors import InternalErrors
from softnpu.emulator.openvino import memory_limit, self_check
from softnpu.emulator.openvino.cache import cpu_cache
from softnpu.emulator.openvino.cache.cpu_cache import CpuCache
from softnpu.emulator.openvino.image import LoadedImage
from softnpu.emulator.openvino.loading import timed_load
from softnpu.emulator.openvino.modelled_time import Modelled
from softnpu.emulator.openvino.runtime import core, load_device, properties_of, warm_up
from softnpu.emulator.openvino.weights.weight_files import WeightChanges

log = logging.getLogger(__name__)

_EXPECTED_S = 10.0  # from a program's first hint of a model to its load
_IDLE_S = 1.0  # the client that caused a start has priority
_MOST_IDLE: Final = 0.1  # of a core, in an engine that computes nothing


class EngineImage:
    """An image that is loading (`loaded` is None), loaded, or failed (`info` is set).

    An `evicted` one is requested with `ask`, once. `changed`: evicted since its load began. `counts`: its
    record in memory that outlives the engine.
    """

    __slots__ = ("ask", "changed", "counts", "evicted", "info", "loaded", "number")

    def __init__(self, number: int, counts: memoryview) -> None:
        self.number = number
        self.counts = counts
        self.loaded: LoadedImage | None = None
        self.info: ErrorInfo | None = None
        self.evicted = self.changed = False
        self.ask: Callable[[link.ImageNeeded], None] | None = None

    def evict(self, ask: Callable[[link.ImageNeeded], None]) -> None:
        """Evict it; `ask` is called when a command needs it again."""
        self.loaded, self.evicted, self.ask = None, True, ask

    def is_ready(self) -> bool:
        """Whether it is loaded; requests a reload if it was evicted."""
        if self.loaded is None and self.ask is not None:
            ask, self.ask = self.ask, None
            ask(link.ImageNeeded(image=self.number))
        return self.loaded is not None

    def count(self, time_ns: int) -> None:
        """Count an inference of this duration, in memory that outlives the engine."""
        counts = self.counts
        counts[0] += 1
        counts[1] += time_ns


def _destroyed() -> ErrorInfo:
    """Return what ends for which an image is not loaded again."""
    return ErrorInfo(
        result=ZeResult.ERROR_INVALID_ARGUMENT,
        object="graph",
        found="destroyed before it was loaded again",
        expected="a live graph",
    )


class _Kept(NamedTuple):
    """The cache's data on a loaded image."""

    meta: GraphMeta
    key: str
    lacking: str
    load_ms: float


_Job = tuple[EngineImage, link.ImageLoad, list[int]]


class ImageLoader:
    """Loads images one after the other; sessions take turns.

    `before_load` and `report` are called in the loader's thread, the first only while fail-points are active.
    With `self_check` images that fail it are refused. Images that `cache` lacks are reported. An exception
    fails only the load in which it occurs, and is reported to its requester.
    """

    def __init__(
        self,
        report: Callable[[link.Report], None],
        before_load: Callable[[], None],
        modelled: Modelled,
        self_check: bool,
        cache: CpuCache | None,
        errors: InternalErrors,
    ) -> None:
        self._errors = errors
        self._report = report
        self._before_load = before_load
        self._modelled = modelled
        self._self_check = self_check
        self._cache = cache
        self.changes = WeightChanges()
        self.loaded_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        """Readable when something has been loaded."""
        self._jobs: RoundRobinQueue[_Job | link.ImageExpected] = RoundRobinQueue()
        self._images: dict[int, EngineImage] = {}
        self._thread = threading.Thread(target=self._run, name="image-loader", daemon=True)
        self._thread.start()

    @property
    def thread_id(self) -> int:
        """Kernel id of its thread."""
        return self._thread.native_id or 0

    def image(self, number: int) -> EngineImage:
        """Return the image of this number."""
        return self._images[number]

    def expect(self, message: link.ImageExpected) -> None:
        """Prefetch an image that will probably be loaded, unless other loads are pending."""
        if self._cache is not None and self._jobs.empty():
            self._jobs.put(0, message)

    def load(self, message: link.ImageLoad, fds: list[int], counts: memoryview) -> None:
        """Queue the load of an image, whose inferences are counted in `counts`; take the descriptors."""
        image = self._images.setdefault(message.image, EngineImage(message.image, counts))
        image.evicted, image.ask, image.info = False, None, None
        self._jobs.put(message.session, (image, message, fds))

    def evict(self, number: int, ask: Callable[[link.ImageNeeded], None]) -> None:
        """Evict an image; `ask` is called when a command needs it again."""
        image = self._images.get(number)
        if image is None:
            return
        image.changed = True  # which a load under way sees
        if image.loaded is not None:
            image.evict(ask)

    def unload(self, number: int) -> None:
        """Drop an image; its memory is freed with the last program that uses it."""
        image = self._images.pop(number, None)
        self.changes.forget(number)
        if image is not None and image.evicted:
            image.info = _destroyed()

    def _run(self) -> None:
        try:
            self._load_each()
        except BaseException:
            # without this thread loads would hang forever; a new engine repeats them
            log.critical("loading images", exc_info=True)
            os._exit(1)

    def _load_each(self) -> None:
        load_device()
        gc.freeze()  # what is loaded later is not looked through together with all that
        first, cache = self._first_job(), self._cache
        if first is None:
            self._warm_up()
        while True:
            expecting = cache is not None and cache.is_expecting
            job = first or self._jobs.get(_EXPECTED_S if expecting else None)
            first = None
            if job is None:
                if cache is not None:
                    cache.forget_expected()
                continue
            with memory_limit.lifted(), workers.needed():
                if isinstance(job, link.ImageExpected):
                    self._expect(job)
                else:
                    self._answer(*job)
            del job

    def _first_job(self) -> _Job | link.ImageExpected | None:
        """Return the first job; None if there is none, and the engine has nothing to compute either."""
        while True:
            used = time.process_time()
            job = self._jobs.get(_IDLE_S)
            if job is not None or time.process_time() - used <= _IDLE_S * _MOST_IDLE:
                return job

    def _warm_up(self) -> None:
        try:
            with memory_limit.lifted():
                warm_up()
            cpu_cache.prepare()
        except Exception as error:  # noqa: BLE001
            self._note(error, "the model before the first one")

    def _expect(self, message: link.ImageExpected) -> None:
        try:
            self._import(message)
        except Exception as error:  # noqa: BLE001
            self._note(error, "an expected image")

    def _note(self, error: Exception, whose: str) -> ErrorInfo:
        info = self._errors.note(error, whose, "graph")
        self._report(link.InternalError(info=info))
        return info

    def _import(self, message: link.ImageExpected) -> None:
        if self._cache is None or not self._jobs.empty():
            return
        loaded = [image.loaded for image in list(self._images.values())]
        self._cache.expect(core(), message.hint, {each.key for each in loaded if each is not None})

    def _answer(self, image: EngineImage, message: link.ImageLoad, fds: list[int]) -> None:
        """Load an image and report the outcome, even after an exception.

        An exception raised here ends the engine: the next one is told of all images in demand.
        """
        started, kept, whose = time.monotonic_ns(), None, f"image {message.image}"
        try:
            kept = self._load(image, message, fds)
            if kept is None:
                image.info = _destroyed()  # for submissions that waited until it was loaded again
                os.eventfd_write(self.loaded_fd, 1)
                return
        except Refused as error:
            image.info = error.info.shortened()
            log.warning("%s: %s", whose, error)
        except MemoryError as error:
            image.info = failures.out_of_memory("graph")
            log.warning("%s: %r", whose, error)
        except Exception as error:  # noqa: BLE001
            image.info = self._note(error, whose).shortened()
        try:
            if trace.active is not None:
                name = whose if kept is None else kept.meta.name
                result = 0 if image.info is None else image.info.result
                tracing.write_load(trace.active, name, started, result)
        except Exception as error:  # noqa: BLE001
            self._note(error, f"the trace of {whose}")
        load_ms = 0.0 if kept is None else kept.load_ms
        self._report(link.ImageLoaded(image=message.image, load_ms=load_ms, info=image.info))
        os.eventfd_write(self.loaded_fd, 1)
        try:
            if self._images.get(message.image) is not image:
                self.changes.forget(message.image)
            if kept is not None and self._is_lacking(message.hint, kept):
                self._report(link.CacheLacks(image=message.image))
        except Exception as error:  # noqa: BLE001
            self._note(error, f"{whose}, after its load")

    def _load(self, image: EngineImage, message: link.ImageLoad, fds: list[int]) -> _Kept | None:
        """Load an image, and close `fds`; None if its last graph was destroyed before."""
        try:
            if self._images.get(message.image) is not image:
                return None
            self._report(link.ImageBegun(image=message.image))
            if failpoints.active is not None:
                failpoints.hit("engine.load")
                self._before_load()
            image.changed = False
            self.changes.watch(message.image, fds)  # before verification
            loaded, load_ms = timed_load(message, fds, self._modelled, self._cache)
        finally:
            close_untrusted(fds)
        if self._self_check:
            self_check.check(loaded)
        if loaded.weights is not None:
            loaded.weights.check(loaded.meta.name)
        kept = _Kept(loaded.meta, loaded.key, loaded.lacking, load_ms)
        image.loaded = loaded
        if image.changed:  # after it was verified, perhaps: the next load verifies it again
            image.evict(self._report)
        return kept

    def _is_lacking(self, hint: bytes, kept: _Kept) -> bool:
        """Whether the cache lacks the loaded image, or the note of its hint."""
        if self._cache is None or not kept.key:
            return False
        noted = not hint or self._cache.has_note(hint, kept.key, properties_of(kept.meta))
        return bool(kept.lacking) or not noted
