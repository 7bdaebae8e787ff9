"""What `softnpu infer` feeds a model with: arrays from files, or random ones that mean something to it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from softnpu.tools.shared.failures import ToolError

Array = npt.NDArray[Any]

# Inputs of language models that are no token ids: a mask of ones looks at everything, and there are only two
# token types. Ids above 100 would be outside of small vocabularies.
_FIXED_BY_NAME: Final = {"mask": 1, "token_type": 0}
_LARGEST_INTEGER: Final = 100


def parse_shapes(options: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """`NAME=D,D,...` of each `--shape`, by name; `ToolError` for anything else."""
    shapes: dict[str, tuple[int, ...]] = {}
    for name, text in parse_pairs("--shape", options, "NAME=D,D,... such as images=1,3,320,320").items():
        try:
            shape = tuple(int(part) for part in text.split(","))
        except ValueError:
            shape = ()
        if not shape or min(shape) < 1:
            raise ToolError(
                f"--shape {name}",
                found=f"{text!r}",
                expected="positive integers with commas, such as 1,3,320,320",
            )
        shapes[name] = shape
    return shapes


def parse_pairs(option: str, values: Sequence[str], form: str) -> dict[str, str]:
    """`NAME=VALUE` of each use of `option`, by name; `ToolError` for another form or a name twice."""
    pairs: dict[str, str] = {}
    for value in values:
        name, equals, text = value.rpartition("=") if option == "--shape" else value.partition("=")
        if not (name and equals and text):
            raise ToolError(option, found=f"{value!r}", expected=form)
        if name in pairs:
            raise ToolError(f"{option} {name}", found="given twice", expected="once")
        pairs[name] = text
    return pairs


def position(subject: str, name: str, ports: Iterable[Collection[str]]) -> int:
    """The place of the input that has this name, among the names of all inputs; `ToolError` lists these."""
    known = list(ports)
    for place, names in enumerate(known):
        if name in names:
            return place
    shown = ", ".join(next(iter(names)) for names in known) or "none: it has no inputs"
    raise ToolError(subject, found="the model has no such input", expected=f"one of: {shown}")


def load_array(name: str, path: Path) -> Array:
    """The array of a .npy file for input `name`; `ToolError` when it is none, `OSError` when unreadable."""
    with path.open("rb") as file:
        try:
            # numpy's `load` takes anything that is no array for a pickle, and says so
            return np.asarray(np.lib.format.read_array(file, allow_pickle=False))
        except (ValueError, EOFError) as error:
            raise ToolError(
                f"--input {name}, {path}", found=f"no array ({error})", expected="a .npy file"
            ) from error


def check_array(name: str, path: Path, array: Array, dtype: npt.DTypeLike, shape: Sequence[Any]) -> None:
    """Refuse an array that is not what the input takes."""
    expected = np.dtype(dtype)
    if array.dtype != expected or array.shape != tuple(shape):
        raise ToolError(
            f"--input {name}, {path}",
            found=f"{array.dtype} {list(array.shape)}",
            expected=f"{expected} {list(shape)}",
        )


def is_fixed(name: str) -> bool:
    """Whether an input of this name has one value: a mask, or types of tokens."""
    return any(part in name.lower() for part in _FIXED_BY_NAME)


def random_array(random: np.random.Generator, name: str, dtype: npt.DTypeLike, shape: Sequence[int]) -> Array:
    """Values that an input of this name and type could have: floats 0 to 1, integers 0 to 100, both bools."""
    kind = np.dtype(dtype)
    if kind.kind == "f":
        return random.random(shape).astype(kind)
    if kind.kind == "b":
        return random.integers(0, 2, shape).astype(kind)
    for part, value in _FIXED_BY_NAME.items():
        if part in name.lower():
            return np.full(shape, value, kind)
    return random.integers(0, _LARGEST_INTEGER + 1, shape).astype(kind)
