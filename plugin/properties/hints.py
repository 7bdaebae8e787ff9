"""The performance hints of each platform: tiles and infer requests; and DMA engines, the same for all.

3720 and 4000 are the tables of the NPU plugin's README. 5010 and 5020 are not in them and are derived: like
any device with few tiles they use all for one inference under LATENCY, at most two for each under
THROUGHPUT.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from openvino.properties.hint import PerformanceMode

DMA_ENGINES: Final = 2


class Hint(NamedTuple):
    """The number of tiles (DPU groups), and of infer requests that keeps the device busy."""

    tiles: int
    requests: int


class PlatformHints(NamedTuple):
    """The hints of one platform; `tiles` is its total."""

    tiles: int
    throughput: Hint
    latency: Hint

    def of(self, mode: Any) -> Hint:
        """Return the hint of an OpenVINO `PerformanceMode`."""
        return self.throughput if mode == PerformanceMode.THROUGHPUT else self.latency


HINTS: Final = {
    "3720": PlatformHints(tiles=2, throughput=Hint(2, 4), latency=Hint(2, 1)),
    "4000": PlatformHints(tiles=6, throughput=Hint(2, 8), latency=Hint(4, 1)),
    "5010": PlatformHints(tiles=3, throughput=Hint(2, 8), latency=Hint(3, 1)),
    "5020": PlatformHints(tiles=1, throughput=Hint(1, 8), latency=Hint(1, 1)),
}
