"""Pad with a computed value in two steps: OpenVINO reads the value when the model is loaded."""

from __future__ import annotations

import math
from typing import Any, Final

import numpy as np
import openvino as ov
from openvino import opset13 as ops

from softnpu.emulator.common.graph_edits import replace

_MOST_ONES: Final = 1 << 24
"""Elements of a Pad for which it is worth a constant that says which of them are data."""


def pad(node: Any) -> bool:
    """A value that is computed it reads when it is loaded, or when the shape changes, and not as its type.

    Both are padded with 0, the data and ones of its shape: the ones say where the value belongs.
    """
    data, begin, end, *value = node.input_values()
    if not value or value[0].get_node().get_type_name() == "Constant":
        return False
    if node.get_attributes()["pad_mode"] != "constant":
        return False
    zero = ops.constant(0, data.get_element_type())
    is_data = _padded_ones(data, begin, end)
    replace(node, ops.select(is_data, ops.pad(data, begin, end, "constant", zero), value[0]))
    return True


def _padded_ones(data: Any, begin: Any, end: Any) -> Any:
    """What is data of a Pad: a constant if it can be. Some that OpenVINO computes itself it writes over."""
    pads = [each.get_node() for each in (begin, end)]
    shape = data.get_partial_shape()
    if shape.is_static and all(each.get_type_name() == "Constant" for each in pads):
        sizes, starts, stops = list(shape.to_shape()), *(each.data.tolist() for each in pads)
        # OpenVINO refuses what is left of less than nothing
        padded = [max(0, sum(parts)) for parts in zip(sizes, starts, stops, strict=True)]
        if math.prod(padded) <= _MOST_ONES:
            is_data = np.ones(padded, np.bool_)
            for axis, (size, start) in enumerate(zip(sizes, starts, strict=True)):
                places = np.arange(padded[axis]) - start
                others = [1 if other != axis else -1 for other in range(len(padded))]
                is_data &= ((places >= 0) & (places < size)).reshape(others)
            return ops.constant(is_data)
    none = ops.constant(0, ov.Type.u8)
    ones = ops.broadcast(ops.constant(1, ov.Type.u8), ops.shape_of(data))
    return ops.not_equal(ops.pad(ones, begin, end, "constant", none), none)
