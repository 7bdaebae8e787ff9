"""Who says how long a unit takes for a group: each provider answers for what it knows, the first one counts.

A better source (a file of measurements, a model of the vendor) is one more class with this method, in front.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Protocol

from softnpu.emulator.prediction.groups import Unit
from softnpu.emulator.prediction.timing.devices import Device
from softnpu.emulator.prediction.timing.shave_table import find_kernel
from softnpu.emulator.prediction.timing.work import Work


@dataclass(frozen=True, slots=True)
class UnitTime:
    """Microseconds that a unit computes, without memory and overhead, and the provider that says so.

    `measured` is True for a time that was taken on silicon: no calibration changes it.
    """

    us: float
    provider: str
    source: str
    measured: bool = False


class Provider(Protocol):
    """Knows the time of some groups."""

    def time(self, work: Work, device: Device, tiles: int) -> UnitTime | None:
        """The unit's time on so many tiles; None for a group that it does not know."""


class TableProvider:
    """The SHAVE's published table, for every kernel that it lists."""

    def time(self, work: Work, device: Device, tiles: int) -> UnitTime | None:
        """SHAVE groups only; all SHAVEs of the tiles share the elements."""
        if work.group.unit is not Unit.SHAVE:
            return None
        kernel = find_kernel(device.platform, work.kernel)
        if not kernel.known:
            return None
        shaves = tiles * device.shaves_per_tile
        return UnitTime(kernel.time(work.elements, work.rows, shaves), "table", kernel.source)


class RooflineProvider:
    """Padded MACs, elements and bytes over the rates of the device: knows every group."""

    def time(self, work: Work, device: Device, tiles: int) -> UnitTime:
        """Any group; a SHAVE kernel that nobody has published takes the table's default rate."""
        clock = device.clock.value
        if work.group.unit is Unit.DPU:
            return UnitTime(work.dpu_cycles / clock, "roofline", device.macs.source)
        if work.group.unit is Unit.DMA:
            # bytes over GB/s are thousandths of microseconds; reading and writing share the port
            return UnitTime(work.dma_bytes / device.dma.value / 1000, "roofline", device.dma.source)
        kernel = find_kernel(device.platform, "default")
        shaves = tiles * device.shaves_per_tile
        return UnitTime(kernel.time(work.elements, 0, shaves), "roofline", kernel.source)


@dataclass(frozen=True, slots=True)
class MeasuredTime:
    """A time that somebody measured: the kernel and shapes of a group, on so many tiles of a platform."""

    platform: str
    kernel: str
    int8: bool
    tiles: int
    elements: int
    macs: int
    us: float
    source: str


class MeasuredProvider:
    """Times taken on silicon, for groups of exactly that kernel and size."""

    def __init__(self, times: Iterable[MeasuredTime]) -> None:
        self._times = {
            (each.platform, each.kernel, each.int8, each.tiles, each.elements, each.macs): each
            for each in times
        }

    def time(self, work: Work, device: Device, tiles: int) -> UnitTime | None:
        """The measured time, if this group was measured."""
        key = (device.platform, work.kernel, work.int8, tiles, work.elements, work.macs)
        time = self._times.get(key)
        return None if time is None else UnitTime(time.us, "measured", time.source, measured=True)


DEFAULT_PROVIDERS: Final[tuple[Provider, ...]] = (TableProvider(), RooflineProvider())


def ask(providers: Iterable[Provider], work: Work, device: Device, tiles: int) -> UnitTime:
    """The first answer; the roofline's if nobody else knows."""
    for provider in providers:
        unit_time = provider.time(work, device, tiles)
        if unit_time is not None:
            return unit_time
    return RooflineProvider().time(work, device, tiles)
