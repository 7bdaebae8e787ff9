"""The inputs of a model: given arrays and pictures, or generated ones that are meaningful to it.

Random bits say little about f16: a picture has areas and edges, a token lies in the vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import openvino as ov

from softnpu.tools.compare import feeds
from softnpu.tools.predict.right.meanings import Meaning, meaning_of
from softnpu.tools.shared import inputs
from softnpu.tools.shared.failures import ToolError, UsageError

Array = npt.NDArray[Any]

COUNT: Final = 2
"""The default number of generated samples."""

_PARTS_OF_BYTES: Final = frozenset({1, 2, 3, 4, 6})
_OCTAVES: Final = 5


def ports_of(model: ov.Model) -> list[feeds.Port]:
    """Return the inputs of a model in the form for files. Raise `ToolError` for a non-numeric one."""
    for port in model.inputs:
        if port.element_type == ov.Type.string or port.element_type.bitwidth in _PARTS_OF_BYTES:
            name = port.node.friendly_name
            raise ToolError(f"input '{name}'", found=port.element_type.get_type_name(), expected="numbers")
    return [
        feeds.Port(
            list(dict.fromkeys([*sorted(port.names), port.node.friendly_name])),
            np.dtype(port.element_type.to_dtype()),
            port.partial_shape,
        )
        for port in model.inputs
    ]


def reshaped(model: ov.Model, given: feeds.Given) -> ov.Model:
    """Return a copy whose open shapes are those of the given arrays."""
    copy = model.clone()
    shapes = {}
    for port, known in zip(copy.inputs, ports_of(copy), strict=True):
        array = next((given.arrays[name] for name in known.names if name in given.arrays), None)
        if array is not None and port.partial_shape.is_dynamic and port.partial_shape.rank.is_static:
            rank = port.partial_shape.rank.get_length()
            shapes[port] = ov.PartialShape(list(array.shape[array.ndim - rank :]))
    if shapes:
        copy.reshape(shapes)
    return copy


def fix_seeds(model: ov.Model) -> None:
    """Make a model draw the same random numbers in every run where it has no seed."""
    for node in model.get_ops():
        if node.get_type_name() == "RandomUniform":
            seeds = node.get_attributes()
            if not seeds["op_seed"] and not seeds["global_seed"]:
                node.set_attribute("op_seed", 1)


def make(model: ov.Model, given: feeds.Given, count: int | None, seed: int) -> feeds.Feeds:
    """Make the samples: as many as the given arrays have, one if all are given, else `count`.

    Raise `ToolError` for mismatches, and for an input of open shape without an array.
    """
    ports = ports_of(model)
    meanings = {
        known.names[0]: meaning_of(port, known.names[0], model)
        for port, known in zip(model.inputs, ports, strict=True)
    }

    def generated(random: np.random.Generator, name: str, type: npt.DTypeLike, shape: Sequence[int]) -> Array:
        return _generated(meanings[name], random, name, np.dtype(type), shape)

    return feeds.make(given, ports, _count(ports, given, count), seed, {}, generated)


def check_used(files: Sequence[str], given: feeds.Given, ports: Sequence[feeds.Port]) -> None:
    """Refuse an archive of which no array is an input's, and two arrays for one input."""
    for port in ports:
        names = [name for name in port.names if name in given.arrays]
        if len(names) > 1:
            raise UsageError(f"--inputs {names[0]} and {names[1]}", found="one input", expected="one array")
    for path in (Path(each) for each in files):
        if path.suffix == ".npz" and path.exists():
            arrays = feeds.read_archive(path)
            if not any(name in arrays for port in ports for name in port.names):
                known = ", ".join(port.names[0] for port in ports)
                raise UsageError(
                    f"--inputs {path}",
                    found=f"no array of an input, but {', '.join(arrays) or 'none'}",
                    expected=f"some of: {known or 'none, the model has no inputs'}",
                )


def _count(ports: Sequence[feeds.Port], given: feeds.Given, count: int | None) -> int:
    lengths, missing = [], False
    for port in ports:
        array = next((given.arrays[name] for name in port.names if name in given.arrays), None)
        missing |= array is None
        rank = port.shape.rank
        if array is not None and rank.is_static and array.ndim == rank.get_length() + 1:
            lengths.append(len(array))
    if lengths:
        return min(lengths) if count is None else min(count, *lengths)
    return (count or COUNT) if missing else 1


# ---------------------------------------------------------------- values


def _generated(
    meaning: Meaning, random: np.random.Generator, name: str, type: np.dtype[Any], shape: Sequence[int]
) -> Array:
    limit = int(meaning.limit)
    if meaning.kind == "token":
        tokens = random.integers(0, limit, shape)
        if tokens.size:  # the last row is the one that f16 would miss first
            tokens.reshape(-1)[random.integers(tokens.size)] = limit - 1
        return tokens.astype(type)
    if meaning.kind == "position":
        length = shape[-1] if shape else 1
        return np.broadcast_to(np.maximum(np.arange(limit - length, limit), 0)[-length:], shape).astype(type)
    if meaning.kind == "constant":
        return np.full(shape, limit, type)
    if meaning.kind == "picture":
        return _picture(random, shape, meaning).astype(type)
    if type.kind == "f":  # a mask of ones attends to everything, also if it is added
        return np.ones(shape, type) if inputs.is_fixed(name) else random.normal(0, 1, shape).astype(type)
    return inputs.random_array(random, name, type, shape)


def _picture(random: np.random.Generator, shape: Sequence[int], meaning: Meaning) -> Array:
    """Generate areas, edges and a little noise: octaves of blocks, the coarsest the strongest."""
    axes = (1, 2) if meaning.channels_last else (2, 3)
    total = random.normal(0, 0.02, shape)
    for octave in range(_OCTAVES):
        coarse = list(shape)
        for axis in axes:
            coarse[axis] = min(shape[axis], 3 << octave)
        blocks = random.random(coarse) - 0.5
        for axis in axes:
            places = np.arange(shape[axis]) * coarse[axis] // shape[axis]
            blocks = np.take(blocks, places, axis=axis)
        total = total + blocks / 2**octave
    return np.clip(0.5 + 0.8 * total, 0, 1) * meaning.limit
