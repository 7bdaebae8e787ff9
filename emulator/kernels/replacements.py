"""The property with which kernels compute standard operations of a model: `Gelu=softnpu.examples.Gelu`."""

from __future__ import annotations

import re
from typing import Final

PROPERTY: Final = "NPU_KERNELS_FOR"
ALLOWED: Final = "TYPE=DOMAIN.NAME of operations and kernels, separated by commas, each type once"
_PAIR: Final = re.compile(r"([A-Za-z][A-Za-z0-9_]*)=([A-Za-z_][A-Za-z0-9_.\-]*\.[A-Za-z_][A-Za-z0-9_]*)")


def parse(text: str) -> dict[str, str] | None:
    """Return kernels by type of operation; None for a text that is no such list."""
    found: dict[str, str] = {}
    for part in text.split(",") if text.strip() else ():
        pair = _PAIR.fullmatch(part.strip())
        if pair is None or pair[1] in found:
            return None
        found[pair[1]] = pair[2]
    return found
