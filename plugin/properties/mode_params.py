"""`NPU_COMPILATION_MODE_PARAMS`: `optimization-level=1 performance-hint-override=latency`."""

from __future__ import annotations

from typing import Final

from softnpu.plugin.properties.kinds import NotAllowed

LEVEL: Final = "optimization-level"
OVERRIDE: Final = "performance-hint-override"
ALLOWED: Final = {LEVEL: ("0", "1", "2"), OVERRIDE: ("efficiency", "latency")}
DEFAULTS: Final = {LEVEL: "1", OVERRIDE: "efficiency"}


def parse(text: str) -> dict[str, str]:
    """Parse the parameters; missing ones have their defaults. Raises `NotAllowed` with the allowed ones."""
    values: dict[str, str] = {}
    for part in text.split():
        name, _, value = part.partition("=")
        if name not in ALLOWED:
            raise NotAllowed(f"{' or '.join(f'{known}=...' for known in ALLOWED)}, separated by blanks")
        if value not in ALLOWED[name]:
            raise NotAllowed(f"{name}={'|'.join(ALLOWED[name])}")
        if name in values:
            raise NotAllowed(f"{name} once")
        values[name] = value
    return DEFAULTS | values
