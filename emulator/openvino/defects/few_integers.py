"""Keep indices into integers of one dimension inside: OpenVINO takes those for a part of a shape.

It checks no index then, and reads and writes where it points. Of two dimensions it does check.
"""

from __future__ import annotations

from typing import Any, Final

from openvino import opset13 as ops

from softnpu.emulator.common.graph_edits import numbers, put_behind, replace

_FEW: Final = 64
"""Integers of a Gather that OpenVINO takes for a part of a shape."""


def gather(node: Any) -> bool:
    """Replace a Gather of few integers in one dimension by one of rows."""
    data, indices = node.input_value(0), node.input_value(1)
    shape = data.get_partial_shape()
    if shape.rank.is_dynamic or len(shape) != 1 or data.get_element_type().is_real():
        return False
    if shape[0].get_min_length() > _FEW or indices.get_partial_shape().rank.is_dynamic:
        return False
    known = indices.get_node()
    size = shape[0].get_min_length()
    if known.get_type_name() == "Constant" and _are_inside(known.data, size, -size):
        return False
    rows = ops.gather(ops.unsqueeze(data, numbers([1])), indices, ops.constant(0))
    replace(node, ops.squeeze(rows, numbers([-1])))
    return True


def scatter_update(node: Any) -> bool:
    """Replace a ScatterUpdate of integers in one dimension by one of rows."""
    data, axis = node.input_value(0), node.input_value(3)
    shape, kind = data.get_partial_shape(), data.get_element_type()
    if shape.rank.is_dynamic or len(shape) != 1 or kind.is_real():
        return False
    indices = node.input_value(1).get_node()
    if indices.get_type_name() == "Constant" and _are_inside(indices.data, shape[0].get_min_length()):
        return False
    last = numbers([-1])
    put_behind(node.output(0), lambda result: ops.squeeze(result, last), "column")
    node.input(0).replace_source_output(ops.unsqueeze(data, last).output(0))
    node.input(2).replace_source_output(ops.unsqueeze(node.input_value(2), last).output(0))
    node.input(3).replace_source_output(ops.constant(0, axis.get_element_type()).output(0))
    return True


def _are_inside(indices: Any, size: int, first: int = 0) -> bool:
    return not indices.size or (indices.min() >= first and indices.max() < size)
