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

from softnpu.emulator.prediction.timing.host import Host

Floats = npt.NDArray[np.float64]


class Calibration(msgspec.Struct, frozen=True, kw_only=True):
    """Factors on the device's figures.

    - `dpu`, `dma`: on the time of a unit. `ddr`: on the time of DDR traffic. `shave_3720`, `shave_4000`: on
      that of the software kernels, whose tables have no unit; 5010 has the table of 4000.
    - `layer_cycles`, `kernel_cycles`: thousands of cycles to start a group on the DPU or DMA, on the SHAVEs.
    - `selection_3720_ns`, `selection_4000_ns`: selecting boxes (DetectionOutput, TopK), per score; no table
      has it, and the platforms differ much. 5010 has that of 4000.
    - `latency`: on the device's time of a lone inference, without a next one to overlap with.
    - `driver_us`: what driver and firmware add to each lone inference, `call_us` the program around it.
      `copy_gbs`: the rate at which the host copies its inputs and outputs.
    """

    dpu: float = 1.0
    shave_3720: float = 1.0
    shave_4000: float = 1.0
    dma: float = 1.0
    ddr: float = 1.0
    layer_cycles: float = 4.0
    kernel_cycles: float = 8.0
    selection_3720_ns: float = 5.0
    selection_4000_ns: float = 5.0
    latency: float = 1.05
    driver_us: float = 100.0
    call_us: float = 200.0
    copy_gbs: float = 4.0


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """Measured over predicted time: the range of 80 of 100 measurements of families left out."""

    low: float
    high: float


class CalibrationFile(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a fit: its rows, its date, and its spread for families of models left out one by one."""

    date: str
    rows: int
    calibration: Calibration
    spread: Spread


@dataclass(frozen=True)
class Features:
    """The uncalibrated times of groups in microseconds, one entry per group: the input of calibration.

    `constants` is DDR traffic that can be prefetched, `activations` that which a group waits for. `overheads`
    and `launches` count groups on the DPU or DMA, and on the SHAVEs. `scores` are thousands of box scores;
    `older` says that the platform is 3720, `clock` is in MHz. `room_after`: how many groups have ended when
    the constants of this one have room in CMX; `first_part`: the share of them that it cannot begin without.
    """

    dpu: Floats
    shave: Floats
    dma: Floats
    constants: Floats
    activations: Floats
    overheads: Floats
    launches: Floats
    scores: Floats
    older: bool
    measured: Floats
    clock: float
    room_after: tuple[int, ...]
    first_part: tuple[float, ...]

    def computing(self, by: Calibration) -> Floats:
        """Return the time of the units."""
        shave = by.shave_3720 if self.older else by.shave_4000
        own = self.dpu * by.dpu + self.shave * shave + self.dma * by.dma
        own = own + self.scores * (by.selection_3720_ns if self.older else by.selection_4000_ns)
        return own + self.measured

    def memory(self, by: Calibration) -> Floats:
        """Return the time of DDR traffic."""
        return (self.constants + self.activations) * by.ddr

    def overhead(self, by: Calibration) -> Floats:
        """Return the time beside computing and memory."""
        return (self.overheads * by.layer_cycles + self.launches * by.kernel_cycles) * 1000 / self.clock

    def times(self, by: Calibration) -> Floats:
        """Return each group's time when inferences are back to back.

        The DMA fetches the constants of the next groups as soon as they have room in CMX. A group whose
        constants fill it computes with the first part while the others arrive.
        """
        busy = (np.maximum(self.computing(by), self.activations * by.ddr) + self.overhead(by)).tolist()
        fetches = (self.constants * by.ddr).tolist()
        ends = [0.0]
        fetched = 0.0
        for position, (own, fetch, room) in enumerate(zip(busy, fetches, self.room_after, strict=True)):
            begun = max(fetched, ends[room])
            fetched = begun + fetch
            first = fetch * self.first_part[position]
            ends.append(max(max(ends[-1], begun + first) + own, fetched))
        return np.diff(np.array(ends))


def host_us(host: Host, copied_bytes: int, by: Calibration, *, alone: bool = False) -> float:
    """Return the host's part of a lone inference; `alone`: without a program around the driver."""
    call = by.call_us if host.call_us is None else host.call_us
    return by.driver_us + (0.0 if alone else call) + copied_bytes / (host.copy_gbs or by.copy_gbs) / 1000


@cache
def load() -> CalibrationFile:
    """Return the calibration of this installation."""
    content = resources.files(__package__).joinpath("data/calibration.json").read_bytes()
    return msgspec.json.decode(content, type=CalibrationFile)
