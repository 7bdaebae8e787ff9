"""The performance hints of each platform: tiles, DMA engines, infer requests.

3720 and 4000 are the tables of the NPU plugin's README. 5010 is not in them and is derived: like any device
with few tiles it uses all for one inference under LATENCY, and two for each under THROUGHPUT.
"""

from __future__ import annotations

from typing import Any

import msgspec
from openvino.properties.hint import PerformanceMode

DMA_ENGINES_MAX = 2


class Hint(msgspec.Struct, frozen=True, kw_only=True):
    """The number of tiles (DPU groups), of DMA engines, and of infer requests that keeps the device busy."""

    tiles: int
    dma_engines: int
    requests: int


class PlatformHints(msgspec.Struct, frozen=True, kw_only=True):
    """The hints of one platform; `tiles` is its total."""

    tiles: int
    throughput: Hint
    latency: Hint

    def of(self, mode: Any) -> Hint:
        """Return the hint of an OpenVINO `PerformanceMode`."""
        return self.throughput if mode == PerformanceMode.THROUGHPUT else self.latency


HINTS = {
    "3720": PlatformHints(
        tiles=2,
        throughput=Hint(tiles=2, dma_engines=2, requests=4),
        latency=Hint(tiles=2, dma_engines=2, requests=1),
    ),
    "4000": PlatformHints(
        tiles=6,
        throughput=Hint(tiles=2, dma_engines=2, requests=8),
        latency=Hint(tiles=4, dma_engines=2, requests=1),
    ),
    "5010": PlatformHints(
        tiles=3,
        throughput=Hint(tiles=2, dma_engines=2, requests=8),
        latency=Hint(tiles=3, dma_engines=2, requests=1),
    ),
}
