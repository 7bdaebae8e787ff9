"""Keep Fourier transforms from axes that there are not and from sizes of 0, by which OpenVINO divides."""

from __future__ import annotations

from typing import Any

from openvino import opset13 as ops

from softnpu.emulator.common.graph_edits import depends_on_inputs
from softnpu.emulator.openvino.defects.guarding import (
    any_of,
    checked,
    constant,
    of_length,
    outside,
    rank_of,
    refused,
    size_of,
)

_LEAST_OF_INVERSE = 2


def signal_sizes(node: Any, data: Any) -> Any:
    """OpenVINO divides by a size of 0, that of a signal or of the result of an inverse real transform."""
    axes, *sizes = (value.get_node() for value in node.input_values()[1:])
    if sizes and sizes[0].get_type_name() == "Constant" and not sizes[0].data.all():
        raise refused(node, f"signal sizes {sizes[0].data.tolist()}", "none of 0")
    shape = data.partial_shape
    if node.get_type_name() != "IRDFT" or axes.get_type_name() != "Constant" or shape.rank.is_dynamic:
        return data
    if sizes and (sizes[0].get_type_name() != "Constant" or sizes[0].data.reshape(-1)[-1] != -1):
        return data
    at = int(axes.data.reshape(-1)[-1]) % (len(shape) - 1)
    if shape[at].get_min_length() >= _LEAST_OF_INVERSE:
        return data
    if shape[at].is_static:
        raise refused(node, f"data of shape {shape}", f"at least 2 elements along axis {at}")
    return of_length(data, at, ops.maximum(size_of(data, at), ops.constant([_LEAST_OF_INVERSE])))


def transform_axes(node: Any, axes: Any) -> Any:
    """The axes of a transform; the last one of complex numbers is none."""
    if not depends_on_inputs(axes):
        return axes
    rank = rank_of(node.input_value(0), axes)
    if node.get_type_name() != "RDFT":
        rank = ops.subtract(rank, constant(axes, 1))
    return checked(node, axes, outside(axes, ops.negative(rank), rank))


def transform_sizes(node: Any, sizes: Any) -> Any:
    if not depends_on_inputs(sizes):
        return sizes
    is_wrong = ops.logical_or(ops.equal(sizes, constant(sizes, 0)), ops.less(sizes, constant(sizes, -1)))
    return checked(node, sizes, any_of(is_wrong))
