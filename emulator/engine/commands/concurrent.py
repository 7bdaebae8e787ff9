"""An inference as one of several at once, each on a stream of OpenVINO."""

from __future__ import annotations

import time
from collections.abc import Sequence

from softnpu.emulator.engine.memory.mappings import Range
from softnpu.emulator.openvino.binding import Binding


class ConcurrentRun:
    """An inference bound to an image with streams.

    `streams`: number of inferences at once, this one included. `started_ns`: when it started, if before its
    turn; else 0.
    """

    __slots__ = ("_binding", "_reads", "_writes", "started_ns", "streams")

    def __init__(
        self, binding: Binding, streams: int, reads: Sequence[Range], writes: Sequence[Range]
    ) -> None:
        self._binding = binding
        self._reads, self._writes = reads, writes
        self.streams = streams
        self.started_ns = 0

    @property
    def is_short(self) -> bool:
        """Whether an inference is too short to start it early."""
        return self._binding.is_short

    def start_early(self) -> None:
        """Start before its turn."""
        self.started_ns = time.monotonic_ns()
        self._binding.start_early()

    def cancel_early(self) -> None:
        """Cancel an early start, unless its turn has come."""
        self.started_ns = 0
        self._binding.cancel_early()

    def poll_often(self, often: bool) -> None:
        """Poll soon for inferences that can start beside it, or only for its cancellation."""
        self._binding.poll_often(often)

    def conflicts(self, other: ConcurrentRun) -> bool:
        """Whether one writes memory that the other uses."""
        return (
            _overlap(self._writes, other._writes)
            or _overlap(self._writes, other._reads)
            or _overlap(self._reads, other._writes)
        )


def _overlap(some: Sequence[Range], others: Sequence[Range]) -> bool:
    return any(one.overlaps(other) for one in some for other in others)
