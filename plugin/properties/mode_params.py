"""`NPU_COMPILATION_MODE_PARAMS`: `optimization-level=1 compute-layers-with-higher-precision=Sqrt,Power`."""

from __future__ import annotations

from typing import Final

from softnpu.emulator.arithmetic.settings import HIGHER_PRECISION, unknown_layer
from softnpu.plugin.properties.kinds import NotAllowed

LEVEL: Final = "optimization-level"
OVERRIDE: Final = "performance-hint-override"
ALLOWED: Final = {LEVEL: ("0", "1", "2"), OVERRIDE: ("efficiency", "latency")}
DEFAULTS: Final = {LEVEL: "1", OVERRIDE: "efficiency", HIGHER_PRECISION: ""}


def parse(text: str) -> dict[str, str]:
    """Parse the parameters, filling in defaults. Raises `NotAllowed` with the allowed ones."""
    values: dict[str, str] = {}
    for part in text.split():
        name, _, value = part.partition("=")
        if name not in DEFAULTS:
            raise NotAllowed(f"{' or '.join(f'{known}=...' for known in DEFAULTS)}, separated by blanks")
        if name == HIGHER_PRECISION:
            _check_layers(part)
        elif value not in ALLOWED[name]:
            raise NotAllowed(f"{name}={'|'.join(ALLOWED[name])}")
        if name in values:
            raise NotAllowed(f"{name} once")
        values[name] = value
    return DEFAULTS | values


def _check_layers(part: str) -> None:
    unknown = unknown_layer(part)
    if unknown is not None:
        name, near = unknown
        hint = f", not '{name}'; did you mean {near}?" if near else f", not '{name}'"
        raise NotAllowed(f"{HIGHER_PRECISION} with types of operations such as Sqrt,Power{hint}")
