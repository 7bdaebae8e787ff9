"""Compilation settings of a model in f16: the result of an overflow, and the layers kept in f32.

The layers are named as for the real compiler, in NPU_COMPILATION_MODE_PARAMS:
`compute-layers-with-higher-precision=Sqrt,Power,ReduceMean,Add_RMSNorm`. A name is an operation of the
compiler's dialect, or one of three patterns (`npu_compiler`, `convert_precision_to_fp.cpp`); here also one of
OpenVINO's types, which the real compiler refuses where it has another word.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from softnpu.emulator.arithmetic import dialect
from softnpu.emulator.arithmetic.operation_types import ALIASES, TYPES

PRECISION: Final = "f16"
OVERFLOW: Final = "NPU_F16_OVERFLOW"
SATURATE: Final = "SATURATE"
INFINITY: Final = "INFINITY"
MODE_PARAMS: Final = "NPU_COMPILATION_MODE_PARAMS"
HIGHER_PRECISION: Final = "compute-layers-with-higher-precision"

_INTERNAL: Final = "internal_"


class Arithmetic(msgspec.Struct, frozen=True):
    """The arithmetic of one model in f16. `kept`: types of operations, and patterns, that stay in f32."""

    saturates: bool = True
    kept: frozenset[str] = frozenset()

    @classmethod
    def of(cls, config: Mapping[str, str]) -> Arithmetic:
        """Return the arithmetic of a checked configuration."""
        names = kept_layers(config.get(MODE_PARAMS, ""))
        return cls(config.get(OVERFLOW, SATURATE) != INFINITY, frozenset(ALIASES.get(n, n) for n in names))


def kept_layers(params: str) -> tuple[str, ...]:
    """Return the layers kept in f32 by a text of NAME=VALUE parameters, sorted and unique."""
    names: set[str] = set()
    for part in params.split():
        name, _, value = part.partition("=")
        if name == HIGHER_PRECISION:
            names |= {layer for layer in value.split(",") if layer and not layer.startswith(_INTERNAL)}
    return tuple(sorted(names))


def unknown_layer(params: str) -> tuple[str, str] | None:
    """Return the first unknown layer name, and similar known ones; None if all are known."""
    for name in kept_layers(params):
        if name not in TYPES and name not in ALIASES and not dialect.is_word(name):
            known = [*TYPES, *ALIASES, *dialect.PATTERNS]
            folded = {each.lower(): each for each in known}
            import difflib  # late: for errors only

            near = difflib.get_close_matches(name[:100].lower(), folded, n=3)
            return name, " or ".join(folded[each] for each in near)
    return None
