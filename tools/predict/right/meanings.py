"""The meaning of an input, as far as the graph tells it: what reads it, and its name."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import openvino as ov

from softnpu.tools.shared import inputs

_CHANNELS: Final = (1, 3, 4)
_LEAST_SIDE: Final = 16
_BYTES_FROM: Final = 8.0
"""A mean subtracted from a picture, or a divisor, above this implies values of 0 to 255."""
_PICTURES: Final = ("image", "img", "picture", "pixel", "rgb")
_RATES: Final = frozenset({"sr", "sample_rate", "sampling_rate"})
_RATE: Final = 16000
_STEPS: Final = 1000
"""Diffusion models are trained with as many steps."""
_REACH: Final = 8
_MOVING: Final = frozenset({"Reshape", "Squeeze", "Unsqueeze", "Transpose", "Broadcast"})
_THROUGH: Final = frozenset({*_MOVING, "Convert"})
_TO_INDICES: Final = frozenset({*_THROUGH, "Ceiling", "Floor", "Round", "Slice", "StridedSlice"})
_TABLES: Final[dict[str, int]] = {
    "EmbeddingBagOffsetsSum": 0, "EmbeddingBagPackedSum": 0, "EmbeddingSegmentsSum": 0, "Gather": -1,
    "GatherElements": -1,
}  # fmt: skip
"""Operations whose input 1 has indices into input 0, with the axis; -1: it is a setting."""


@dataclass(frozen=True)
class Meaning:
    """One of `token`, `position`, `picture`, `constant`, `number`; tokens are below `limit`, positions too, a
    picture has values up to `limit`, and a constant is `limit`.
    """

    kind: str
    limit: float = 1.0
    channels_last: bool = False


def meaning_of(port: ov.Output, name: str, model: ov.Model) -> Meaning:
    """Return the meaning of an input of `model`."""
    integral = port.element_type.is_integral() and port.element_type != ov.Type.boolean
    rows = [] if inputs.is_fixed(name) else list(_rows(port, _REACH))
    if rows and min(rows) > 0:
        is_position = integral and "position" in name.lower()
        return (
            Meaning("position", min(_longest(model), *rows)) if is_position else Meaning("token", min(rows))
        )
    if integral and name.lower() in _RATES:
        return Meaning("constant", _RATE)
    if integral and "timestep" in name.lower():
        return Meaning("token", _STEPS)
    if integral and "position" in name.lower():
        return Meaning("position", _longest(model))
    return _picture(port, name, integral) or Meaning("number")


def _longest(model: ov.Model) -> int:
    """Return the length of the longest sequence: that of a mask, which also covers what went before."""
    lengths = [1]
    for port in model.inputs:
        shape = port.partial_shape
        if port.element_type.is_integral() and shape.rank.is_static and len(shape) and shape[-1].is_static:
            lengths.append(shape[-1].get_length())
    return max(lengths)


def _rows(port: ov.Output, reach: int, offset: int = 0) -> Iterator[int]:
    """Yield the numbers of indices that an input, with `offset` added, may have in the tables it indexes."""
    for target in port.get_target_inputs():
        node, position = target.get_node(), target.get_index()
        kind = node.get_type_name()
        if kind in _TABLES and position == 1:
            yield from (length - offset for length in _length(node, kind))
        elif kind == "OneHot" and position == 0:
            depth = node.input_value(1).get_node()
            if depth.get_type_name() == "Constant":
                yield int(depth.data.reshape(-1)[0]) - offset
        elif reach and kind in _TO_INDICES and position == 0:
            yield from _rows(node.output(0), reach - 1, offset)
        elif reach and kind == "Add":
            other = node.input_value(1 - position).get_node()
            if other.get_type_name() == "Constant" and other.data.size == 1:
                yield from _rows(node.output(0), reach - 1, offset + int(other.data.reshape(-1)[0]))


def _length(node: ov.Node, kind: str) -> Iterator[int]:
    """Yield the length of the axis of a table."""
    axis = _TABLES[kind]
    if kind == "GatherElements":
        axis = node.get_attributes()["axis"]
    elif kind == "Gather":
        setting = node.input_value(2).get_node()
        if setting.get_type_name() != "Constant":
            return
        axis = int(setting.data.reshape(-1)[0])
    shape = node.input_value(0).partial_shape
    if shape.rank.is_static and shape[axis].is_static:
        yield shape[axis].get_length()


def _picture(port: ov.Output, name: str, integral: bool) -> Meaning | None:
    shape = list(port.partial_shape) if port.partial_shape.rank.is_static else []
    sizes = [each.get_length() if each.is_static else -1 for each in shape]
    if len(sizes) != 4:
        return None
    last = sizes[3] in _CHANNELS and sizes[1] not in _CHANNELS
    channels, sides = (sizes[3], sizes[1:3]) if last else (sizes[1], sizes[2:])
    if channels not in _CHANNELS or min(sides) < _LEAST_SIDE:
        return None
    of_bytes = integral or _is_of_bytes(port)
    if channels == max(_CHANNELS) and not (of_bytes or any(part in name.lower() for part in _PICTURES)):
        return None  # four channels are also those of a latent space
    return Meaning("picture", 255.0 if of_bytes else 1.0, last)


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
