"""Test a kernel against a numpy function, with random shapes and values, in all its types."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np

from softnpu.emulator.kernels.client import LoadedKernel
from softnpu.emulator.kernels.description import Description, Implementation, Value, has_kind
from softnpu.emulator.kernels.errors import Failure, KernelError
from softnpu.tools.kernel.arrays import Array, ArrayCall, dtype
from softnpu.tools.shared.failures import ToolError, UsageError
from softnpu.tools.shared.inputs import parse_pairs

Reference = Callable[..., Any]
Extents = Mapping[str, tuple[int | str, ...]]
"""Shapes of inputs by name; "?": a random extent; another text: one that all have where it stands."""
_EXTENTS: Final = (0, 1, 2, 3, 4, 5, 7, 8, 16, 17, 31)
_MOST_RANK: Final = 4
_TOLERANCES: Final = {"f16": (1e-3, 1e-3), "f32": (1e-5, 1e-6), "f64": (1e-12, 1e-14)}


class Tolerance(msgspec.Struct, frozen=True):
    """Allowed differences; None: those of the type."""

    relative: float | None = None
    absolute: float | None = None

    def of(self, element_type: str) -> tuple[float, float]:
        """Return them for a type; integers have none."""
        usual = _TOLERANCES.get(element_type, (0.0, 0.0))
        return (
            usual[0] if self.relative is None else self.relative,
            usual[1] if self.absolute is None else self.absolute,
        )


class Result(msgspec.Struct, frozen=True):
    """How an implementation did: runs, the largest difference, and what was wrong, if anything."""

    implementation: str
    types: list[str]
    runs: int
    largest_difference: float
    wrong: str = ""


def load_reference(text: str) -> Reference:
    """Load FILE.py:FUNCTION."""
    path, _, name = text.rpartition(":")
    specification = (
        importlib.util.spec_from_file_location("reference", path) if path.endswith(".py") else None
    )
    if specification is None or specification.loader is None or not Path(path).is_file():
        raise UsageError("--against", found=f"{text!r}", expected="FILE.py:FUNCTION, of an existing file")
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    function = getattr(module, name, None)
    if not callable(function):
        raise UsageError("--against", found=f"no function {name!r} in {path}", expected="one")
    return function  # type: ignore[no-any-return]


def parse_extents(options: Sequence[str]) -> Extents:
    """Parse each `--shape`, NAME=D,D,... in which ? is a random extent, and a name a shared one."""
    shapes = {}
    for name, text in parse_pairs("--shape", options, "NAME=D,D,... such as x=1,?,8").items():
        parts = [part.strip() for part in text.split(",")]
        if not all(part == "?" or part.isdecimal() or part.isidentifier() for part in parts):
            expected = "numbers, names and ? with commas"
            raise UsageError(f"--shape {name}", found=f"{text!r}", expected=expected)
        shapes[name] = tuple(int(part) if part.isdecimal() else part for part in parts)
    return shapes


def parse_attributes(description: Description, options: Sequence[str]) -> dict[str, Value]:
    """Parse each `--attribute`, NAME=VALUE; a list has commas."""
    kinds = {each.name: each.kind for each in description.attributes}
    values: dict[str, Value] = {}
    for name, text in parse_pairs("--attribute", options, "NAME=VALUE").items():
        kind = kinds.get(name, "text")
        parts = text.split(",") if kind.endswith("s") else [text]
        try:
            found: list[Any] = parts if kind == "text" else [msgspec.json.decode(part) for part in parts]
        except msgspec.DecodeError:
            found = []
        value = found if kind.endswith("s") else (found or [None])[0]
        if name in kinds and not has_kind(value, kind):
            raise UsageError(f"--attribute {name}", found=f"{text!r}", expected=kind)
        values[name] = value
    return values


def check(
    kernel: LoadedKernel,
    reference: Reference,
    extents: Extents,
    attributes: dict[str, Value],
    *,
    rounds: int,
    seed: int,
    tolerance: Tolerance,
) -> Iterator[Result]:
    """Yield the result of each implementation."""
    unknown = sorted(set(extents) - set(kernel.description.inputs))
    if unknown:
        known = ", ".join(kernel.description.inputs)
        raise UsageError(f"--shape {unknown[0]}", found="no such input", expected=f"one of: {known}")
    for implementation in kernel.description.implementations:
        random = np.random.default_rng(seed)
        runs, largest, wrong = 0, 0.0, ""
        while runs < rounds and not wrong:
            shapes = _shapes(random, kernel.description.inputs, extents)
            difference, wrong = _compare(
                kernel, reference, implementation, shapes, attributes, random, tolerance
            )
            runs, largest = runs + 1, max(largest, difference)
        types = [*implementation.inputs, *implementation.outputs]
        yield Result(implementation.run, types, runs, largest, wrong)


def _shapes(
    random: np.random.Generator, names: Sequence[str], extents: Extents
) -> dict[str, tuple[int, ...]]:
    """Return random shapes; inputs without a given one share theirs."""
    common = tuple(int(random.choice(_EXTENTS)) for _ in range(random.integers(1, _MOST_RANK + 1)))
    shared: dict[str, int] = {}

    def number(extent: int | str) -> int:
        if isinstance(extent, int):
            return extent
        drawn = int(random.choice(_EXTENTS)) if extent not in shared else shared[extent]
        return drawn if extent == "?" else shared.setdefault(extent, drawn)

    return {name: tuple(number(extent) for extent in extents.get(name, common)) for name in names}


def values(random: np.random.Generator, element_type: str, shape: tuple[int, ...]) -> Array:
    """Return random values of a type."""
    kind = np.dtype(dtype(element_type))
    if kind.kind == "f":
        return (random.standard_normal(shape) * 3).astype(kind)
    return random.integers(0 if kind.kind in "bu" else -8, 2 if kind.kind == "b" else 9, shape).astype(kind)


def _compare(
    kernel: LoadedKernel,
    reference: Reference,
    implementation: Implementation,
    shapes: Mapping[str, tuple[int, ...]],
    attributes: dict[str, Value],
    random: np.random.Generator,
    tolerance: Tolerance,
) -> tuple[float, str]:
    """Return the largest difference of a run, and what is wrong."""
    described = kernel.description
    kinds = list(zip(implementation.inputs, shapes.values(), strict=True))
    arrays = [values(random, kind, shape) for kind, shape in kinds]
    names = (each.name for each in described.attributes)
    given = dict(zip(names, described.complete(attributes), strict=True))
    where = f"inputs {', '.join(f'{name} {list(shape)}' for name, shape in shapes.items())}"
    try:
        with ArrayCall(kernel, kinds, attributes) as call:
            for place, array in zip(call.inputs, arrays, strict=True):
                place[...] = array
            found = [each.copy() for each in call.run()]
    except KernelError as error:
        if error.failure is Failure.RETURNED:  # it may be right, for such shapes
            hint = f"it had {where}: --shape fixes them"
            raise KernelError(error.failure, msgspec.structs.replace(error.info, hint=hint)) from None
        raise
    try:
        expected = reference(*arrays, **given)
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise ToolError("reference", found=reason, expected="arrays", hint=where) from error
    expected = expected if isinstance(expected, tuple | list) else (expected,)
    if len(expected) != len(found):
        raise ToolError("reference", found=f"{len(expected)} results", expected=f"{len(found)}")
    largest = 0.0
    for name, kind, mine, wanted in zip(
        described.outputs, implementation.outputs, found, expected, strict=True
    ):
        right = np.asarray(wanted)
        if mine.shape != right.shape:
            return largest, f"output {name} {list(mine.shape)}; expected {list(right.shape)}, {where}"
        relative, absolute = tolerance.of(kind)
        close = np.isclose(mine, right.astype(mine.dtype), rtol=relative, atol=absolute, equal_nan=True)
        with np.errstate(invalid="ignore"):
            differences = np.abs(mine.astype(np.float64) - right.astype(np.float64))
        largest = max(largest, float(np.nanmax(differences, initial=0.0)))
        if not close.all():
            at = tuple(int(each) for each in np.argwhere(~close)[0])
            wrong = f"output {name}{list(at)} is {mine[at]}; expected {right[at]}, {where}"
            return largest, wrong
    return largest, ""
