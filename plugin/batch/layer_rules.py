"""Rules for neural network layers, which define a batch. See `rules`."""

from __future__ import annotations

from softnpu.plugin.batch.lattice import Mixed, Mixing, Operation, Samples, State, Uniform, Unknown
from softnpu.plugin.batch.rules import aligned, rule

_SPATIAL_MODES = {"nearest", "linear", "linear_onnx", "cubic"}
_IDENTITY_COORDINATES = {"half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel"}


@rule("MatMul")
def _matmul(operation: Operation) -> list[State]:
    left, right, out = operation.inputs[0], operation.inputs[1], operation.outputs[0]
    states = operation.states
    if left.rank < 2 or right.rank < 2:
        return [Samples(_vector_matmul(operation))]
    axes = set()
    for index, axis in operation.samples:
        rank = operation.inputs[index].rank
        flip = bool(operation.attributes["transpose_b" if index else "transpose_a"])
        row, column = (rank - 1, rank - 2) if flip else (rank - 2, rank - 1)
        if axis < rank - 2:
            axes.add(out.rank - rank + axis)
            continue
        kept = column if index else row
        if axis != kept:
            raise Mixing("it sums over the samples")
        axes.add(out.rank - 1 if index else out.rank - 2)
    if len(axes) != 1:
        raise Mixing("it multiplies samples of one input with those of the other")
    axis = axes.pop()
    if axis < out.rank - 2:
        for state, shape in zip(states, (left, right), strict=True):
            here = axis - (out.rank - shape.rank)
            if not isinstance(state, Samples | Uniform) or (
                isinstance(state, Uniform) and here >= 0 and shape.one[here] != 1
            ):
                raise Mixing("one of its inputs has another value for each position on the axis of the batch")
    elif not any(isinstance(state, Uniform) for state in states):
        raise Mixing("it multiplies samples of one input with those of the other")
    return [Samples(axis)]


def _vector_matmul(operation: Operation) -> int:
    """Return the sample axis after a product with a vector: any but the summed axis of the left input."""
    operation.only_samples_in(0)
    axis, rank = operation.axis_of(0), operation.inputs[0].rank
    if axis is None or rank < 2:
        raise Unknown("it multiplies vectors")
    if axis == (rank - 2 if operation.attributes["transpose_a"] else rank - 1):
        raise Mixing("it sums over the samples")
    return axis if axis < rank - 2 else rank - 2


@rule(
    "Convolution", "GroupConvolution", "ConvolutionBackpropData", "GroupConvolutionBackpropData",
    "BinaryConvolution", "BatchNormInference", "GroupNormalization", "DepthToSpace", "SpaceToDepth",
    "AvgPool", "AdaptiveAvgPool", "ReorgYolo",
)  # fmt: skip
def _layer(operation: Operation) -> list[State]:
    _first_axis(operation, 0)
    return [Samples(0)]


@rule("MaxPool", "AdaptiveMaxPool")
def _max_pool(operation: Operation) -> list[State]:
    _first_axis(operation, 0)
    # the indices count through the whole tensor
    indices = Mixed("it reads the indices of a pooling, which count through the whole batch")
    return [Samples(0), indices] if len(operation.outputs) > 1 else [Samples(0)]


@rule("DeformableConvolution")
def _deformable(operation: Operation) -> list[State]:
    _first_axis(operation, 0, 1, *(() if len(operation.states) < 4 else (3,)))
    return [Samples(0)]


@rule("GridSample")
def _grid_sample(operation: Operation) -> list[State]:
    _first_axis(operation, 0, 1)
    return [Samples(0)]


def _first_axis(operation: Operation, *inputs: int) -> None:
    """Raise `Mixing` unless exactly these inputs hold samples, on axis 0."""
    operation.only_samples_in(*inputs)
    for index in inputs:
        axis = operation.axis_of(index)
        if axis is None:
            raise Mixing(f"its input {index} is not batched, but others are")
        if axis != 0:
            raise Mixing(f"the batch is on axis {axis} of its input {index}, and it works across that")


@rule("LSTMSequence", "GRUSequence", "RNNSequence", "LSTMCell", "GRUCell", "RNNCell")
def _recurrent(operation: Operation) -> list[State]:
    states = 2 if operation.kind.startswith("LSTM") else 1
    batched = 1 + states + operation.kind.endswith("Sequence")
    for index in range(batched):
        if operation.axis_of(index) != 0:
            raise Mixing(f"its input {index} does not have the batch on axis 0")
    operation.only_samples_in(*range(batched))
    return [Samples(0) for _ in operation.outputs]


@rule("ScaledDotProductAttention")
def _attention(operation: Operation) -> list[State]:
    rank = operation.inputs[0].rank
    for index in range(3):
        axis = operation.axis_of(index)
        if axis is None or axis >= rank - 2 or operation.inputs[index].rank != rank:
            raise Mixing(f"its input {index} does not have the batch in front of the sequence")
    operation.only_samples_in(0, 1, 2, 3)
    return [Samples(aligned(operation, range(min(4, len(operation.states))), rank))]


@rule("Interpolate")
def _interpolate(operation: Operation) -> list[State]:
    axis, shape, attributes = operation.axis_of(0), operation.inputs[0], operation.attributes
    version = operation.node.get_type_info().version_id
    if axis is None or len(operation.samples) != 1 or version not in {"opset4", "opset11"}:
        raise Unknown("it is of an old kind, or its sizes depend on the samples")
    by_scales = attributes["shape_calculation_mode"] == "scales"
    scales_at, axes_at = (2 if by_scales else 1, 3) if version == "opset4" else (1, 2)
    axes = operation.axes(axes_at, shape.rank) if len(operation.states) > axes_at else list(range(shape.rank))
    if any(_pad_of(attributes, name, axis) for name in ("pads_begin", "pads_end")):
        raise Mixing(f"it pads axis {axis}, which is that of the batch")
    if axis not in axes:
        return [Samples(axis)]
    # resized by 1: elements do not change if coordinates are whole numbers
    scales = operation.constant(scales_at)
    resized = shape.one[axis] != operation.outputs[0].one[axis]
    if resized or (by_scales and (scales is None or float(scales[axes.index(axis)]) != 1.0)):
        raise Mixing(f"it resizes axis {axis}, which is that of the batch")
    if (
        attributes["mode"] not in _SPATIAL_MODES
        or attributes["coordinate_transformation_mode"] not in _IDENTITY_COORDINATES
    ):
        raise Unknown("it resizes the axis of the batch, if only by 1")
    return [Samples(axis)]


def _pad_of(attributes: dict[str, object], name: str, axis: int) -> bool:
    pads = attributes.get(name) or []
    assert isinstance(pads, list)
    return axis < len(pads) and bool(pads[axis])


@rule("Einsum")
def _einsum(operation: Operation) -> list[State]:
    equation = str(operation.attributes["equation"]).replace(" ", "")
    if "->" not in equation or "..." in equation:
        raise Unknown(f"its equation is {equation}")
    before, after = equation.split("->")
    terms = before.split(",")
    letters = {terms[index][axis] for index, axis in operation.samples}
    if len(letters) != 1:
        raise Mixing("it multiplies samples of one input with those of the other")
    letter = letters.pop()
    if after.count(letter) != 1 or any(term.count(letter) > 1 for term in terms):
        raise Mixing("it sums over the samples")
    for index, term in enumerate(terms):
        state = operation.states[index]
        if not isinstance(state, Samples) and (not isinstance(state, Uniform) or letter in term):
            raise Mixing(f"its input {index} has another value for each position on the axis of the batch")
    return [Samples(after.index(letter))]
