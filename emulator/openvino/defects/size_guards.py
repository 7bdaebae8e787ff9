"""Keep operations inside their tensors, whatever sizes, counts and steps a client gives them.

OpenVINO checks most of them, but not those of the operations here.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from openvino import opset13 as ops

from softnpu.emulator.common.graph_edits import depends_on_inputs
from softnpu.emulator.openvino.defects.guarding import (
    any_of,
    before_levels,
    checked,
    folded,
    of_length,
    refused,
    size_along,
    size_of,
)


def split_lengths(node: Any, data: Any) -> Any:
    """OpenVINO checks the sum of lengths unless one is -1: the others may be longer than the data."""
    lengths, axis = node.input_value(2).get_node(), folded(node.input_value(1))
    shape = data.partial_shape
    if shape.rank.is_dynamic:
        raise refused(node, f"data of shape {shape}", "a known number of dimensions")
    is_constant = axis.get_type_name() == "Constant"
    if lengths.get_type_name() == "Constant":
        given = lengths.data.reshape(-1)
        if (given >= 0).all():
            return data
        if is_constant:
            needed, there = int(given[given >= 0].sum()), shape[int(axis.data.reshape(-1)[0]) % len(shape)]
            if needed <= there.get_min_length():
                return data
            if there.is_static:
                raise refused(node, f"parts of {given.tolist()} of {there} elements", "no more than those")
    counts = ops.maximum(ops.convert(lengths, "i64"), ops.constant(np.int64(0)))
    total = ops.reduce_sum(counts, ops.constant(0), keep_dims=True)
    at = ops.reshape(ops.convert(axis, "i64"), ops.constant([1]), False)
    size = size_along(ops.shape_of(data, "i64"), at, axis.output(0))
    all_and_none = ops.concat([ops.maximum(size, total), ops.constant(np.array([0]))], 0)
    return ops.variadic_split(data, axis, all_and_none).output(0)


def cut_sizes(node: Any, data: Any) -> Any:
    """OpenVINO does not check that a Pad takes away no more than there is, if it adds something as well."""
    pads = [node.input_value(position) for position in (1, 2)]
    constants = [pad.get_node() for pad in pads if pad.get_node().get_type_name() == "Constant"]
    if len(constants) == 2 and all((constant.data >= 0).all() for constant in constants):
        return data
    shape = data.partial_shape
    if len(constants) == 2 and shape.is_static:
        cut = np.maximum(-constants[0].data, -constants[1].data)
        if (cut > np.array(shape.to_shape())).any():
            raise refused(node, f"{cut.tolist()} elements less of {shape}", "no more than there are")
        return data
    if shape.rank.is_dynamic:
        raise refused(node, f"data of shape {shape}", "a known number of dimensions")
    if not len(shape):
        return data
    begin, end = (ops.negative(ops.convert(pad, "i64")) for pad in pads)
    sizes = ops.shape_of(before_levels(data), "i64")
    is_less = ops.reduce_logical_or(
        ops.greater(ops.maximum(begin, end), sizes), ops.constant(0), keep_dims=True
    )
    return of_length(data, 0, ops.add(size_of(data, 0), ops.convert(is_less, "i64")))


def region_channels(node: Any, data: Any) -> Any:
    """OpenVINO reads and writes the channels that the attributes say, however many there are."""
    attributes = node.get_attributes()
    regions = attributes["num"] if attributes["do_softmax"] else len(attributes["mask"])
    needed = int(regions) * (int(attributes["classes"]) + int(attributes["coords"]) + 1)
    shape = data.partial_shape
    if shape.rank.is_dynamic or len(shape) != 4:
        raise refused(node, f"data of shape {shape}", "4 dimensions")
    if shape[1].is_dynamic:
        return ops.reshape(data, ops.constant([0, needed, 0, 0]), special_zero=True).output(0)
    if shape[1].get_length() < needed:
        raise refused(node, f"data of shape {shape}", f"{needed} channels, as its attributes say")
    return data


def output_shape(node: Any, shape: Any) -> Any:
    """OpenVINO keeps the paddings of the first inference, and then writes behind its memory."""
    if depends_on_inputs(shape):
        raise refused(node, "an output shape that inputs give", "one that is constant, or computed of shapes")
    return shape


def block_counts(node: Any, data: Any) -> Any:
    """OpenVINO does not compare the blocks that there are with those that sizes, if inputs, ask for."""
    output, kernel = node.input_value(1), node.input_value(2)
    if not (depends_on_inputs(kernel) or depends_on_inputs(output)):
        return data
    attributes = node.get_attributes()
    strides, dilations, begins, ends = (
        ops.constant(np.array(attributes[name] or [none, none], np.int64))
        for name, none in (("strides", 1), ("dilations", 1), ("pads_begin", 0), ("pads_end", 0))
    )
    size, one = ops.convert(kernel, "i64"), ops.constant(np.int64(1))
    reach = ops.add(ops.multiply(dilations, ops.subtract(size, one)), one)
    free = ops.subtract(ops.add(ops.convert(output, "i64"), ops.add(begins, ends)), reach)
    blocks = ops.add(ops.divide(free, strides), one)
    shape = ops.shape_of(data, "i64")
    first, last = (ops.gather(shape, ops.constant(axis), ops.constant(0)) for axis in (-2, -1))
    axis = ops.constant(0)
    is_negative = any_of(ops.logical_or(ops.less(size, one), ops.less(free, ops.constant(np.int64(0)))))
    elements = ops.maximum(ops.reduce_prod(size, axis, False), one)  # no division by 0
    is_wrong = ops.logical_or(
        ops.not_equal(ops.reduce_prod(blocks, axis, False), last),
        ops.not_equal(ops.mod(first, elements), ops.constant(np.int64(0))),
    )
    return checked(node, data, ops.logical_or(is_negative, is_wrong))
