"""The modelled clock of a device: silicon's time, independent of the host's.

A device with the modelled clock counts the time predicted by `prediction.timing` for each inference, on its
tiles. Host time does not enter, so the same submissions have the same times. A paced device also takes that
long: an inference ends when its modelled time is over, or later if the host needs longer, which is counted.
"""

from __future__ import annotations

import logging
import time

import openvino as ov

from softnpu.emulator.blob.container import GraphMeta
from softnpu.emulator.interface.profiling import CLOCK_PROPERTY, LayerRecord, LayerStatus, TaskType
from softnpu.emulator.interface.result import Refused
from softnpu.emulator.openvino.modelled_time import Modelled, ModelledTime
from softnpu.emulator.platforms import Platform

log = logging.getLogger(__name__)

_DEVICE = "DEVICE"


def tiles_of(meta: GraphMeta, platform: Platform) -> int:
    """Return the number of tiles occupied by an inference of this graph: NPU_TILES, or all."""
    tiles = meta.config.get("NPU_TILES", "")
    return min(platform.tiles, int(tiles)) if tiles.isdigit() and int(tiles) else platform.tiles


class Tiles:
    """The times at which each tile of a device is free, in nanoseconds of one clock."""

    def __init__(self, count: int, now_ns: int = 0) -> None:
        self._free_ns = [now_ns] * count

    @property
    def latest_ns(self) -> int:
        """When the last tile is free."""
        return max(self._free_ns)

    def occupy(self, count: int, not_before_ns: int, ns: int) -> int:
        """Occupy `count` tiles together, as early as possible; return the end.

        Among free tiles prefer the most recently busy: another inference may begin earlier on the others.
        """

        def order(tile: int) -> tuple[int, int]:
            free = self._free_ns[tile]
            return max(free, not_before_ns), -free

        chosen = sorted(range(len(self._free_ns)), key=order)[:count]
        end = max(not_before_ns, self._free_ns[chosen[-1]]) + ns
        for tile in chosen:
            self._free_ns[tile] = end
        return end


class DeviceClock:
    """The modelled clock of one device, which continues from `start_ns`.

    `paced`: inferences also take their modelled time on the host.
    """

    def __init__(self, platform: Platform, start_ns: int, *, paced: bool) -> None:
        from softnpu.emulator.prediction.timing.devices import find_device

        self.paced = paced
        self._copied_ns = 0
        self._tiles = Tiles(platform.tiles, start_ns)
        self._host_tiles = Tiles(platform.tiles)
        self._bytes_per_ns = find_device(platform.number).dma.value
        self._busy_until_ns = 0

    @property
    def now_ns(self) -> int:
        """The end of the latest work."""
        return max(self._tiles.latest_ns, self._copied_ns)

    def run(self, modelled: ModelledTime, after_ns: int) -> int:
        """Count an inference that begins after `after_ns` on this clock; return its end."""
        return self._tiles.occupy(modelled.tiles, after_ns, modelled.ns)

    def copy(self, size: int, after_ns: int) -> int:
        """Count a DMA copy that begins after `after_ns` and occupies no tile; return its end."""
        end = after_ns + round(size / self._bytes_per_ns)
        self._copied_ns = max(self._copied_ns, end)
        return end

    def pace(self, modelled: ModelledTime, started_ns: int) -> int:
        """Return the end, on the host's clock, of an inference that began at `started_ns`."""
        return self._host_tiles.occupy(modelled.tiles, started_ns, modelled.ns)

    def busy_ns(self, modelled: ModelledTime, until_ns: int) -> int:
        """Return how long this inference, which ends at `until_ns`, ran alone."""
        begin = max(until_ns - modelled.ns, self._busy_until_ns)
        self._busy_until_ns = max(until_ns, self._busy_until_ns)
        return max(0, until_ns - begin)


def modelled_times(platform: Platform, clock: DeviceClock | None, fixed_ns: int) -> Modelled:
    """Return the function that computes the modelled time of a loaded model."""

    def of(model: ov.Model, meta: GraphMeta) -> ModelledTime | None:
        if clock is None and meta.config.get(CLOCK_PROPERTY) != _DEVICE:
            return None
        tiles = tiles_of(meta, platform)
        if fixed_ns:
            return ModelledTime(tiles, fixed_ns, ())
        return _predicted(model, meta, platform, tiles)

    return of


def _predicted(model: ov.Model, meta: GraphMeta, platform: Platform, tiles: int) -> ModelledTime | None:
    from softnpu.emulator.prediction.reader import read_fused_graph
    from softnpu.emulator.prediction.timing import predict

    start = time.perf_counter()
    try:
        prediction = predict(read_fused_graph(model), platform.number, tiles=tiles)
    except Refused as error:
        log.warning("model '%s' has no modelled time: %s", meta.name, error)
        return None
    records: list[LayerRecord] = []
    begin = 0
    units = {"DPU": TaskType.DPU, "SHAVE": TaskType.SW, "DMA": TaskType.DMA}
    for number, layer in enumerate(prediction.layers):
        ns = round(layer.time_us.value * 1000)
        record = LayerRecord(
            layer.name, layer.type, units[layer.unit], LayerStatus.EXECUTED, begin, ns, 0, number
        )
        records.append(record)
        begin += ns
    log.info("modelled time of '%s': %d us, in %.3f s", meta.name, begin // 1000, time.perf_counter() - start)
    return ModelledTime(tiles, begin, tuple(records))
