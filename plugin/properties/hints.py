"""What a performance hint means on each platform: tiles, DMA engines, infer requests.

3720 and 4000 are the tables of the NPU plugin's README. 5010 is not in them; it follows their spirit: a
device of few tiles gives all to one inference that should be quick, and keeps two for each of many.
"""

from __future__ import annotations

from typing import Any

import msgspec
from openvino.properties.hint import PerformanceMode

DMA_ENGINES_MAX = 2


class Hint(msgspec.Struct, frozen=True, kw_only=True):
    """Tiles (DPU groups), DMA engines, and infer requests that keep the device busy."""

    tiles: int
    dma_engines: int
    requests: int


class PlatformHints(msgspec.Struct, frozen=True, kw_only=True):
    """The hints of one platform, which has `tiles` in all."""

    tiles: int
    throughput: Hint
    latency: Hint

    def of(self, mode: Any) -> Hint:
        """The hint of an OpenVINO `PerformanceMode`."""
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
