"""The properties of a `Core`: read from devices and settings, set for all devices or for one."""

from __future__ import annotations

import threading
from functools import partial
from typing import Any

from openvino.properties import CompatibilityCheck

from softnpu.plugin import log
from softnpu.plugin.devices import Devices, check_name
from softnpu.plugin.errors import NpuError, PropertyError, translated
from softnpu.plugin.properties import (
    DeviceView,
    Level,
    ModelProperties,
    PropertyPairs,
    check_tiles,
    find_at,
    in_effect,
    parse,
    property_pairs,
    read,
)
from softnpu.plugin.properties.device_properties import DEVICE_PROPERTIES, device_properties
from softnpu.plugin.properties.kinds import plain

_REQUIREMENTS = "RUNTIME_REQUIREMENTS"


class CoreProperties:
    """Properties of one `Core` and its devices; thread-safe. Of two calls of `set` the last one wins."""

    def __init__(self, devices: Devices) -> None:
        self._devices = devices
        self._lock = threading.Lock()
        self._all: dict[str, Any] = {}
        self._by_device: dict[int, dict[str, Any]] = {}

    def get(self, device_name: str, name: Any, arguments: PropertyPairs) -> Any:
        """Read a property of a device; `arguments` override what was set. Raises `PropertyError`."""
        record = find_at(Level.CORE, name)
        if record.name == "COMPATIBILITY_CHECK":
            return self._compatibility(device_name, dict(property_pairs(arguments)))
        properties = self._resolve(device_name, arguments)
        driver = self._devices.driver()
        view = DeviceView(
            device=driver.devices[properties.device],
            driver=driver,
            properties=properties,
            context=partial(self._devices.context, properties.device),
        )
        with translated(f"device {device_name}, property {record.name}", NpuError):
            return read(view, record.name)

    def set(self, device_name: str, pairs: PropertyPairs) -> None:
        """Set defaults for later `compile_model` calls on a device, or on all (`NPU`).

        Raises `PropertyError`, naming the property, and then sets nothing.
        """
        if DEVICE_PROPERTIES in dict(property_pairs(pairs)):
            raise PropertyError(
                f"property {DEVICE_PROPERTIES}: given to set_property; expected it in the config of "
                "compile_model. Here name the device: set_property('NPU', {...})"
            )
        values = parse(pairs)
        index, checked = None, values.keys() & {"NPU_TILES", "NPU_MAX_TILES", "DEVICE_ID"}
        if (is_for_one := bool(check_name(device_name))) or checked:
            selected = self._devices.select(device_name, values.get("DEVICE_ID", ""))
            index = selected.index if is_for_one else None
            if checked:
                check_tiles(in_effect(self._settings(index) | values, selected.info)[1])
        with self._lock:
            if index is not None:
                self._by_device.setdefault(index, {}).update(values)
            else:
                self._all.update(values)
                for own in self._by_device.values():
                    for name in values:
                        own.pop(name, None)
        if "LOG_LEVEL" in values:
            log.set_level(values["LOG_LEVEL"])

    def index(self, device_name: str) -> int:
        """Return the index of a device. Raises `PropertyError` for an unknown one."""
        return self._devices.select(device_name, "", self._settings(None).get("DEVICE_ID", "")).index

    def resolve(self, device_name: str, config: PropertyPairs) -> ModelProperties:
        """Return the properties of a device: from `config`, else as set before, else defaults.

        Raises `PropertyError` for an unknown device, for an invalid `config`, and for contradictory values.
        """
        properties = self._resolve(device_name, config)
        properties.check()
        return properties

    def _resolve(self, device_name: str, config: PropertyPairs) -> ModelProperties:
        pairs = dict(property_pairs(config))
        by_device = device_properties(pairs.pop(DEVICE_PROPERTIES, {}))
        values = parse(pairs)
        default_id = self._settings(None).get("DEVICE_ID", "")
        selected = self._devices.select(device_name, values.get("DEVICE_ID", ""), default_id)
        for name in dict.fromkeys(("NPU", device_name, selected.name)):  # the more special one wins
            values |= parse(by_device.get(name, {}))
        explicit = self._settings(selected.index) | values
        info, all_values = in_effect(explicit, selected.info)
        return ModelProperties(
            device_name=selected.name,
            device=selected.index,
            info=info,
            values=all_values | {"DEVICE_ID": selected.id},
            explicit=frozenset(explicit),
            given=frozenset(values),
        )

    def _settings(self, device: int | None) -> dict[str, Any]:
        """Return the values that were set for a device, or for all (None)."""
        with self._lock:
            return self._all | (self._by_device.get(device, {}) if device is not None else {})

    def _compatibility(self, device_name: str, arguments: dict[Any, Any]) -> Any:
        """Return COMPATIBILITY_CHECK, whose argument RUNTIME_REQUIREMENTS has the needs of a model."""
        requirements = plain(arguments.pop(_REQUIREMENTS, ""))
        if not isinstance(requirements, str):
            raise PropertyError(
                f"property {_REQUIREMENTS}: {type(requirements).__name__}; expected text, as a compiled model"
                " reports it"
            )
        properties = self._resolve(device_name, arguments)
        if not requirements:
            return CompatibilityCheck.NOT_APPLICABLE
        from softnpu.plugin.exported import compatibility  # late: few programs ask

        host = compatibility.host_of(self._devices.driver().devices[properties.device])
        supported = compatibility.check(requirements, host)
        return CompatibilityCheck.SUPPORTED if supported else CompatibilityCheck.UNSUPPORTED
