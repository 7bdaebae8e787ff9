"""Replace Gathers of one batch, or along a computed axis, by others that say the same."""

from __future__ import annotations

from typing import Any, Final

from openvino import opset13 as ops

from softnpu.emulator.common.graph_edits import is_fixed, numbers, replace

_END: Final = (1 << 63) - 1


def along_computed_axis(node: Any) -> bool:
    """Replace a Gather along a computed axis by one along a known axis: OpenVINO keeps the first axis.

    Its result has another shape in the next inference, and OpenVINO writes behind its memory.
    """
    gathered = _along_known(node)
    if gathered is None:
        return False
    of_one_batch(gathered)
    return True


def of_one_batch(node: Any) -> bool:
    """With batches, of which there is one, it reads indices behind the last one."""
    shapes = [node.get_input_partial_shape(position) for position in (0, 1)]
    if any(shape.rank.is_dynamic or not len(shape) for shape in shapes):
        return False
    if all(shape[0] != 1 for shape in shapes):
        return False
    batches = _batch_dimensions(node)
    if not batches or any(all(shape[axis] != 1 for shape in shapes) for axis in range(batches)):
        return False
    rows = ops.squeeze(node.input_value(1), numbers(range(batches)))
    replace(node, ops.gather(node.input_value(0), rows, node.input_value(2), 0))
    return True


def _along_known(node: Any) -> Any | None:
    """Replace a Gather along a computed axis by one along a known axis, and return that; None if it was not.

    What lies before the axis becomes one dimension, and so does what lies behind it.
    """
    data, indices, axis = node.input_values()
    ranks = [each.get_partial_shape().rank for each in (data, indices)]
    if is_fixed(axis) or any(rank.is_dynamic for rank in ranks):
        return None  # OpenVINO refuses a rank that is dynamic
    count, batches = ranks[0].get_length(), _batch_dimensions(node)
    shape, given = ops.shape_of(data, "i64"), ops.reshape(ops.convert(axis, "i64"), numbers([1]), False)
    at = ops.select(ops.less(given, numbers([0])), ops.add(given, numbers([count])), given)
    at = ops.select(ops.less(at, numbers([0])), numbers([count]), at)
    first, behind = numbers([0]), ops.add(at, numbers([1]))
    folded = [
        _part(shape, first, numbers([batches])),
        ops.reduce_prod(_part(shape, numbers([batches]), at), first, True),
        # 0 behind the last one: OpenVINO refuses to reshape the data so
        ops.reduce_sum(_part(shape, at, behind), first, True),
        ops.reduce_prod(_part(shape, behind, numbers([_END])), first, True),
    ]
    three = ops.reshape(data, ops.concat(folded, 0), False)
    gathered = ops.gather(three, indices, ops.constant(batches + 1), batches)
    chosen = _part(ops.shape_of(indices, "i64"), numbers([batches]), numbers([_END]))
    sizes = [_part(shape, first, at), chosen, _part(shape, behind, numbers([_END]))]
    rank = count + ranks[1].get_length() - batches - 1
    pattern = ops.reshape(ops.concat(sizes, 0), numbers([rank]), False)  # of a known length
    _name(node, axis=three, shape=pattern)
    replace(node, ops.reshape(gathered, pattern, False))
    return gathered


def _batch_dimensions(node: Any) -> int:
    """Return the batch dimensions of a Gather; a negative number counts from the last of its indices."""
    batches = int(node.get_attributes().get("batch_dims", 0))
    return batches + len(node.get_input_partial_shape(1)) if batches < 0 else batches


def _part(shape: Any, begin: Any, end: Any) -> Any:
    return ops.slice(shape, begin, end, numbers([1]), numbers([0]))


def _name(node: Any, **made: Any) -> None:
    for suffix, each in made.items():
        each.set_friendly_name(f"{node.get_friendly_name()}/{suffix}")
