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
Pairs = Mapping[Any, Any] | tuple[Any, Any]
"""Values by property name, or one pair, as `ov.properties.enable_profiling(True)` makes it."""


class CoreProperties:
    """Properties of one `Core` on the devices that it uses; safe for many threads."""

    def __init__(self, devices: Devices) -> None:
        self._devices = devices
        self._settings = Settings()

    def get(self, device_name: str, name: Any, arguments: Mapping[Any, Any]) -> Any:
        """A property of a device, with `arguments` in place of what was set. Raises `PropertyError`."""
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

    def set(self, device_name: str, pairs: Pairs) -> None:
        """Defaults for later `compile_model` calls on a device, or on all (`NPU`); all of them or none.

        Raises `PropertyError` with the name of the property that cannot be set so.
        """
        values = parse(checked_pairs(pairs))
        number = check_name(device_name)
        device_id = values.get("DEVICE_ID", "")
        device = self._devices.index(device_name, device_id) if number else None
        if values.keys() & {"NPU_TILES", "NPU_MAX_TILES", "DEVICE_ID"}:
            index = self._devices.index(device_name, device_id)
            chosen = self._settings.given(device) | values
            check_tiles(in_effect(chosen, target(chosen, self._devices.driver().devices[index].info)))
        self._settings.set(device, values)
        if "LOG_LEVEL" in values:
            log.set_level(values["LOG_LEVEL"])

    def resolve(self, device_name: str, config: Mapping[Any, Any]) -> tuple[int, ModelProperties]:
        """The index of the device, and what holds on it: `config` first, then what was set, then defaults.

        Raises `PropertyError` for a device that is not there, and for what cannot be in `config`.
        """
        values = parse(checked_pairs(config))
        number = check_name(device_name)
        asked = values.get("DEVICE_ID", "")
        device_id = asked if number or asked else self._settings.given(None).get("DEVICE_ID", "")
        index = self._devices.index(device_name, device_id)
        given = self._settings.given(index) | values
        info = target(given, self._devices.driver().devices[index].info)
        return index, ModelProperties(
            device_name=self._devices.names()[index],
            info=info,
            values=in_effect(given, info) | {"DEVICE_ID": number or device_id},
            given=frozenset(given),
        )


def _split(name: str, arguments: Mapping[Any, Any]) -> tuple[Mapping[Any, Any], str]:
    """The arguments, and apart from them the requirements that COMPATIBILITY_CHECK is asked about."""
    if name != "COMPATIBILITY_CHECK" or _REQUIREMENTS not in arguments:
        return arguments, ""
    requirements = plain(arguments[_REQUIREMENTS])
    if not isinstance(requirements, str):
        raise PropertyError(
            f"property {_REQUIREMENTS}: {type(requirements).__name__} given; expected text, as a"
            " compiled model tells it"
        )
    return {key: value for key, value in arguments.items() if key != _REQUIREMENTS}, requirements


def checked_pairs(pairs: Any) -> Iterable[tuple[Any, Any]]:
    """The (name, value) pairs in `pairs`. Raises `PropertyError` when it is something else."""
    if isinstance(pairs, Mapping):
        return pairs.items()
    if isinstance(pairs, tuple) and len(pairs) == 2:
        return [pairs]
    raise PropertyError(
        f"properties: {type(pairs).__name__} given; expected a mapping of names to values, or one pair"
    )
