"""Keep operations inside their tensors, whatever indices a client gives them.

With an index that the model does not allow they read or write memory of the engine, in which other sessions
compute. A wrong index becomes one that OpenVINO itself refuses, or, where it refuses none, the nearest right
one.
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
    constant,
    dimensions,
    outside,
    rank_of,
    refused,
    size_along,
    type_name,
    widened,
)

_SEGMENTS_AND_COUNT = 3
_MOST = np.iinfo(np.int64).max


def gather_nd(node: Any, indices: Any) -> Any:
    """Each number into its dimension: the last one of `indices` says how many of them there are."""
    if indices.partial_shape.rank.is_dynamic:
        raise refused(node, "indices of any rank", "a known number of dimensions")
    indices, is_signed = widened(indices), indices.element_type.is_signed()
    batch = int(node.get_attributes().get("batch_dims", 0))
    count = indices.partial_shape[-1]
    stop = batch + count.get_length() if count.is_static else None
    limits = dimensions(node.input_value(0), indices, batch, stop)
    if stop is None:
        last = ops.gather(ops.shape_of(indices), ops.constant([-1]), ops.constant(0))
        limits = ops.slice(limits, ops.constant([0]), last, ops.constant([1])).output(0)
    rank = len(indices.partial_shape)
    if rank > 1:  # OpenVINO drops dimensions of 1 from a minimum of different ranks
        limits = ops.unsqueeze(limits, ops.constant(list(range(rank - 1))))
    last = ops.subtract(limits, constant(indices, 1))
    first = ops.negative(limits) if is_signed else constant(indices, 0)
    return ops.maximum(ops.minimum(indices, last), first).output(0)


def scatter_elements(node: Any, indices: Any) -> Any:
    """OpenVINO checks the upper bound alone, and not that there are no more indices than elements."""
    has_room = _has_room(node)
    data = before_levels(node.input_value(0))
    if has_room is False:
        shapes = f"indices of shape {indices.partial_shape} for data of shape {data.partial_shape}"
        raise refused(node, shapes, "no more indices than elements along other axes than its own")
    indices, is_signed = widened(indices), indices.element_type.is_signed()
    shape = ops.shape_of(data, "i64")
    axis = ops.reshape(ops.convert(node.input_value(3), "i64"), ops.constant([1]), False)
    size = ops.convert(size_along(shape, axis, node.input_value(3)), type_name(indices))
    # the largest numbers without a sign have one for OpenVINO, which computes in i32
    is_wrong = ops.less(indices, ops.negative(size) if is_signed else constant(indices, 0))
    if has_room is None:
        is_wrong = ops.logical_or(is_wrong, _lacks_room(shape, ops.shape_of(indices, "i64"), axis))
    return ops.select(is_wrong, size, indices).output(0)


def _lacks_room(data: Any, indices: Any, axis: Any) -> Any:
    """Whether `indices` is larger than `data` along any other axis, given their shapes."""
    rank = ops.shape_of(data, "i64")
    numbers = ops.range(ops.constant(0), ops.squeeze(rank, ops.constant(0)), ops.constant(1), "i64")
    is_other = ops.not_equal(ops.mod(ops.add(axis, rank), rank), numbers)
    is_more = ops.logical_and(is_other, ops.greater(indices, data))
    return ops.reduce_logical_or(is_more, ops.constant(0), keep_dims=False)


def _has_room(node: Any) -> bool | None:
    """Whether there are elements for all indices along the other axes; None if known only at run time."""
    data, indices = node.get_input_partial_shape(0), node.get_input_partial_shape(1)
    axis = node.input_value(3).get_node()
    if data.rank.is_dynamic or indices.rank.is_dynamic or axis.get_type_name() != "Constant":
        return None
    if not len(data):
        raise refused(node, "data without dimensions", "an axis to scatter along")
    along = int(axis.data.reshape(-1)[0]) % len(data)
    sizes = [pair for at, pair in enumerate(zip(data, indices, strict=True)) if at != along]
    if any(theirs.get_min_length() > ours.get_max_length() >= 0 for ours, theirs in sizes):
        return False
    is_known = all(0 <= theirs.get_max_length() <= ours.get_min_length() for ours, theirs in sizes)
    return True if is_known else None


def ctc_labels(node: Any, labels: Any) -> Any:
    classes = dimensions(node.input_value(0), labels, 2, 3)
    last = ops.subtract(classes, constant(labels, 1))
    return ops.maximum(ops.minimum(labels, last), constant(labels, 0)).output(0)


def blanks(node: Any, blank: Any) -> Any:
    classes = dimensions(node.input_value(0), blank, 2, 3)
    return checked(node, blank, outside(blank, constant(blank, 0), classes))


def tree_lengths(node: Any, lengths: Any) -> Any:
    """OpenVINO writes nothing where a length is below 1: such a sequence has end tokens only."""
    result = node.output(0)
    readers = list(result.get_target_inputs())
    column = ops.unsqueeze(lengths, ops.constant([0, 2]))
    some = ops.greater(column, constant(lengths, 0))
    written = ops.select(some, result, node.input_value(3)).output(0)
    written.node.set_friendly_name(f"{node.friendly_name}/written")
    for reader in readers:
        reader.replace_source_output(written)
    return ops.maximum(lengths, constant(lengths, 1)).output(0)


def segments(node: Any, numbers: Any) -> Any:
    """OpenVINO writes where a negative one points, and without a count behind the last one."""
    is_wrong = any_of(ops.less(numbers, constant(numbers, 0)))
    if node.get_input_size() < _SEGMENTS_AND_COUNT:
        last = ops.slice(numbers, ops.constant([-1]), ops.constant([_MOST]), ops.constant([1]))
        is_wrong = ops.logical_or(is_wrong, any_of(ops.greater(numbers, last)))
    return checked(node, numbers, is_wrong)


def image_numbers(node: Any, numbers: Any) -> Any:
    images, wide = dimensions(node.input_value(0), None, 0, 1), ops.convert(numbers, "i64").output(0)
    return checked(node, numbers, outside(wide, constant(wide, 0), images))


def rolled_axes(node: Any, axes: Any) -> Any:
    rank = rank_of(node.input_value(0), axes)
    return checked(node, axes, outside(axes, ops.negative(rank), rank))


def transform_axes(node: Any, axes: Any) -> Any:
    """Refuse the last axis too, that of complex numbers."""
    if not depends_on_inputs(axes):
        return axes
    last = ops.subtract(rank_of(node.input_value(0), axes), constant(axes, 1))
    return checked(node, axes, outside(axes, ops.negative(last), last))


def box_counts(node: Any, counts: Any) -> Any:
    """OpenVINO takes as many boxes for each image as are said, whether there are so many or not."""
    there = dimensions(node.input_value(0), None, 1, 2)
    wide = ops.convert(counts, "i64").output(0)
    is_wrong = ops.greater(ops.reduce_sum(wide, ops.constant([0]), True), there)
    return checked(node, counts, ops.logical_or(any_of(is_wrong), any_of(ops.less(wide, constant(wide, 0)))))


def row_numbers(node: Any, indices: Any) -> Any:
    """The first number of each index is its row; the second input has the count of rows."""
    rows = ops.slice(indices, ops.constant([0]), ops.constant([1]), ops.constant([1]), ops.constant([1]))
    count = ops.slice(node.input_value(1), ops.constant([0]), ops.constant([1]), ops.constant([1]))
    return checked(node, indices, outside(rows, constant(indices, 0), ops.convert(count, type_name(indices))))


def roi_batch(node: Any, rois: Any) -> Any:
    """The first number of each region is its image. NaN and negative ones become two too many.

    One too many OpenVINO takes.
    """
    image, region = (
        ops.slice(rois, ops.constant([begin]), ops.constant([end]), ops.constant([1]), ops.constant([1]))
        for begin, end in ((0, 1), (1, 5))
    )
    images = ops.convert(dimensions(node.input_value(0), None, 0, 1), type_name(rois))
    allowed = ops.logical_and(ops.greater_equal(image, constant(rois, 0)), ops.less(image, images))
    too_many = ops.add(images, constant(rois, 1))
    return ops.concat([ops.select(allowed, image, too_many), region], 1).output(0)
