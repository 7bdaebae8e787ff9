"""The inputs of a model: given arrays and pictures, or generated ones that are meaningful to it.

Random bits say little about f16: a picture has areas and edges, a token lies in the vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import openvino as ov

from softnpu.tools.compare import feeds
from softnpu.tools.shared import inputs
from softnpu.tools.shared.failures import ToolError

Array = npt.NDArray[Any]

COUNT: Final = 2
"""The default number of generated samples."""

_PARTS_OF_BYTES: Final = frozenset({1, 2, 3, 4, 6})
_CHANNELS: Final = (1, 3, 4)
_LEAST_SIDE: Final = 16
_BYTES_FROM: Final = 8.0
"""A mean subtracted from a picture, or a divisor, above this implies values of 0 to 255."""
_OCTAVES: Final = 5
_RATES: Final = frozenset({"sr", "sample_rate", "sampling_rate"})
_RATE: Final = 16000
_REACH: Final = 6
_THROUGH: Final = frozenset({"Convert", "Reshape", "Squeeze", "Unsqueeze", "Transpose", "Broadcast"})


def ports_of(model: ov.Model) -> list[feeds.Port]:
    """Return the inputs of a model in the form for files. Raise `ToolError` for a non-numeric one."""
    for port in model.inputs:
        if port.element_type == ov.Type.string or port.element_type.bitwidth in _PARTS_OF_BYTES:
            name = port.node.friendly_name
            raise ToolError(f"input '{name}'", found=port.element_type.get_type_name(), expected="numbers")
    return [
        feeds.Port(
            [*sorted(port.names), port.node.friendly_name],
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
    kinds = {known.names[0]: _kind_of(port) for port, known in zip(model.inputs, ports, strict=True)}

    def generated(random: np.random.Generator, name: str, type: npt.DTypeLike, shape: Sequence[int]) -> Array:
        return _generated(kinds[name], random, name, np.dtype(type), shape)

    return feeds.make(given, ports, _count(ports, given, count), seed, {}, generated)


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


# ---------------------------------------------------------------- meaning of an input


class _Kind:
    """The meaning of an input: `tokens` below `limit`, a picture with values up to `limit`, or numbers."""

    def __init__(self, name: str, limit: float = 1.0, channels_last: bool = False) -> None:
        self.name, self.limit, self.channels_last = name, limit, channels_last


def _kind_of(port: ov.Output) -> _Kind:
    element = port.element_type
    if element.is_integral() and element != ov.Type.boolean:
        rows = list(_tables(port, _REACH))
        if rows:
            return _Kind("tokens", min(rows))
    shape = list(port.partial_shape) if port.partial_shape.rank.is_static else []
    sizes = [each.get_length() if each.is_static else -1 for each in shape]
    if len(sizes) == 4:
        last = sizes[3] in _CHANNELS and sizes[1] not in _CHANNELS
        sides = sizes[1:3] if last else sizes[2:]
        if (last or sizes[1] in _CHANNELS) and min(sides) >= _LEAST_SIDE:
            return _Kind("picture", 255.0 if element.is_integral() or _is_of_bytes(port) else 1.0, last)
    return _Kind("numbers")


def _tables(port: ov.Output, reach: int) -> Iterator[int]:
    """Yield the row counts of the tables that an input indexes."""
    for target in port.get_target_inputs():
        node = target.get_node()
        kind = node.get_type_name()
        if kind == "Gather" and target.get_index() == 1:
            table, axis = node.input_value(0), node.input_value(2).get_node()
            if axis.get_type_name() == "Constant" and table.partial_shape.is_static:
                yield int(table.get_shape()[int(axis.data.reshape(-1)[0])])
        elif kind in _THROUGH and reach and target.get_index() == 0:
            yield from _tables(node.output(0), reach - 1)


def _is_of_bytes(port: ov.Output) -> bool:
    """Return whether the first arithmetic on a picture implies values of 0 to 255."""
    pending = [(port, _REACH)]
    while pending:
        value, reach = pending.pop()
        for target in value.get_target_inputs():
            node = target.get_node()
            kind = node.get_type_name()
            others = [each.get_node() for each in node.input_values() if each != value]
            if kind in {"Subtract", "Divide", "Multiply", "Add"} and len(others) == 1:
                if others[0].get_type_name() != "Constant":
                    continue
                size = float(np.abs(others[0].data.astype(np.float64)).max(initial=0))
                if kind == "Multiply":
                    return 0 < size < 1 / _BYTES_FROM
                return size > _BYTES_FROM
            if kind in _THROUGH and reach and target.get_index() == 0:
                pending.append((node.output(0), reach - 1))
    return False


# ---------------------------------------------------------------- values


def _generated(
    kind: _Kind, random: np.random.Generator, name: str, type: np.dtype[Any], shape: Sequence[int]
) -> Array:
    if kind.name == "tokens" and not inputs.is_fixed(name):
        return random.integers(0, max(1, int(kind.limit)), shape).astype(type)
    if kind.name == "picture":
        return _picture(random, shape, kind).astype(type)
    if type.kind in "iu" and name.lower() in _RATES:
        return np.full(shape, _RATE, type)
    if type.kind == "f":  # a mask of ones attends to everything, also if it is added
        return np.ones(shape, type) if inputs.is_fixed(name) else random.normal(0, 1, shape).astype(type)
    return inputs.random_array(random, name, type, shape)


def _picture(random: np.random.Generator, shape: Sequence[int], kind: _Kind) -> Array:
    """Generate areas, edges and a little noise: octaves of blocks, the coarsest the strongest."""
    axes = (1, 2) if kind.channels_last else (2, 3)
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
    return np.clip(0.5 + 0.8 * total, 0, 1) * kind.limit
