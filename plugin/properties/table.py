"""All properties by name."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from softnpu.plugin.errors import PropertyError
from softnpu.plugin.properties.compile_table import COMPILE_PROPERTIES
from softnpu.plugin.properties.device_table import DEVICE_PROPERTIES
from softnpu.plugin.properties.kinds import Names, NotAllowed, plain
from softnpu.plugin.properties.record import Access, Level, Property, Use
from softnpu.plugin.properties.run_table import RUN_PROPERTIES

PropertyPairs = Mapping[Any, Any] | tuple[Any, Any]
"""Values by property name, or one pair, as `ov.properties.enable_profiling(True)` makes it."""


def _check_caching(names: Sequence[str]) -> None:
    missing = sorted(set(cached_names()) - set(names))
    unknown = [name for name in names if name not in PROPERTIES]
    if unknown:
        raise NotAllowed(f"names of properties, which {', '.join(unknown)} is not")
    if missing:
        raise NotAllowed(f"all that change a compiled model, also {', '.join(missing)}")


_CACHING = Property(
    name="CACHING_PROPERTIES",
    kind=Names("names of properties", _check_caching),
    level=Level.CORE,
    use=Use.PLUGIN,
    doc="the properties that OpenVINO's cache builds its key of. Names can be added to those that change a"
    " compiled model, not taken away: the cache would return wrong models",
)

PROPERTIES: dict[str, Property] = {
    record.name: record for record in (*DEVICE_PROPERTIES, *COMPILE_PROPERTIES, *RUN_PROPERTIES, _CACHING)
}
"""Every property by name."""

_BY_ANY_NAME = PROPERTIES | {alias: record for record in PROPERTIES.values() for alias in record.aliases}


def at(level: Level) -> list[Property]:
    """Return the properties of `level`."""
    return [record for record in PROPERTIES.values() if level in record.level]


def cached_names() -> list[str]:
    """Return the properties that change a compiled model."""
    return sorted(record.name for record in PROPERTIES.values() if record.cached)


def find(name: Any) -> Property:
    """Return the property with this name. Raises `PropertyError` with similar names for an unknown one."""
    if not isinstance(name, str):
        raise PropertyError(f"property {name!r}: {type(name).__name__} given; expected its name as text")
    record = _BY_ANY_NAME.get(str(name))
    if record is None:
        import difflib  # late: for errors only

        near = difflib.get_close_matches(name[:100].upper(), _BY_ANY_NAME, n=3)
        raise PropertyError(
            f"property {name}: unknown; expected one of SUPPORTED_PROPERTIES"
            + (f". Did you mean {' or '.join(near)}?" if near else "")
        )
    return record


def find_at(level: Level, name: Any) -> Property:
    """Return the property with this name at `level`. Raises `PropertyError`, which names the other level."""
    record = find(name)
    if level not in record.level:
        here, there = ("the core", "CompiledModel.get_property(name)")
        if level is Level.MODEL:
            here, there = ("a compiled model", "Core.get_property(device, name)")
        raise PropertyError(
            f"property {record.name}: asked of {here}, which does not have it; expected {there}"
        )
    return record


def accept(record: Property, value: Any) -> Any:
    """Convert `value` to the stored type.

    Raises `PropertyError` for a read-only property or an invalid value.
    """
    if record.access is Access.RO:
        raise PropertyError(f"property {record.name}: set to {value!r}; expected no value, it is read-only")
    unwrapped = plain(value)
    try:
        return record.kind.accept(unwrapped)
    except NotAllowed as reason:
        raise PropertyError(
            f"property {record.name}: value {unwrapped!r}; expected {str(reason) or record.kind.allowed}"
        ) from None


def parse(pairs: PropertyPairs) -> dict[str, Any]:
    """Return checked values by property name. Raises `PropertyError`, also for two values of one property."""
    values: dict[str, Any] = {}
    for name, value in property_pairs(pairs):
        record = find(name)
        accepted = accept(record, value)
        if record.name in values and values[record.name] != accepted:
            raise PropertyError(f"property {record.name}: given twice, also as {name}; expected one value")
        values[record.name] = accepted
    return values


def property_pairs(pairs: Any) -> Iterable[tuple[Any, Any]]:
    """Return the (name, value) pairs of `pairs`. Raises `PropertyError` for another type."""
    if isinstance(pairs, Mapping):
        return pairs.items()
    if isinstance(pairs, tuple) and len(pairs) == 2:
        return [pairs]
    raise PropertyError(
        f"properties: {type(pairs).__name__}; expected a mapping of names to values, or one pair"
    )


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
        return accept(PROPERTIES["LOG_LEVEL"], os.environ["OV_NPU_LOG_LEVEL"])
    except (KeyError, PropertyError):
        return None
