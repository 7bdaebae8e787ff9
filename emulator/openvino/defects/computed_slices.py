"""Replace Slices and SliceScatters with computed axes or bounds, of which OpenVINO keeps the first.

Its CPU runtime does not see that they have changed since the first inference: a Slice gives a result of
another shape, and writes behind its memory; a SliceScatter of static shapes keeps writing to the first place.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from openvino import opset13 as ops

from softnpu.emulator.common.graph_edits import is_fixed, numbers, replace

_END: Final = (1 << 63) - 1
_SLICED_AXES: Final = 4
"""How many bounds there are with axes, which are optional."""


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
