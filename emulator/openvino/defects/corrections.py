"""Replace operations that OpenVINO's CPU runtime (2026.4) computes wrongly by others that say the same.

What each of them does wrong stands with its correction. They read memory that is not theirs, leave parts of a
result as they were, or take another result for it: in the engine that is memory of other sessions.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import numpy as np
import openvino as ov
from openvino import opset13 as ops

from softnpu.emulator.common import packed_types
from softnpu.emulator.common.graph_edits import numbers, put_behind, replace
from softnpu.emulator.common.model_bodies import all_bodies
from softnpu.emulator.openvino.defects import computed_arguments, empty_tensors, sequence_lengths

_MOST_ONES: Final = 1 << 24
"""Elements of a Pad for which it is worth a constant that says which of them are data."""

_HALF: Final = 2
"""Bytes of f16 and bf16."""
_FEW: Final = 64
"""Integers of a Gather that OpenVINO takes for a part of a shape."""


def correct(model: ov.Model) -> bool:
    """Replace such operations in a model that was just read, and in its bodies.

    Returns whether it had some.
    """
    found = packed_types.widen(model)
    found |= sequence_lengths.heed(model)
    for part in [model, *all_bodies(model)]:
        is_replaced = empty_tensors.replace(part)
        if [node for node in part.get_ordered_ops() if _correct(node)] or is_replaced:
            part.validate_nodes_and_infer_types()
            found = True
    return found


def _correct(node: Any) -> bool:
    correction = _CORRECTIONS.get(node.get_type_name())
    return correction is not None and correction(node)


# ---------------------------------------------------------------- one operation each


def _gather(node: Any) -> bool:
    along_known = computed_arguments.gather(node)
    if along_known is not None:
        _gather_of_one_batch(along_known)
        return True
    return _gather_of_one_batch(node) or _gather_of_few(node)


def _gather_of_one_batch(node: Any) -> bool:
    """With batches, of which there is one, it reads indices behind the last one."""
    shapes = [node.get_input_partial_shape(position) for position in (0, 1)]
    if any(shape.rank.is_dynamic or not len(shape) for shape in shapes):
        return False
    if all(shape[0] != 1 for shape in shapes):
        return False
    batches = computed_arguments.batch_dimensions(node)
    if not batches or any(all(shape[axis] != 1 for shape in shapes) for axis in range(batches)):
        return False
    rows = ops.squeeze(node.input_value(1), numbers(range(batches)))
    replace(node, ops.gather(node.input_value(0), rows, node.input_value(2), 0))
    return True


def _gather_of_few(node: Any) -> bool:
    """Of few integers in one dimension it checks no index, and reads where it points."""
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


def _batch_to_space(node: Any) -> bool:
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


def _tile(node: Any) -> bool:
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


def _pad(node: Any) -> bool:
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


def _scatter_update(node: Any) -> bool:
    """Of integers in one dimension it checks no index: of two dimensions it does."""
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


def _transpose(node: Any) -> bool:
    """Where no order is given, which is the reversed one, its shape is taken for that of a scalar."""
    rank, order = node.get_input_partial_shape(0).rank, node.input_value(1)
    if rank.is_dynamic or order.get_partial_shape() != ov.PartialShape([0]):
        return False
    node.input(1).replace_source_output(numbers(range(rank.get_length() - 1, -1, -1)).output(0))
    return True


def _loop(node: Any) -> bool:
    """What computes with a dynamic result may look for it where it was before memory moved.

    That happens when another part of the model gets another size. A Slice of all of it is looked up anew.
    """
    found = False
    for output in node.outputs():
        shape = output.get_partial_shape()
        axes = [] if shape.rank.is_dynamic else [at for at, size in enumerate(shape) if size.is_dynamic]
        if axes and any(one.get_node().get_type_name() != "Result" for one in output.get_target_inputs()):
            put_behind(output, partial(_whole, axes[0]), "all")
            found = True
    return found


def _read_value(node: Any) -> bool:
    """A dynamic state of 16 bits that is an output as it is gets mixed up among the requests of a model."""
    output = node.output(0)
    shape, readers = output.get_partial_shape(), output.get_target_inputs()
    results = [reader for reader in readers if reader.get_node().get_type_name() == "Result"]
    if not results or shape.rank.is_dynamic or shape.is_static or output.get_element_type().size != _HALF:
        return False
    axis = next(at for at, size in enumerate(shape) if size.is_dynamic)
    copied = _whole(axis, output)
    copied.set_friendly_name(f"{node.get_friendly_name()}/all")
    for reader in results:
        reader.replace_source_output(copied.output(0))
    return True


def _whole(axis: int, result: Any) -> Any:
    """Return a Slice of all of it, which OpenVINO does not see through: the axis is dynamic."""
    at = numbers([axis])
    size = ops.gather(ops.shape_of(result), at, ops.constant(0))
    return ops.slice(result, numbers([0]), size, numbers([1]), at)


_CORRECTIONS: dict[str, Callable[[Any], bool]] = {
    "Gather": _gather,
    "BatchToSpace": _batch_to_space,
    "Tile": _tile,
    "Pad": _pad,
    "ReadValue": _read_value,
    "ScatterUpdate": _scatter_update,
    "Slice": computed_arguments.slice_,
    "SliceScatter": computed_arguments.slice_scatter,
    "Transpose": _transpose,
    "TensorIterator": _loop,
    "Loop": _loop,
}
