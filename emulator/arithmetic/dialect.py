"""The real compiler's own words for operations, from `dialect.toml`.

Its list of layers in f32 has these words, and it refuses any other. One of OpenVINO's types may have two:
MatMul is FullyConnected where the right operand is a matrix of weights.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Mapping
from typing import Any, Final

RMS_EPSILON: Final = "Add_RMSNorm"
"""The Add between a ReduceMean and a Sqrt."""
BEFORE_RMS: Final = "Add_BeforeRMSNorm"
"""The Add whose result a root mean square normalises."""
REDUCE_SQUARE: Final = "ReduceSquare"
"""Power of 2, ReduceSum and Sqrt in sequence."""
PATTERNS: Final = (RMS_EPSILON, BEFORE_RMS, REDUCE_SQUARE)
"""Words for several operations together."""


def words(names: Iterable[str]) -> tuple[str, ...]:
    """Return the compiler's words for types of OpenVINO, sorted; patterns stay, a type may have none."""
    others: Mapping[str, list[str]] = _table()["words"]
    found = (others.get(name, [name] if name in PATTERNS or is_word(name) else []) for name in names)
    return tuple(sorted({word for each in found for word in each}))


def is_word(name: str) -> bool:
    """Return whether the compiler has an operation of this name, or knows the pattern."""
    return name in _names() or name in PATTERNS


@functools.cache
def _names() -> frozenset[str]:
    return frozenset(_table()["dialect"]["names"])


@functools.cache
def _table() -> dict[str, Any]:
    # late: every client imports this module, few need the table
    import tomllib
    from importlib import resources

    text = resources.files(__package__).joinpath("dialect.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)
