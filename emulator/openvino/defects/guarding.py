"""Parts of guards: operations that leave right numbers as they are, and have OpenVINO refuse others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import openvino as ov
from openvino import opset13 as ops
from openvino.passes import ConstantFolding, Manager

from softnpu.emulator.common.graph_edits import is_fixed
from softnpu.emulator.interface.result import Refused, ZeResult, refuse


def guarded(inputs: Mapping[int, Callable[[Any, Any], Any]]) -> Callable[[Any], bool]:
    """Return what guards an operation: for positions of inputs, what makes these safe.

    The result says whether the operation needed that.
    """

    def guard(node: Any) -> bool:
        found = False
        for position, make_safe in inputs.items():
            if node.get_input_size() <= position:
                continue
            source = node.input_value(position)
            output = make_safe(node, source)
            if output is not source:
                output.node.set_friendly_name(f"{node.friendly_name}/guarded")
                node.input(position).replace_source_output(output)
                found = True
        return found

    return guard


def dimensions(data: Any, like: Any | None, begin: int, end: int | None) -> Any:
    """Dimensions `begin` to `end` of `data`, as numbers of the type of `like` (i64 without)."""
    kind = "i64" if like is None else type_name(like)
    shape = ops.shape_of(before_levels(data), kind)
    stop = np.iinfo(np.int32).max if end is None else end
    return ops.slice(shape, ops.constant([begin]), ops.constant([stop]), ops.constant([1])).output(0)


def before_levels(data: Any) -> Any:
    """Return what a FakeQuantize quantises, which has the same shape; `data` itself from other operations.

    A shape that is taken behind a FakeQuantize changes where OpenVINO computes in 8 bits, and last digits.
    """
    node = data.get_node()
    if node.get_type_name() != "FakeQuantize":
        return data
    source, *bounds = (node.get_input_partial_shape(position) for position in range(5))
    if any(shape.is_dynamic or set(shape.to_shape()) - {1} for shape in bounds):
        return data  # they may have more elements
    if source.rank.is_dynamic or len(source) < max(len(shape) for shape in bounds):
        return data
    return before_levels(node.input_value(0))


def refused(node: Any, found: str, expected: str) -> Refused:
    kind = node.get_type_name()
    return refuse(
        ZeResult.ERROR_MODULE_BUILD_FAILURE,
        f"operation '{node.friendly_name}' ({kind})",
        found=found,
        expected=expected,
    )


def checked(node: Any, source: Any, is_wrong: Any) -> Any:
    """Numbers that OpenVINO refuses to be fewer than one more if they are wrong."""
    rank = source.partial_shape.rank
    if rank.is_dynamic:
        return source
    more = ops.convert(ops.reshape(is_wrong, ops.constant(np.array([1])), False), "i64")
    if rank.get_length():
        return of_length(source, 0, ops.add(size_of(source, 0), more))
    axis = ops.constant(np.array([0]))
    numbers = ops.unsqueeze(source, axis).output(0)
    one = of_length(numbers, 0, ops.add(more, ops.constant(np.array([1]))))
    one.node.set_friendly_name(f"{node.friendly_name}/guarded number")
    return ops.squeeze(one, axis).output(0)


def widened(numbers: Any) -> Any:
    """Numbers of a type that has room for any size, and of which OpenVINO takes the shape."""
    return numbers if type_name(numbers) in ("i32", "i64") else ops.convert(numbers, "i64").output(0)


def any_of(conditions: Any) -> Any:
    rank = conditions.output(0).partial_shape.rank.get_length()
    return ops.reduce_logical_or(conditions, ops.constant(np.arange(rank)), False)


def outside(numbers: Any, low: Any, high: Any) -> Any:
    """Whether a number is below `low`, or not below `high`."""
    return any_of(ops.logical_or(ops.less(numbers, low), ops.greater_equal(numbers, high)))


def rank_of(data: Any, like: Any) -> Any:
    """The number of dimensions of `data`, as [1] of the type of `like`."""
    return ops.convert(ops.shape_of(ops.shape_of(data, "i64"), "i64"), type_name(like))


def of_length(data: Any, axis: int, length: Any) -> Any:
    """Data that OpenVINO refuses to be shorter along an axis: the first of two parts of it. It is copied."""
    all_and_none = ops.concat([length, ops.constant(np.array([0]))], 0)
    return ops.variadic_split(data, ops.constant(axis), all_and_none).output(0)


def size_of(data: Any, axis: int) -> Any:
    shape = ops.shape_of(before_levels(data), "i64")
    return ops.slice(shape, ops.constant([axis]), ops.constant([axis + 1]), ops.constant([1]))


def size_along(shape: Any, axis: Any, given: Any) -> Any:
    """Return one of the sizes in `shape`; 0 if there is no such axis, which OpenVINO refuses."""
    if given.get_node().get_type_name() == "Constant":
        return ops.gather(shape, axis, ops.constant(0))
    rank, one = ops.shape_of(shape, "i64"), ops.constant([1])
    begin = ops.select(ops.less(axis, ops.constant([0])), ops.add(axis, rank), axis)
    return ops.reduce_sum(ops.slice(shape, begin, ops.add(begin, one), one), ops.constant([0]), True)


def constant(like: Any, value: int) -> Any:
    return ops.constant(value, like.element_type)


def type_name(output: Any) -> str:
    return str(output.element_type.to_string())


def folded(source: Any) -> Any:
    """Return the constant that OpenVINO computes of constants; otherwise the operation itself."""
    if source.get_node().get_type_name() == "Constant" or not is_fixed(source):
        return source.get_node()
    alone = ov.Model([ops.result(source)], [], "fixed").clone()
    manager = Manager()
    manager.register_pass(ConstantFolding())
    manager.run_passes(alone)
    return alone.get_results()[0].input_value(0).get_node()
