"""The findings about a model's numbers in f16."""

from __future__ import annotations

import enum
import math

import msgspec

_MANY = 10.0
"""Errors from here on are given as multiples, not in percent."""


class Rightness(enum.StrEnum):
    """Whether the outputs in f16 match those in f32."""

    RIGHT = "right"
    WRONG = "wrong"
    UNKNOWN = "unknown"


class Trouble(enum.StrEnum):
    """The kinds of trouble of a layer."""

    SATURATES = "saturates"
    OVERFLOWS = "overflows"
    VANISHES = "vanishes"
    CANCELS = "cancels"
    ACCUMULATES = "accumulates"
    INHERITS = "inherits"


class Error(msgspec.Struct, frozen=True):
    """A tensor in f16 against f32. `mean` is the norm of the difference relative to the norm, `peak` the
    largest difference relative to the largest magnitude.
    """

    mean: float
    peak: float

    @property
    def worst(self) -> float:
        """The larger one."""
        return max(self.mean, self.peak)

    def __str__(self) -> str:
        """Format the larger one: `0.12%`, `71%`, `24 times its size`; also one that no number says."""
        if not math.isfinite(self.worst):
            return "infinitely much (infinity or NaN on one side, or f32 has only zeros)"
        if self.worst >= _MANY:
            return f"{self.worst:.3g} times its size"
        return f"{self.worst:.0%}" if self.worst >= 0.1 else f"{100 * self.worst:.2g}%"


class OutputError(msgspec.Struct, frozen=True):
    """An output, the worst of all samples. For integers both errors are the share of differing elements."""

    name: str
    error: Error
    right: bool


class LayerTrouble(msgspec.Struct, frozen=True, kw_only=True):
    """A layer whose f16 result differs from f32, or a constant that f16 cannot hold (it *saturates*).

    `step` is its part if the device executes it in several. `largest` is the largest finite magnitude in
    f32, in sample `sample` at `index` (empty inside a body); `beyond` how many of `elements` are beyond f16.
    `error` is that of its result, `own` that of the layer alone, fed with the f32 results. `reads` are the
    layers that it reads. `inside`: in a body, of which only counts are known. `found` counts the repairs
    before it showed: 0 if seen at once.
    """

    layer: str
    type: str
    trouble: Trouble
    largest: float
    step: str = ""
    index: tuple[int, ...] = ()
    sample: int = 0
    beyond: int = 0
    elements: int = 0
    error: Error | None = None
    own: Error | None = None
    reads: tuple[str, ...] = ()
    inside: bool = False
    found: int = 0


class Largest(msgspec.Struct, frozen=True):
    """The largest finite magnitude of all layers in f32, and its place."""

    layer: str
    value: float
    index: tuple[int, ...]


class Repair(msgspec.Struct, frozen=True, kw_only=True):
    """A list of layers in f32, and the proof: the outputs of the run with it.

    `layers` are in the words of the real compiler, which may have two for a type. `setting` is the value of
    the property NPU_COMPILATION_MODE_PARAMS. `kept` of `operations` operations stay in f32. `smallest` is
    False if the search ended before every shorter list had been tried.
    """

    layers: tuple[str, ...]
    setting: str
    kept: int
    operations: int
    outputs: tuple[OutputError, ...]
    smallest: bool


class Right(msgspec.Struct, frozen=True, kw_only=True):
    """The answer. `obstacle` says why the verdict is unknown.

    `causes` are in execution order, with nothing wrong before them; `inherits` follow from them. `overflow`
    is the outcome of a value beyond f16. `inputs` is the source of the samples; `points` is the number of
    observed roundings; `runs` the number of models executed. `nan` is the number of elements of the outputs
    that are NaN in f32: nothing is said about them.
    """

    verdict: Rightness
    obstacle: str = ""
    overflow: str = ""
    inputs: str = ""
    samples: int = 0
    points: int = 0
    outputs: tuple[OutputError, ...] = ()
    causes: tuple[LayerTrouble, ...] = ()
    inherits: tuple[LayerTrouble, ...] = ()
    without_effect: tuple[LayerTrouble, ...] = ()
    largest: Largest | None = None
    repair: Repair | None = None
    runs: int = 0
    nan: int = 0
    notes: tuple[str, ...] = ()
