"""The images that an engine has to load: one after the other, in the order in which it was asked."""

from __future__ import annotations

from softnpu.emulator.interface.result import ErrorInfo, ZeResult
from softnpu.emulator.links import engine as link
from softnpu.emulator.supervisor.announcements import Announcements, Post
from softnpu.emulator.supervisor.images import Image, ImageState, ImageStore, LoadCallback


class ImageLoads:
    """The images of one device on their way into its engine."""

    def __init__(self, images: ImageStore, announce: Announcements, post: Post) -> None:
        self._images = images
        self._announce = announce
        self._post = post
        self._under_way: dict[int, None] = {}

    def __bool__(self) -> bool:
        """Whether the engine has an image to load and has not answered."""
        return bool(self._under_way)

    def wait(self, image: Image, loader: str, hint: bytes, on_loaded: LoadCallback) -> None:
        """Call `on_loaded(error, ms)` once the image is on the device; load it if nobody has asked yet."""
        image.waiting.append(on_loaded)
        if image.state in (ImageState.COMPILED, ImageState.EVICTED):
            image.state, image.loader, image.hint = ImageState.LOADING, loader, hint
            self.begin(image)

    def begin(self, image: Image) -> None:
        """Have the engine load the image, after those that it has to load already."""
        self._announce.image(image)
        image.loads += 1
        self._under_way[image.number] = None

    def evict(self, image: Image) -> None:
        """Take the image off the device; nothing if it is not on it."""
        if image.state is ImageState.LOADED:
            image.state = ImageState.EVICTED
            self._post(link.ImageEvict(image=image.number), [])

    def restore(self, number: int) -> None:
        """Load an image again that was evicted; nothing if that is under way."""
        image = self._images.find(number)
        if image is not None and image.state is ImageState.EVICTED:
            image.state = ImageState.LOADING
            self.begin(image)

    def finish(self, report: link.ImageLoaded) -> None:
        """Tell those who wait how a load has ended."""
        self._under_way.pop(report.image, None)
        image = self._images.find(report.image)
        if image is not None:
            image.attempts = 0
            image.finish_loading(report.info, report.load_ms)

    def interrupt(self) -> Image | None:
        """Forget all, because the engine has ended; return the image that it was loading."""
        loading = self._images.find(next(iter(self._under_way), 0))
        self._under_way.clear()
        return loading

    def release(self, image: Image) -> None:
        """Count one user less of the image, and unload it after the last one."""
        posted = image.state is not ImageState.COMPILED or bool(image.loader)
        if not self._images.release(image):
            return
        if posted:
            self._under_way.pop(image.number, None)
            self._post(link.ImageUnload(image=image.number), [])
        if image.waiting:
            info = ErrorInfo(
                result=ZeResult.ERROR_INVALID_ARGUMENT,
                object="graph",
                found="destroyed while it was being loaded",
                expected="a live graph",
            )
            image.finish_loading(info, 0.0)
