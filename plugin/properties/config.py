"""The properties of one compiled model: what holds for it, and what compiler and queue get of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import msgspec
from openvino.properties import WorkloadType
from openvino.properties.hint import PerformanceMode

from softnpu.emulator.blob.container import GraphMeta
from softnpu.emulator.interface.messages import DeviceInfo, GraphFlag
from softnpu.plugin.errors import PropertyError
from softnpu.plugin.properties import mode_params
from softnpu.plugin.properties.hints import HINTS
from softnpu.plugin.properties.record import Access, Use
from softnpu.plugin.properties.table import PROPERTIES, accept

_PRIORITIES = {"LOW": "low", "MEDIUM": "normal", "HIGH": "high"}


class QueueProperties(msgspec.Struct, frozen=True, kw_only=True):
    """What properties say about the command queue of a compiled model."""

    priority: str = "normal"
    turbo: bool = False
    background: bool = False


@dataclass(frozen=True)
class ModelProperties:
    """Values in effect of all RW properties, and the names of those that somebody gave a value.

    `device_name` is `NPU` or `NPU.N`, `info` what the daemon says of that device, or the like of the platform
    that is compiled for.
    """

    device_name: str
    info: DeviceInfo
    values: Mapping[str, Any]
    given: frozenset[str]

    def __getitem__(self, name: str) -> Any:
        return self.values[name]

    def check(self) -> None:
        """Raises `PropertyError` for values that do not go together."""
        check_tiles(self.values)
        if self["NPU_TILES"] > self.info.tiles:
            raise PropertyError(
                f"property NPU_TILES: value {self['NPU_TILES']} for {self.device_name}; expected at most"
                f" {self.info.tiles}, which is all that platform {self.info.platform} has"
            )

    def for_compiler(self) -> dict[str, str]:
        """What the compiler gets: the values that were given, as text."""
        names = [name for name in self.given if PROPERTIES[name].use is Use.COMPILER]
        config = {name: PROPERTIES[name].text(self.values[name]) for name in sorted(names)}
        if self["NPU_TILES"] <= 0:
            config.pop("NPU_TILES", None)
        return config

    def for_graph(self) -> GraphFlag:
        """The flags with which the graph is created."""
        bypassed = self["NPU_BYPASS_UMD_CACHING"] or self["CACHE_DIR"]  # one cache is enough
        return GraphFlag.DISABLE_CACHING if bypassed else GraphFlag.NONE

    def for_queue(self) -> QueueProperties:
        """What the command queue gets."""
        return QueueProperties(
            priority=_PRIORITIES[PROPERTIES["MODEL_PRIORITY"].text(self["MODEL_PRIORITY"])],
            turbo=self["NPU_TURBO"],
            background=self["WORKLOAD_TYPE"] == WorkloadType.EFFICIENT,
        )

    def of_compilation(self) -> dict[str, str]:
        """Those that made the compiled model what it is, as texts: for a file of it."""
        records = [record for record in PROPERTIES.values() if record.cached and record.access is Access.RW]
        return {record.name: record.text(self.values[record.name]) for record in records}

    def compiled_as(self, meta: GraphMeta) -> ModelProperties:
        """These properties for a graph: how it was compiled comes from the graph, what hints leave open
        from the tables."""
        recorded = {
            name: accept(PROPERTIES[name], text) for name, text in meta.config.items() if name in PROPERTIES
        }
        known = replace(self, values={**self.values, **recorded, "NPU_PLATFORM": meta.platform})
        hint = HINTS[meta.platform].of(known["PERFORMANCE_HINT"])
        hinted = {"NPU_TILES": known._hinted_tiles(hint.tiles), "NPU_DMA_ENGINES": hint.dma_engines}
        settled = {name: known[name] if known[name] > 0 else number for name, number in hinted.items()}
        return replace(known, values={**known.values, **settled})

    def with_values(self, values: Mapping[str, Any]) -> ModelProperties:
        """These properties with others in place of some."""
        return replace(self, values={**self.values, **values}, given=self.given | values.keys())

    def optimal_requests(self) -> int:
        """Infer requests that keep the device busy, by the table and PERFORMANCE_HINT_NUM_REQUESTS."""
        number = HINTS[self.info.platform].of(self["PERFORMANCE_HINT"]).requests
        asked: int = self["PERFORMANCE_HINT_NUM_REQUESTS"]
        if asked and "PERFORMANCE_HINT_NUM_REQUESTS" in self.given:
            return min(number, asked)
        return number

    def _hinted_tiles(self, tiles: int) -> int:
        limit: int = self["NPU_MAX_TILES"]
        override = mode_params.parse(self["NPU_COMPILATION_MODE_PARAMS"])[mode_params.OVERRIDE]
        if override == "latency" and self["PERFORMANCE_HINT"] == PerformanceMode.LATENCY:
            return limit
        return min(tiles, limit)


def target(values: Mapping[str, Any], device: DeviceInfo) -> DeviceInfo:
    """What is compiled for: `device`, or one of the platform that NPU_PLATFORM names, which need not be
    there.

    A platform that nobody knows is left to the compiler, which refuses it with those that it has.
    """
    platform = str(values.get("NPU_PLATFORM", "")).removeprefix("NPU").removeprefix("VPU")
    if platform == device.platform or platform not in HINTS:
        return device
    return msgspec.structs.replace(device, platform=platform, tiles=HINTS[platform].tiles, revision=0)


def check_tiles(values: Mapping[str, Any]) -> None:
    """Raises `PropertyError` when more tiles are asked for than there may be."""
    if values["NPU_TILES"] > values["NPU_MAX_TILES"]:
        raise PropertyError(
            f"property NPU_TILES: value {values['NPU_TILES']}; expected at most {values['NPU_MAX_TILES']},"
            " which is NPU_MAX_TILES"
        )
