"""Model inputs of `softnpu infer`: arrays from files, or random ones that are meaningful to it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from softnpu.tools.shared.failures import ToolError, UsageError

Array = npt.NDArray[Any]

# Inputs of language models that are not token ids: a mask of ones attends to everything, and there are only
# two token types. Ids above 100 would exceed small vocabularies.
_FIXED_BY_NAME: Final = {"mask": 1, "token_type": 0}
_LARGEST_INTEGER: Final = 100


def parse_shapes(options: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """Parse each `--shape`, `NAME=D,D,...` or `NAME[D,D,...]`, by name; raise `UsageError` for others."""
    shapes: dict[str, tuple[int, ...]] = {}
    pairs = [
        option[:-1].replace("[", "=", 1) if option.endswith("]") and "=" not in option else option
        for option in options
    ]
    for name, text in parse_pairs("--shape", pairs, "NAME=D,D,... such as images=1,3,320,320").items():
        try:
            shape = tuple(int(part) for part in text.split(","))
        except ValueError:
            shape = ()
        if not shape or min(shape) < 1:
            raise UsageError(
                f"--shape {name}",
                found=f"{text!r}",
                expected="positive integers with commas, such as 1,3,320,320",
            )
        shapes[name] = shape
    return shapes


def parse_pairs(option: str, values: Sequence[str], form: str) -> dict[str, str]:
    """Parse each `NAME=VALUE` of `option`, by name; raise `UsageError` for another form, a repeated name."""
    pairs: dict[str, str] = {}
    for value in values:
        name, equals, text = value.rpartition("=") if option == "--shape" else value.partition("=")
        if not (name and equals and text):
            raise UsageError(option, found=f"{value!r}", expected=form)
        if name in pairs:
            raise UsageError(f"{option} {name}", found="given twice", expected="once")
        pairs[name] = text
    return pairs


def parse_config(options: Sequence[str] | None) -> dict[str, str]:
    """Parse each `--config`, `KEY=VALUE`, by key.

    Raise `UsageError`, and `PropertyError` with similar names for a property that there is not.
    """
    from softnpu.emulator.compiler.options import OPTIONS
    from softnpu.plugin.properties import find

    config = parse_pairs("--config", options or (), "KEY=VALUE")
    for name in config:
        if name not in OPTIONS:  # which has those of native programs as well
            find(name)
    return config


def position(subject: str, name: str, ports: Iterable[Collection[str]]) -> int:
    """Return the index of the input with this name; else raise `UsageError` listing all names."""
    known = list(ports)
    for place, names in enumerate(known):
        if name in names:
            return place
    shown = ", ".join(next(iter(names)) for names in known) or "none: it has no inputs"
    raise UsageError(subject, found="the model has no such input", expected=f"one of: {shown}")


def load_array(name: str, path: Path) -> Array:
    """Load the .npy array of input `name`; raise `ToolError` for other formats, `OSError` if unreadable."""
    with path.open("rb") as file:
        try:
            # numpy's `load` mistakes any other file for a pickle, and says so
            return np.asarray(np.lib.format.read_array(file, allow_pickle=False))
        except (ValueError, EOFError) as error:
            raise ToolError(
                f"--input {name}, {path}", found=f"no array ({error})", expected="a .npy file"
            ) from error


def check_array(name: str, path: Path, array: Array, dtype: npt.DTypeLike, shape: Sequence[Any]) -> None:
    """Reject an array that the input does not take."""
    expected = np.dtype(dtype)
    if array.dtype != expected or array.shape != tuple(shape):
        raise ToolError(
            f"--input {name}, {path}",
            found=f"{array.dtype} {list(array.shape)}",
            expected=f"{expected} [{', '.join(map(str, shape))}]",
        )


def is_fixed(name: str) -> bool:
    """Return whether an input of this name has a fixed value: a mask, or token types."""
    return any(part in name.lower() for part in _FIXED_BY_NAME)


def random_array(random: np.random.Generator, name: str, dtype: npt.DTypeLike, shape: Sequence[int]) -> Array:
    """Return plausible values for this name and type: floats 0 to 1, integers 0 to 100, both bools."""
    kind = np.dtype(dtype)
    if kind.kind == "f":
        return random.random(shape).astype(kind)
    if kind.kind == "b":
        return random.integers(0, 2, shape).astype(kind)
    for part, value in _FIXED_BY_NAME.items():
        if part in name.lower():
            return np.full(shape, value, kind)
    return random.integers(0, _LARGEST_INTEGER + 1, shape).astype(kind)
