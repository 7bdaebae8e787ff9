"""How far two tensors of one type may differ and still count as the same result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from softnpu.tools.shared.failures import UsageError
from softnpu.tools.shared.inputs import parse_pairs

FLOOR: Final = 0.1
"""Relative differences use at least this share of the largest magnitude: far smaller values are rounding of
sums with large terms.
"""

_ABSOLUTE: Final = {"f64": 0.0, "f32": 1e-7, "f16": 1e-4, "bf16": 1e-3}
_RELATIVE: Final = {"f64": 1e-4, "f32": 1e-4, "f16": 1e-2, "bf16": 1e-1}
# from the finest to the coarsest
_FLOATS: Final = ("f64", "f32", "f16", "bf16")


@dataclass(frozen=True)
class Tolerances:
    """The largest absolute and relative difference by element type; unlisted types must be equal.

    A tensor is in tolerance if its largest absolute difference is at most `absolute`, or its largest relative
    one at most `relative`. `arithmetic` is the coarsest type that either side computes in: a tensor of a
    finer type is judged by that.
    """

    absolute: Mapping[str, float] = field(default_factory=lambda: dict(_ABSOLUTE))
    relative: Mapping[str, float] = field(default_factory=lambda: dict(_RELATIVE))
    arithmetic: str = "f32"

    def of(self, type: str) -> tuple[float, float]:
        """Return the absolute and relative tolerance of tensors of this type."""
        judged = coarsest(type, self.arithmetic) if type in _FLOATS else type
        return self.absolute.get(judged, 0.0), self.relative.get(judged, 0.0)


def coarsest(*types: str) -> str:
    """Return the type with the fewest mantissa bits; for other types the first."""
    floats = [each for each in types if each in _FLOATS]
    return max(floats, key=_FLOATS.index) if floats else types[0]


def parse(atol: Sequence[str], rtol: Sequence[str], *arithmetic: str) -> Tolerances:
    """Parse `VALUE` (every float type) and `TYPE=VALUE` of `--atol` and `--rtol` over the defaults."""
    return Tolerances(
        _parsed("--atol", atol, _ABSOLUTE), _parsed("--rtol", rtol, _RELATIVE), coarsest(*arithmetic)
    )


def _parsed(option: str, texts: Sequence[str], defaults: Mapping[str, float]) -> dict[str, float]:
    values = dict(defaults)
    general = [text for text in texts if "=" not in text]
    if len(general) > 1:
        raise UsageError(option, found=f"{general[1]!r} after {general[0]!r}", expected="one without a type")
    for text in general:
        values.update(dict.fromkeys(_FLOATS, _number(option, text)))
    named = [text for text in texts if "=" in text]
    for name, text in parse_pairs(option, named, "VALUE, or TYPE=VALUE such as f16=1e-3").items():
        values[name] = _number(f"{option} {name}", text)
    return values


def _number(option: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not value >= 0:
        raise UsageError(option, found=f"{text!r}", expected="a number that is not negative, such as 1e-4")
    return value
