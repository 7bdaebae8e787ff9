"""The properties of a `Core`: read from devices and settings, set for all devices or for one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

from softnpu.plugin import log
from softnpu.plugin.devices import Devices, check_name
from softnpu.plugin.errors import NpuError, PropertyError, translated
from softnpu.plugin.properties import (
    DeviceView,
    Level,
    ModelProperties,
    Settings,
    check_tiles,
    find_at,
    in_effect,
    parse,
    read,
    target,
)
from softnpu.plugin.properties.kinds import plain

_REQUIREMENTS = "RUNTIME_REQUIREMENTS"
PropertyPairs = Mapping[Any, Any] | tuple[Any, Any]
"""Values by property name, or one pair, as `ov.properties.enable_profiling(True)` makes it."""


class CoreProperties:
    """Properties of one `Core` and its devices; thread-safe."""

    def __init__(self, devices: Devices) -> None:
        self._devices = devices
        self._settings = Settings()

    def get(self, device_name: str, name: Any, arguments: Mapping[Any, Any]) -> Any:
        """Read a property of a device; `arguments` override what was set. Raises `PropertyError`."""
        record = find_at(Level.CORE, name)
        arguments, requirements = _split(record.name, arguments)
        index, properties = self.resolve(device_name, arguments)
        driver = self._devices.driver()
        view = DeviceView(
            device=driver.devices[index],
            driver=driver,
            properties=properties,
            context=partial(self._devices.context, index),
            requirements=requirements,
        )
        with translated(f"device {device_name}, property {record.name}", NpuError):
            return read(view, record.name)

    def set(self, device_name: str, pairs: PropertyPairs) -> None:
        """Set defaults for later `compile_model` calls on a device, or on all (`NPU`).

        Raises `PropertyError`, naming the property, and then sets nothing.
        """
        values = parse(property_pairs(pairs))
        number = check_name(device_name)
        device_id = values.get("DEVICE_ID", "")
        device = self._devices.index(device_name, device_id) if number else None
        if values.keys() & {"NPU_TILES", "NPU_MAX_TILES", "DEVICE_ID"}:
            index = self._devices.index(device_name, device_id)
            settings = self._settings.of(device) | values
            check_tiles(in_effect(settings, target(settings, self._devices.driver().devices[index].info)))
        self._settings.set(device, values)
        if "LOG_LEVEL" in values:
            log.set_level(values["LOG_LEVEL"])

    def resolve(self, device_name: str, config: Mapping[Any, Any]) -> tuple[int, ModelProperties]:
        """Return the device's index and its properties: from `config`, else as set before, else defaults.

        Raises `PropertyError` for an unknown device, and for an invalid `config`.
        """
        values = parse(property_pairs(config))
        number = check_name(device_name)
        device_id = values.get("DEVICE_ID", "")
        if not number and not device_id:
            device_id = self._settings.of(None).get("DEVICE_ID", "")
        index = self._devices.index(device_name, device_id)
        explicit = self._settings.of(index) | values
        info = target(explicit, self._devices.driver().devices[index].info)
        return index, ModelProperties(
            device_name=self._devices.names()[index],
            info=info,
            values=in_effect(explicit, info) | {"DEVICE_ID": number or device_id},
            explicit=frozenset(explicit),
        )


def _split(name: str, arguments: Mapping[Any, Any]) -> tuple[Mapping[Any, Any], str]:
    """Separate the requirements, an argument of COMPATIBILITY_CHECK, from the other arguments."""
    if name != "COMPATIBILITY_CHECK" or _REQUIREMENTS not in arguments:
        return arguments, ""
    requirements = plain(arguments[_REQUIREMENTS])
    if not isinstance(requirements, str):
        raise PropertyError(
            f"property {_REQUIREMENTS}: {type(requirements).__name__}; expected text, as a compiled model"
            " reports it"
        )
    return {key: value for key, value in arguments.items() if key != _REQUIREMENTS}, requirements


def property_pairs(pairs: Any) -> Iterable[tuple[Any, Any]]:
    """Return the (name, value) pairs of `pairs`. Raises `PropertyError` for another type."""
    if isinstance(pairs, Mapping):
        return pairs.items()
    if isinstance(pairs, tuple) and len(pairs) == 2:
        return [pairs]
    raise PropertyError(
        f"properties: {type(pairs).__name__}; expected a mapping of names to values, or one pair"
    )
