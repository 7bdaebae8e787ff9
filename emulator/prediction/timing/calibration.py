"""The few factors fitted to published measurements, and the group times computed from them.

`data/calibration.json` has the result, with its date; `tests/prediction/calibration` regenerates it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib import resources

import msgspec
import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


class Calibration(msgspec.Struct, frozen=True, kw_only=True):
    """Factors on the device's figures.

    - `dpu`, `shave`, `dma`: on the time of a unit. `ddr`: on the time of DDR traffic.
    - `exposed`: between 0, constants are fetched during the computation of all earlier groups, and 1, each
      group waits for its own.
    - `layer_us`, `kernel_us`: overhead of a group on the DPU or DMA, and on the SHAVEs.
    - `selection_3720_ns`, `selection_4000_ns`: selecting boxes (DetectionOutput), per score; no table has it,
      and the platforms differ much. 5010 has that of 4000.
    - `requantise`: on the passes that an int8 model makes around software kernels, which compute in f16.
    - `latency`: on the time of a lone inference, without a next one to overlap with. `latency_us`: additional
      time of such an inference.
    """

    dpu: float = 1.0
    shave: float = 1.0
    dma: float = 1.0
    ddr: float = 1.0
    exposed: float = 0.3
    layer_us: float = 2.0
    kernel_us: float = 5.0
    selection_3720_ns: float = 5.0
    selection_4000_ns: float = 5.0
    requantise: float = 1.0
    latency: float = 1.1
    latency_us: float = 100.0


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """Measured over predicted time: the tenth and the ninetieth percentile, for left-out models."""

    low: float
    high: float


class CalibrationFile(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a fit: its rows, its date, and its spread for models left out one by one."""

    date: str
    rows: int
    calibration: Calibration
    spread: Spread


@dataclass(frozen=True)
class Features:
    """The uncalibrated times of groups in microseconds, one entry per group: the input of calibration.

    `constants` is DDR traffic that can be prefetched, `activations` that which a group waits for. `overheads`
    and `launches` count groups on the DPU or DMA, and on the SHAVEs. `scores` are thousands of box scores;
    `older` says that the platform is 3720.
    """

    dpu: Floats
    shave: Floats
    dma: Floats
    requantise: Floats
    constants: Floats
    activations: Floats
    overheads: Floats
    launches: Floats
    scores: Floats
    older: bool
    measured: Floats

    def computing(self, by: Calibration) -> Floats:
        """Return the time of the units."""
        own = self.dpu * by.dpu + self.shave * by.shave + self.dma * by.dma + self.requantise * by.requantise
        own = own + self.scores * (by.selection_3720_ns if self.older else by.selection_4000_ns)
        return own + self.measured

    def memory(self, by: Calibration) -> Floats:
        """Return the time of DDR traffic."""
        return (self.constants + self.activations) * by.ddr

    def overhead(self, by: Calibration) -> Floats:
        """Return the time beside computing and memory."""
        return self.overheads * by.layer_us + self.launches * by.kernel_us

    def times(self, by: Calibration) -> Floats:
        """Return each group's time when inferences are back to back.

        The DMA prefetches: a group begins when the previous one has ended and its constants have arrived. The
        share `exposed` of the hidden time is added back.
        """
        busy = np.maximum(self.computing(by), self.activations * by.ddr) + self.overhead(by)
        fetched = np.cumsum(self.memory(by))
        before = np.cumsum(busy) - busy
        ends = before + busy + np.maximum.accumulate(np.maximum(fetched - before, 0.0))
        hidden = np.diff(ends, prepend=0.0)
        return (1 - by.exposed) * hidden + by.exposed * (busy + self.constants * by.ddr)


def latency_us(device_us: float, by: Calibration) -> float:
    """Return the time from submission to result of a lone inference."""
    return device_us * by.latency + by.latency_us


@cache
def load() -> CalibrationFile:
    """Return the calibration of this installation."""
    content = resources.files(__package__).joinpath("data/calibration.json").read_bytes()
    return msgspec.json.decode(content, type=CalibrationFile)
