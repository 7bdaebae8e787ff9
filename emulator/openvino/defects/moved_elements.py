"""Replace a BatchToSpace, a Tile and a Transpose in forms of which OpenVINO moves the wrong elements."""

from __future__ import annotations

from typing import Any

import openvino as ov
from openvino import opset13 as ops

from softnpu.emulator.common.graph_edits import numbers, put_behind


def batch_to_space(node: Any) -> bool:
    """Where it does nothing to a later result of an operation, it gives the first result."""
    source = node.input_value(0)
    if not source.get_index():
        return False
    block, *crops = (node.input_value(position).get_node() for position in (1, 2, 3))
    if any(each.get_type_name() != "Constant" for each in (block, *crops)):
        return False
    if (block.data != 1).any() or any(each.data.any() for each in crops):
        return False
    for reader in node.output(0).get_target_inputs():
        reader.replace_source_output(source)
    return True


def tile(node: Any) -> bool:
    """Without repeats it writes nothing, and with more or less than there are dimensions at wrong places.

    One repeat along the last axis says the same as none. The result of a scalar has a dimension then, which
    is taken off again.
    """
    data, repeats = node.get_input_partial_shape(0), node.input_value(1)
    if data.rank.is_dynamic or repeats.get_partial_shape().is_dynamic:
        return False
    count, rank = repeats.get_partial_shape()[0].get_length(), len(data)
    if count == rank and rank:
        return False
    kind = repeats.get_element_type()
    if not count:
        if not rank:
            put_behind(node.output(0), lambda result: ops.reshape(result, numbers([]), False), "scalar")
        repeats, count = ops.constant([1], kind).output(0), 1
    if count > rank > 0:
        wider = ops.unsqueeze(node.input_value(0), numbers(range(count - rank)))
        node.input(0).replace_source_output(wider.output(0))
    elif count < rank:
        repeats = ops.concat([ops.constant([1] * (rank - count), kind), repeats], 0).output(0)
    node.input(1).replace_source_output(repeats)
    return True


def transpose(node: Any) -> bool:
    """Where no order is given, which is the reversed one, its shape is taken for that of a scalar."""
    rank, order = node.get_input_partial_shape(0).rank, node.input_value(1)
    if rank.is_dynamic or order.get_partial_shape() != ov.PartialShape([0]):
        return False
    node.input(1).replace_source_output(numbers(range(rank.get_length() - 1, -1, -1)).output(0))
    return True
