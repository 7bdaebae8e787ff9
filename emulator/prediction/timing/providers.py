"""Sources of unit times: each provider answers for the groups that it knows, and the first answer counts.

A better source (a file of measurements, a vendor's model) is one more class with this method, in front.
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
    """Microseconds of a unit's computation, without memory and overhead, and the provider's name.

    `measured` is True for a time taken on silicon: no calibration changes it.
    """

    us: float
    provider: str
    source: str
    measured: bool = False


class Provider(Protocol):
    """Knows the time of some groups."""

    def time(self, work: Work, device: Device, tiles: int) -> UnitTime | None:
        """Return the unit's time on that many tiles; None for an unknown group."""


class TableProvider:
    """The SHAVE's published table, for every kernel that it lists."""

    def time(self, work: Work, device: Device, tiles: int) -> UnitTime | None:
        """Return the time of a SHAVE group; all SHAVEs of the tiles share the elements."""
        if work.group.unit is not Unit.SHAVE:
            return None
        kernel = find_kernel(device.platform, work.kernel)
        if not kernel.known:
            return None
        shaves = tiles * device.shaves_per_tile
        return UnitTime(kernel.time(work.elements, work.rows, shaves), "table", kernel.source)


class RooflineProvider:
    """Padded MACs, elements and bytes over the rates of the device: covers every group."""

    def time(self, work: Work, device: Device, tiles: int) -> UnitTime:
        """Return the time of any group; an unpublished SHAVE kernel has the table's default rate."""
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
    """A measured time: the kernel and shapes of a group, on that many tiles of a platform."""

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
        """Return the measured time, if this group was measured."""
        key = (device.platform, work.kernel, work.int8, tiles, work.elements, work.macs)
        time = self._times.get(key)
        return None if time is None else UnitTime(time.us, "measured", time.source, measured=True)


DEFAULT_PROVIDERS: Final[tuple[Provider, ...]] = (TableProvider(), RooflineProvider())


def ask(providers: Iterable[Provider], work: Work, device: Device, tiles: int) -> UnitTime:
    """Return the first answer, falling back on the roofline."""
    for provider in providers:
        unit_time = provider.time(work, device, tiles)
        if unit_time is not None:
            return unit_time
    return RooflineProvider().time(work, device, tiles)
