"""The images that an engine has to load, one after the other; requesters take turns."""

from __future__ import annotations

from softnpu.emulator.interface.result import ErrorInfo, ZeResult
from softnpu.emulator.links import engine as link
from softnpu.emulator.supervisor.engines.announcements import Announcements, Post
from softnpu.emulator.supervisor.state.images import Image, ImageState, ImageStore, LoadCallback
from softnpu.emulator.supervisor.state.objects import Context, Graph


class ImageLoads:
    """The images of one device on their way into its engine."""

    def __init__(self, images: ImageStore, announce: Announcements, post: Post) -> None:
        self._images = images
        self._announce = announce
        self._post = post
        self._under_way: set[int] = set()
        self._begun = 0

    def __bool__(self) -> bool:
        """Whether the engine has an image to load and has not answered."""
        return bool(self._under_way)

    def wait(self, image: Image, context: Context, hint: bytes, on_loaded: LoadCallback) -> None:
        """Call `on_loaded(error, ms)` once the image is on the device; start the load if needed."""
        if image.state in (ImageState.COMPILED, ImageState.EVICTED):
            image.hint, image.session = hint, context.session
            self.begin(image)
            image.state, image.loader = ImageState.LOADING, context.ban_key
        image.waiting.append(on_loaded)

    def begin(self, image: Image) -> None:
        """Queue the image for loading in the engine."""
        self._announce.image(image)
        image.loads += 1
        self._under_way.add(image.number)

    def evict(self, image: Image) -> None:
        """Evict the image from the device; a no-op if it is not there."""
        if image.state is ImageState.LOADED:
            self._post(link.ImageEvict(image=image.number), [])
            image.state = ImageState.EVICTED

    def restore(self, number: int) -> None:
        """Load an image again that was evicted; nothing if that is under way.

        An engine evicts by itself what was loaded if its weights were written to.
        """
        image = self._images.find(number)
        if image is not None and image.state in (ImageState.EVICTED, ImageState.LOADED):
            self.begin(image)
            image.state = ImageState.LOADING

    def begun(self, number: int) -> None:
        """Note which image the engine loads now."""
        self._begun = number

    def finish(self, report: link.ImageLoaded) -> None:
        """Report the outcome of a load to its waiters."""
        self._under_way.discard(report.image)
        self._begun = 0
        image = self._images.find(report.image)
        if image is not None:
            image.attempts = 0
            image.finish_loading(report.info, report.load_ms)

    def interrupt(self) -> Image | None:
        """Forget all, because the engine has ended; return the image that it was loading."""
        loading, self._begun = self._images.find(self._begun), 0
        self._under_way.clear()
        return loading

    def release(self, graph: Graph) -> None:
        """Count a graph no more among the users of its image, and unload that after the last one."""
        if not graph.counts:
            return
        graph.counts = False
        image = graph.image
        posted = image.state is not ImageState.COMPILED or bool(image.loader)
        if not self._images.release(image):
            return
        if posted:
            self._under_way.discard(image.number)
            self._post(link.ImageUnload(image=image.number), [])
        if image.waiting:
            info = ErrorInfo(
                result=ZeResult.ERROR_INVALID_ARGUMENT,
                object="graph",
                found="destroyed while it was being loaded",
                expected="a live graph",
            )
            image.finish_loading(info, 0.0)
