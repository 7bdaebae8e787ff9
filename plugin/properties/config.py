"""The properties of one compiled model, and the values for its compiler and its queue."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec.structs import replace
from openvino.properties import WorkloadType
from openvino.properties.hint import PerformanceMode, Priority

from softnpu.emulator.blob.container import GraphMeta
from softnpu.emulator.interface.messages import DeviceInfo, GraphFlag
from softnpu.plugin.errors import PropertyError
from softnpu.plugin.properties import mode_params
from softnpu.plugin.properties.hints import DMA_ENGINES, HINTS
from softnpu.plugin.properties.table import PROPERTIES, Access, Use, accept, static_defaults

_PRIORITIES = {Priority.LOW: "low", Priority.MEDIUM: "normal", Priority.HIGH: "high"}


class QueueProperties(msgspec.Struct, frozen=True, kw_only=True):
    """The properties of a compiled model's command queue.

    `keeps_idle_memory`: the queue's context opts out of pruning.
    """

    priority: str = "normal"
    turbo: bool = False
    background: bool = False
    keeps_idle_memory: bool = False


class ModelProperties(msgspec.Struct, frozen=True):
    """Values in effect of all RW properties, and the names of the explicitly set ones.

    `device_name` is `NPU` or `NPU.N`, `device` its index, `info` the daemon's record of that device, with
    another platform under NPU_PLATFORM. `given` are the names that this very call has set.
    """

    device_name: str
    device: int
    info: DeviceInfo
    values: Mapping[str, Any]
    explicit: frozenset[str]
    given: frozenset[str]

    def __getitem__(self, name: str) -> Any:
        return self.values[name]

    def check(self) -> None:
        """Raise `PropertyError` for contradictory values."""
        check_tiles(self.values)
        if self["NPU_TILES"] > self.info.tiles:
            raise PropertyError(
                f"property NPU_TILES: value {self['NPU_TILES']} for {self.device_name}; expected at most"
                f" {self.info.tiles}, which is all that platform {self.info.platform} has"
            )

    def for_compiler(self) -> dict[str, str]:
        """Return the explicit values for the compiler, as texts."""
        names = [name for name in self.explicit if PROPERTIES[name].use is Use.COMPILER]
        config = {name: PROPERTIES[name].text(self.values[name]) for name in sorted(names)}
        if self["NPU_TILES"] <= 0:
            config.pop("NPU_TILES", None)
        return config

    def for_graph(self) -> GraphFlag:
        """Return the flags for the graph."""
        bypassed = self["NPU_BYPASS_UMD_CACHING"] or self["CACHE_DIR"]  # one cache is enough
        flags = GraphFlag.DISABLE_CACHING if bypassed else GraphFlag.NONE
        return flags | GraphFlag.SECURE_COMPILE if self["CACHE_ENCRYPTION_CALLBACKS"] else flags

    def for_queue(self) -> QueueProperties:
        """Return the properties of the command queue."""
        return QueueProperties(
            priority=_PRIORITIES[self["MODEL_PRIORITY"]],
            turbo=self["NPU_TURBO"],
            background=self["WORKLOAD_TYPE"] == WorkloadType.EFFICIENT,
            keeps_idle_memory=self["NPU_DISABLE_IDLE_MEMORY_PRUNING"],
        )

    def of_compilation(self) -> dict[str, str]:
        """Return the properties that determine the compiled model, as texts for an exported file."""
        records = [record for record in PROPERTIES.values() if record.cached and record.access is Access.RW]
        return {record.name: record.text(self.values[record.name]) for record in records}

    def compiled_as(self, meta: GraphMeta) -> ModelProperties:
        """Return these properties for a graph: with its recorded values, and the hint tables' numbers."""
        recorded = {
            name: accept(PROPERTIES[name], text) for name, text in meta.config.items() if name in PROPERTIES
        }
        known = replace(self, values={**self.values, **recorded, "NPU_PLATFORM": meta.platform})
        hint = HINTS[meta.platform].of(known["PERFORMANCE_HINT"])
        # 0 and -1 leave a number to the hint
        hinted = {"NPU_TILES": known._hinted_tiles(hint.tiles), "NPU_DMA_ENGINES": DMA_ENGINES}
        numbers = {name: known[name] if known[name] > 0 else number for name, number in hinted.items()}
        return replace(known, values={**known.values, **numbers})

    def with_values(self, values: Mapping[str, Any]) -> ModelProperties:
        """Return these properties with some values replaced."""
        return replace(self, values={**self.values, **values}, explicit=self.explicit | values.keys())

    def optimal_requests(self) -> int:
        """Return how many requests keep the device busy, by the table and PERFORMANCE_HINT_NUM_REQUESTS."""
        number = HINTS[self.info.platform].of(self["PERFORMANCE_HINT"]).requests
        limit: int = self["PERFORMANCE_HINT_NUM_REQUESTS"]
        if limit and "PERFORMANCE_HINT_NUM_REQUESTS" in self.explicit:
            return min(number, limit)
        return number

    def _hinted_tiles(self, tiles: int) -> int:
        limit: int = self["NPU_MAX_TILES"]
        override = mode_params.parse(self["NPU_COMPILATION_MODE_PARAMS"])[mode_params.OVERRIDE]
        if override == "latency" and self["PERFORMANCE_HINT"] == PerformanceMode.LATENCY:
            return limit
        return min(tiles, limit)


def in_effect(explicit: Mapping[str, Any], device: DeviceInfo) -> tuple[DeviceInfo, dict[str, Any]]:
    """Return the device to compile for, and the values of all RW properties on it.

    It is `device`, or one of the platform in NPU_PLATFORM, which the daemon need not have. An unknown
    platform has no effect here: the compiler rejects it with a list of its platforms. Values are explicit
    ones, else defaults.
    """
    info = device
    platform = str(explicit.get("NPU_PLATFORM", "")).removeprefix("NPU").removeprefix("VPU")
    if platform != device.platform and platform in HINTS:
        info = replace(device, platform=platform, tiles=HINTS[platform].tiles, revision=0)
    values = {**static_defaults(), "NPU_MAX_TILES": -1, "NPU_STEPPING": -1, **explicit}
    if values["NPU_MAX_TILES"] <= 0:
        values["NPU_MAX_TILES"] = info.tiles
    if values["NPU_STEPPING"] < 0:
        values["NPU_STEPPING"] = info.revision
    return info, values


def check_tiles(values: Mapping[str, Any]) -> None:
    """Raise `PropertyError` when NPU_TILES exceeds NPU_MAX_TILES."""
    if values["NPU_TILES"] > values["NPU_MAX_TILES"]:
        raise PropertyError(
            f"property NPU_TILES: value {values['NPU_TILES']}; expected at most {values['NPU_MAX_TILES']},"
            " which is NPU_MAX_TILES"
        )
