"""Support of compilation properties by the stack."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from softnpu.emulator.platforms import check_platform
from softnpu.emulator.prediction.support.findings import Finding
from softnpu.emulator.prediction.support.rules import RULES

_TILES: Final = "NPU_TILES"
_PRECISION: Final = "INFERENCE_PRECISION_HINT"
_TAKEN: Final = ("", "f16", "i8")


def check(config: Mapping[str, str], platform: str) -> Iterator[Finding]:
    """Yield the findings on explicitly set properties; defaults are supported."""
    tiles = config.get(_TILES, "")
    if tiles.isascii() and tiles.isdecimal() and int(tiles) > check_platform(platform).tiles:
        yield RULES["configuration.tiles"].finding(f"{_TILES}={tiles} on platform {platform}")
    precision = config.get(_PRECISION, "")
    if precision not in _TAKEN:
        rule = "configuration.f32" if precision == "f32" else "configuration.precision"
        yield RULES[rule].finding(f"{_PRECISION}={precision}")
