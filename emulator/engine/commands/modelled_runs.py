"""Runs on the modelled clock: copies and inferences are counted, and paced on a paced device."""

from __future__ import annotations

import time

from softnpu.emulator.engine.commands.steps import PACED, Parts, StepQueue
from softnpu.emulator.engine.counters import Counters
from softnpu.emulator.engine.device_clock import DeviceClock
from softnpu.emulator.openvino.modelled_time import ModelledTime


class ModelledRuns:
    """Counts copies and inferences on the modelled clock."""

    def __init__(self, clock: DeviceClock, counters: Counters) -> None:
        self._clock = clock
        self._counters = counters
        self.paced = clock.paced

    def end_copy(self, queue: StepQueue, size: int) -> None:
        """Count a copy of `size` bytes."""
        queue.device_ns = self._clock.copy(size, queue.device_ns)
        self._counters.set_device_clock(self._clock.now_ns)

    def end_inference(self, queue: StepQueue, modelled: ModelledTime | None, started_ns: int) -> Parts | None:
        """Count an inference that began at `started_ns` on the host's clock; if paced, return its wait."""
        clock, counters = self._clock, self._counters
        if modelled is None:
            counters.count_unmodelled()
            if clock.paced:
                counters.busy_ns += time.monotonic_ns() - started_ns
            return None
        queue.device_ns = clock.run(modelled, queue.device_ns)
        counters.set_device_clock(clock.now_ns)
        if not clock.paced:
            return None
        behind, end_ns = queue.paced_end
        if (queue.completed + 1, queue.step) in behind:
            started_ns = end_ns
        until_ns = clock.pace(modelled, started_ns)
        counters.busy_ns += clock.busy_ns(modelled, until_ns)
        counters.count_tiles(modelled.ns * modelled.tiles)
        if time.monotonic_ns() >= until_ns:
            counters.count_late()
            return None
        return _wait_until(queue, until_ns)


def _wait_until(queue: StepQueue, until_ns: int) -> Parts:
    """Wait for the end of the modelled time.

    The next command, in the list or waiting in the ring by then, begins at that very moment.
    """
    queue.resume_ns = until_ns
    while time.monotonic_ns() < until_ns:
        yield PACED
    sequence = queue.completed + 1
    behind = {(sequence, queue.step + 1)}
    if queue.waiting() > 1:
        behind.add((sequence + 1, 0))
    queue.paced_end = (frozenset(behind), until_ns)
