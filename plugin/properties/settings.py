"""The values of `Core.set_property`, for all devices or for one. The last call wins."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from typing import Any

from softnpu.emulator.interface.messages import DeviceInfo
from softnpu.plugin.errors import PropertyError
from softnpu.plugin.properties.record import Access
from softnpu.plugin.properties.table import PROPERTIES, accept, cached_names

ENV_LOG_LEVEL = "OV_NPU_LOG_LEVEL"


class Settings:
    """Values of one `Core`; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._all: dict[str, Any] = {}
        self._by_device: dict[int, dict[str, Any]] = {}

    def set(self, device: int | None, values: Mapping[str, Any]) -> None:
        """Set values for the device of this index, or for all (None)."""
        with self._lock:
            if device is not None:
                self._by_device.setdefault(device, {}).update(values)
                return
            self._all.update(values)
            for own in self._by_device.values():
                for name in values:
                    own.pop(name, None)

    def of(self, device: int | None) -> dict[str, Any]:
        """Return the values for a device, or for all (None)."""
        with self._lock:
            return self._all | (self._by_device.get(device, {}) if device is not None else {})


def in_effect(explicit: Mapping[str, Any], info: DeviceInfo) -> dict[str, Any]:
    """Return values of all RW properties on a device: explicit ones, else defaults."""
    values = {**static_defaults(), "NPU_MAX_TILES": -1, "NPU_STEPPING": -1, **explicit}
    if values["NPU_MAX_TILES"] <= 0:
        values["NPU_MAX_TILES"] = info.tiles
    if values["NPU_STEPPING"] < 0:
        values["NPU_STEPPING"] = info.revision
    return values


def static_defaults() -> dict[str, Any]:
    """Return the defaults that do not depend on a device."""
    values: dict[str, Any] = {
        record.name: record.default for record in PROPERTIES.values() if record.access is Access.RW
    }
    values["CACHING_PROPERTIES"] = cached_names()
    level = log_level_of_environment()
    return values if level is None else values | {"LOG_LEVEL": level}


def log_level_of_environment() -> Any:
    """Return the level in OV_NPU_LOG_LEVEL; None if unset or invalid, as in the real plugin."""
    try:
        return accept(PROPERTIES["LOG_LEVEL"], os.environ[ENV_LOG_LEVEL])
    except (KeyError, PropertyError):
        return None
