"""DEVICE_PROPERTIES of `compile_model`: properties by device name, of programs for several devices."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from softnpu.plugin.errors import PropertyError
from softnpu.plugin.properties.kinds import plain

DEVICE_PROPERTIES: Final = "DEVICE_PROPERTIES"


def device_properties(value: Any) -> Mapping[str, Mapping[Any, Any]]:
    """Return the properties of each device, given as mappings or as text: `{NPU:{PERF_COUNT:YES}}`.

    Those of other devices are not checked: a program may have them for devices that it does not use.
    Raises `PropertyError`.
    """
    value = plain(value)
    devices = _parsed(value.strip()) if isinstance(value, str) else value
    if not isinstance(devices, Mapping) or not all(isinstance(each, Mapping) for each in devices.values()):
        raise PropertyError(
            f"property {DEVICE_PROPERTIES}: value {value!r}; expected properties by device name, such as "
            "{'NPU': {'PERF_COUNT': True}}, or as text {NPU:{PERF_COUNT:YES}}"
        )
    return devices


def _parsed(text: str) -> Any:
    """Return nested mappings of texts; None for text that is none."""
    stack: list[dict[str, Any]] = [{}]
    key, word = "", ""
    for at, character in enumerate(text):
        if character == "{":
            inner: dict[str, Any] = {}
            stack[-1][key] = inner
            stack.append(inner)
            key, word = "", ""
        elif character in ",}":
            if word or key:
                stack[-1][key] = word.strip()
            key, word = "", ""
            if character == "}":
                stack.pop()
                if len(stack) == 1:
                    return stack[0][""] if at + 1 == len(text) else None
        elif character == ":" and not key:
            key, word = word.strip(), ""
        else:
            word += character
    return None
