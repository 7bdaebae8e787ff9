"""Replace operations with axes or bounds that are computed, of which OpenVINO keeps the first.

Its CPU runtime (2026.4) does not see that they have changed since the first inference: a Gather and a Slice
give a result of another shape, and write behind its memory; a SliceScatter of static shapes writes to the
first place for good.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from openvino import opset13 as ops

from softnpu.emulator.common.graph_edits import is_fixed, numbers, replace

_END: Final = (1 << 63) - 1
_SLICED_AXES: Final = 4
"""How many bounds there are with axes, which are optional."""


def gather(node: Any) -> Any | None:
    """Replace a Gather along a computed axis by one along a known axis, and return that; None if it was not.

    What lies before the axis becomes one dimension, and so does what lies behind it.
    """
    data, indices, axis = node.input_values()
    ranks = [each.get_partial_shape().rank for each in (data, indices)]
    if is_fixed(axis) or any(rank.is_dynamic for rank in ranks):
        return None  # OpenVINO refuses a rank that is dynamic
    count, batches = ranks[0].get_length(), batch_dimensions(node)
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


def slice_(node: Any) -> bool:
    """Replace a Slice along computed axes by one along all axes, most of which it leaves as they are.

    Returns whether it was one.
    """
    data, *bounds = node.input_values()
    rank = data.get_partial_shape().rank
    if len(bounds) < _SLICED_AXES or is_fixed(bounds[-1]) or rank.is_dynamic:
        return False
    starts, stops, steps = _of_all_axes(node, bounds, rank.get_length())
    replace(node, ops.slice(data, starts, stops, steps, numbers(range(rank.get_length()))))
    return True


def slice_scatter(node: Any) -> bool:
    """Replace a SliceScatter of computed bounds, or open shapes, by a ScatterUpdate along each axis.

    OpenVINO does not compare the updates that there are with those that the bounds ask for. Returns whether
    it was one.
    """
    data, updates, *bounds = node.input_values()
    shapes = [each.get_partial_shape() for each in (data, updates)]
    if all(is_fixed(each) for each in bounds) and not any(shape.is_dynamic for shape in shapes):
        return False
    if any(shape.rank.is_dynamic for shape in shapes):
        return False
    rank = len(shapes[0])
    axes = bounds[-1].get_node() if len(bounds) == _SLICED_AXES else None
    along = list(range(rank))
    if axes is not None and axes.get_type_name() == "Constant":
        along = [int(axis) % rank for axis in axes.data.reshape(-1)]
    elif axes is not None:
        bounds = _of_all_axes(node, bounds, rank)
    if not along:
        return False
    if rank == 1:  # OpenVINO compares nothing of integers in one dimension
        last = numbers([-1])
        data, updates = (ops.unsqueeze(each, last) for each in (data, updates))
        made = ops.squeeze(_scattered(data, updates, bounds[:3], along), last)
    else:
        made = _scattered(data, updates, bounds[:3], along)
    replace(node, made)
    return True


def batch_dimensions(node: Any) -> int:
    """Return the batch dimensions of a Gather; a negative number counts from the last of its indices."""
    batches = int(node.get_attributes().get("batch_dims", 0))
    return batches + len(node.get_input_partial_shape(1)) if batches < 0 else batches


def _scattered(data: Any, updates: Any, bounds: Sequence[Any], axes: Sequence[int]) -> Any:
    """Write to the rows along the first axis; along further ones, to parts of these rows."""
    axis, *others = axes
    start, stop, step = (_part(each, numbers([0]), numbers([1])) for each in bounds)
    size = ops.gather(ops.shape_of(data, "i64"), ops.constant(axis), ops.constant(0))
    rows = ops.slice(
        ops.range(ops.constant(0), size, ops.constant(1), "i64"), start, stop, step, numbers([0])
    )
    if others:
        rest = [_part(each, numbers([1]), numbers([_END])) for each in bounds]
        updates = _scattered(ops.gather(data, rows, ops.constant(axis)), updates, rest, others)
    return ops.scatter_update(data, rows, updates, ops.constant(axis))


def _of_all_axes(node: Any, bounds: Sequence[Any], rank: int) -> list[Any]:
    """Return starts, stops and steps along all axes, of those along some: OpenVINO checks which axes."""
    *given, axes = (ops.convert(each, "i64") for each in bounds)
    made = [
        ops.scatter_elements_update(numbers([whole] * rank), axes, bound, ops.constant(0))
        for whole, bound in zip((0, _END, 1), given, strict=True)
    ]
    _name(node, **dict(zip(("starts", "stops", "steps"), made, strict=True)))
    return made


def _part(shape: Any, begin: Any, end: Any) -> Any:
    return ops.slice(shape, begin, end, numbers([1]), numbers([0]))


def _name(node: Any, **made: Any) -> None:
    for suffix, each in made.items():
        each.set_friendly_name(f"{node.get_friendly_name()}/{suffix}")
