"""Twins: images compiled again, for several inferences at once.

An image compiled for latency runs one inference at a time on all threads, which wait for each other in each
layer. Where several are ready, all end sooner side by side. A twin has the properties of its image, and as
many threads, so it computes the same bits; the kernel chooses the cores of its threads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from softnpu.emulator.common.arrays import Bytes
from softnpu.emulator.openvino.binding import Bindable, Binding


class Twins:
    """The twins of one image, each of which runs one inference at a time."""

    def __init__(self, images: Sequence[Bindable]) -> None:
        self.images = images
        self._running = [0] * len(images)

    def enter(self) -> int:
        """Return the place of the twin with the fewest inferences, which has one more now."""
        place = min(range(len(self._running)), key=self._running.__getitem__)
        self._running[place] += 1
        return place

    def leave(self, place: int) -> None:
        """Note the end of an inference."""
        self._running[place] -= 1


class TwinBinding:
    """An inference bound to each twin of its image; it runs on one of them, as on a `Binding`."""

    __slots__ = ("_bindings", "_place", "_twins")

    def __init__(self, twins: Twins, views: Sequence[Bytes], count_copied: Callable[[int], None]) -> None:
        self._twins = twins
        self._bindings = [Binding(image, views, count_copied) for image in twins.images]
        self._place: int | None = None  # where it runs

    @property
    def is_short(self) -> bool:
        """Whether an inference is too short to be worth another thread."""
        return any(binding.is_short for binding in self._bindings)

    def poll_often(self, often: bool) -> None:
        """Make `run` poll often, so that other inferences can start concurrently."""
        for binding in self._bindings:
            binding.poll_often(often)

    def start_early(self) -> None:
        """Start the inference that the next `run` waits for."""
        self._place = place = self._twins.enter()
        try:
            self._bindings[place].start_early()
        except (RuntimeError, MemoryError):
            self._leave(place)
            raise

    def cancel_early(self) -> None:
        """Cancel the inference begun by `start_early`; its outputs are void."""
        if self._place is not None:
            self._bindings[self._place].cancel_early()
            self._leave(self._place)

    def run(self, is_cancelled: Callable[[], bool]) -> bool:
        """Compute the outputs from the inputs, as `Binding.run`."""
        self._place = place = self._twins.enter() if self._place is None else self._place
        try:
            return self._bindings[place].run(is_cancelled)
        finally:
            self._leave(place)

    def _leave(self, place: int) -> None:
        self._place = None
        self._twins.leave(place)
