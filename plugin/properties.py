"""Property values as users give them, and as the compiler takes them: text."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any

import msgspec

from softnpu.plugin.errors import PropertyError

_PRIORITIES = {"LOW": "low", "MEDIUM": "normal", "HIGH": "high"}
_SWITCH = {"YES": True, "NO": False, "TRUE": True, "FALSE": False}


class QueueProperties(msgspec.Struct, frozen=True, kw_only=True):
    """What properties say about the command queue of a compiled model."""

    priority: str = "normal"
    turbo: bool = False


def as_text(value: Any) -> str:
    """A property value as OpenVINO writes it: `YES`, `f32`, `LATENCY`, `4`."""
    if isinstance(value, bool):
        return "YES" if value else "NO"
    if hasattr(value, "to_string"):
        return str(value.to_string())
    if isinstance(value, enum.Enum):
        return value.name
    # OpenVINO's enumerations print as Class.VALUE
    return str(value).rpartition(".")[2] if hasattr(value, "name") else str(value)


def split(config: Mapping[str, Any]) -> tuple[dict[str, str], QueueProperties]:
    """Properties for the compiler, and those of the queue. Raises `PropertyError` for a bad value."""
    text = {str(name): as_text(value) for name, value in config.items()}
    priority = text.pop("MODEL_PRIORITY", "MEDIUM").upper()
    if priority not in _PRIORITIES:
        raise _bad("MODEL_PRIORITY", priority, " or ".join(_PRIORITIES))
    turbo = text.pop("NPU_TURBO", "NO").upper()
    if turbo not in _SWITCH:
        raise _bad("NPU_TURBO", turbo, "YES or NO")
    return text, QueueProperties(priority=_PRIORITIES[priority], turbo=_SWITCH[turbo])


def _bad(name: str, value: str, expected: str) -> PropertyError:
    return PropertyError(f"property {name}: value {value!r}; expected {expected}")
