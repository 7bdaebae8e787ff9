"""Support of compilation properties by the stack."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from softnpu.emulator.arithmetic.dialect import is_word
from softnpu.emulator.arithmetic.dialect import words as words_of
from softnpu.emulator.arithmetic.settings import HIGHER_PRECISION, MODE_PARAMS, kept_layers
from softnpu.emulator.platforms import check_platform
from softnpu.emulator.prediction.support.findings import Finding
from softnpu.emulator.prediction.support.rules import RULES

_TILES: Final = "NPU_TILES"
_PRECISION: Final = "INFERENCE_PRECISION_HINT"
_ACCEPTED_PRECISIONS: Final = ("", "f16", "i8")


def check(config: Mapping[str, str], platform: str) -> Iterator[Finding]:
    """Yield the findings on explicitly set properties; defaults are supported."""
    tiles = config.get(_TILES, "")
    if tiles.isascii() and tiles.isdecimal() and int(tiles) > check_platform(platform).tiles:
        yield RULES["configuration.tiles"].finding(f"{_TILES}={tiles} on platform {platform}")
    precision = config.get(_PRECISION, "")
    if precision not in _ACCEPTED_PRECISIONS:
        yield RULES["configuration.precision"].finding(f"{_PRECISION}={precision}")
    # the compiler refuses names of OpenVINO's types: it has words of its own
    unknown = [name for name in kept_layers(config.get(MODE_PARAMS, "")) if not is_word(name)]
    if unknown:
        words = ", ".join(words_of(unknown))
        found = f"{HIGHER_PRECISION} with {', '.join(unknown)}"
        yield RULES["configuration.layers"].finding(
            f"{found} (its words for them: {words})" if words else found
        )
