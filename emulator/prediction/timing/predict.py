"""Prediction of a model's speed: from a graph to layer times, latency, throughput and memory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np

from softnpu.emulator.interface.result import ZeResult, refuse
from softnpu.emulator.prediction.graph import Graph
from softnpu.emulator.prediction.groups import Unit
from softnpu.emulator.prediction.timing import calibration
from softnpu.emulator.prediction.timing.calibration import CalibrationFile, Features
from softnpu.emulator.prediction.timing.devices import Device, find_device
from softnpu.emulator.prediction.timing.features import (
    SELECTIONS,
    copied_bytes,
    features_of,
    unit_times,
    work_of,
)
from softnpu.emulator.prediction.timing.host import HOSTS, Host
from softnpu.emulator.prediction.timing.providers import DEFAULT_PROVIDERS, Provider, UnitTime
from softnpu.emulator.prediction.timing.result import Band, Bound, LayerTime, Memory, Prediction
from softnpu.emulator.prediction.timing.work import Work

_UNMEASURED: Final = 1.5
"""Factor on both ends of the band of a platform without published measurements."""


def predict(
    graph: Graph,
    platform: str = "4000",
    *,
    tiles: int | None = None,
    host: Host | None = None,
    providers: Iterable[Provider] = DEFAULT_PROVIDERS,
    calibrated: CalibrationFile | None = None,
) -> Prediction:
    """Predict the time of each layer and of the whole on `tiles` tiles (None: all) of a platform.

    `host` is the computer around it; None: the one of the platform's published figures. Refuses an unknown
    platform, another platform's host, too many tiles, and a graph with unbounded shapes.
    """
    published = find_device(platform)
    host = host or HOSTS[published.host]
    device = host.on(published)
    count = _check_tiles(device, tiles)
    _check_shapes(graph)
    file = calibrated or calibration.load()
    works = work_of(graph, device, count)
    units = unit_times(works, device, count, providers)
    features = features_of(works, units, device, count)
    return _Builder(graph, device, count, host, file, works, units, features).prediction()


def _check_tiles(device: Device, tiles: int | None) -> int:
    if tiles is None:
        return device.tiles
    if not 1 <= tiles <= device.tiles:
        raise refuse(
            ZeResult.ERROR_INVALID_ARGUMENT,
            f"tiles of platform {device.platform}",
            found=str(tiles),
            expected=f"1 to {device.tiles}",
        )
    return tiles


def _check_shapes(graph: Graph) -> None:
    for each in graph.inputs:
        tensor = each.outputs[0]
        if not tensor.static and -1 in (tensor.upper or (-1,)):
            shape = "[...]" if tensor.shape is None else str(list(tensor.shape))
            raise refuse(
                ZeResult.ERROR_INVALID_ARGUMENT,
                f"input {each.name!r} of {graph.name!r}",
                found=f"the open shape {shape.replace('-1', '?')}",
                expected="static shapes, or bounds of all dimensions",
                hint="give a shape of this input",
            )


class _Builder:
    def __init__(
        self,
        graph: Graph,
        device: Device,
        tiles: int,
        host: Host,
        file: CalibrationFile,
        works: Sequence[Work],
        units: Sequence[UnitTime],
        features: Features,
    ) -> None:
        self._graph, self._device, self._tiles, self._host = graph, device, tiles, host
        self._file, self._works, self._units = file, works, units
        self._computing = features.computing(file.calibration)
        self._memory = features.memory(file.calibration)
        self._overhead = features.overhead(file.calibration)
        self._times = features.times(file.calibration)
        wider = 1.0 if device.measured else _UNMEASURED
        self._low, self._high = min(file.spread.low, 1.0) / wider, max(file.spread.high, 1.0) * wider

    def prediction(self) -> Prediction:
        layers = tuple(self._layer(position) for position in range(len(self._works)))
        total = float(self._times.sum())
        factors = self._file.calibration
        on_host = calibration.host_us(self._host, copied_bytes(self._graph), factors)
        latency = total * factors.latency + on_host
        rate = 1e6 / total if total else 0.0
        return Prediction(
            model=self._graph.name,
            platform=self._device.platform,
            tiles=self._tiles,
            host=self._host.name,
            precision="int8" if any(work.int8 for work in self._works) else "f16",
            device_us=self._band(total),
            latency_us=self._band(latency),
            host_us=on_host,
            throughput=Band(rate, rate / self._high, rate / self._low),
            macs=sum(work.macs for work in self._works),
            memory=self._memory_needed(),
            shares=_shares(layers, total),
            layers=layers,
            calibrated=self._file.date,
            energy_joules=None,
            notes=self._notes(layers),
        )

    def _layer(self, position: int) -> LayerTime:
        work, unit = self._works[position], self._units[position]
        group = work.group
        return LayerTime(
            name=group.name,
            type=group.root.type,
            kernel=work.kernel,
            unit=group.unit.value,
            operations=tuple(member.name for member in group.members),
            precision="int8" if work.int8 else "f16",
            time_us=self._band(float(self._times[position])),
            compute_us=float(self._computing[position]),
            memory_us=float(self._memory[position]),
            overhead_us=float(self._overhead[position]),
            bound=self._bound(position),
            macs=work.macs,
            utilization=self._utilization(work),
            weights_bytes=work.weights_bytes,
            activation_bytes=work.resident_bytes,
            ddr_bytes=work.ddr_bytes,
            spilled_bytes=work.spilled_bytes,
            provider=unit.provider,
            source=unit.source,
        )

    def _band(self, value: float) -> Band:
        return Band(value, value * self._low, value * self._high)

    def _bound(self, position: int) -> Bound:
        computing, memory = self._computing[position], self._memory[position]
        if self._overhead[position] >= max(computing, memory):
            return Bound.OVERHEAD
        unit = self._works[position].group.unit
        if memory >= computing or unit is Unit.DMA:
            return Bound.MEMORY
        return Bound.SHAVE if unit is Unit.SHAVE else Bound.COMPUTE

    def _utilization(self, work: Work) -> float | None:
        if not work.macs or not work.dpu_cycles:
            return None
        # the device's figure is of int8; f16 has half of it
        macs_per_cycle = self._device.macs.value * self._tiles * (1.0 if work.int8 else 0.5)
        return min(work.macs / (work.dpu_cycles * macs_per_cycle), 1.0)

    def _memory_needed(self) -> Memory:
        works = self._works
        return Memory(
            weights=sum(work.weights_bytes for work in works),
            largest_activations=max((work.resident_bytes for work in works), default=0),
            inputs_and_outputs=sum(work.io_bytes for work in works),
            ddr_traffic=sum(work.ddr_bytes for work in works),
            spilled=sum(work.spilled_bytes for work in works),
            cmx=int(self._device.cmx.value * self._tiles),
        )

    def _notes(self, layers: Sequence[LayerTime]) -> tuple[str, ...]:
        notes = [
            f"for the host {self._host.name}: others with this NPU differ by up to two in clock and memory",
            f"calibrated on {self._file.date} with {self._file.rows} published measurements",
        ]
        if not self._device.measured:
            notes.append(
                f"nobody has published a model's time on {self._device.platform}: factors of the others, "
                "wider bands"
            )
        unknown = [each for each in layers if each.unit == "SHAVE" and each.provider == "roofline"]
        if unknown:
            types = sorted({each.type for each in unknown})
            notes.append(
                f"no published figure for the software kernels of {', '.join(types)}: a default rate"
            )
        if any(each.type in SELECTIONS for each in layers):
            notes.append(
                "selecting boxes is calibrated with two models, and differs tenfold between platforms"
            )
        if any(each.type in ("If", "Loop", "TensorIterator") for each in layers):
            notes.append("bodies of If, Loop and TensorIterator are not counted")
        notes.append("energy: no published figure")
        return tuple(notes)


def _shares(layers: Sequence[LayerTime], total: float) -> dict[str, float]:
    times = {bound.value: 0.0 for bound in Bound}
    for each in layers:
        times[each.bound.value] += each.time_us.value
    return {name: float(np.round(us / total, 4)) if total else 0.0 for name, us in times.items()}
