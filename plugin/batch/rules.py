"""Batch rules by operation type: whether samples stay independent, and on which axis results have them.

A rule returns the states of the outputs, or raises `Mixing` when samples influence each other and `Unknown`
when it cannot decide. At least one input holds samples. The result is checked against the shapes at both
batches. A type without a rule is unknown.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from softnpu.plugin.batch.lattice import (
    PROBE,
    Mixed,
    Mixing,
    Operation,
    Samples,
    Sizes,
    State,
    Uniform,
    Unknown,
)

Rule = Callable[[Operation], list[State]]
RULES: dict[str, Rule] = {}
_NO_END = 10**6
"""Exceeds the samples of the largest command buffer: slices that end there take all."""


def rule(*kinds: str) -> Callable[[Rule], Rule]:
    """Register a rule for operation types."""

    def register(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(kinds, function))
        return function

    return register


def readable(operation: Operation) -> None:
    """Raise `Mixing` when an input is already mixed."""
    for state in operation.states:
        if isinstance(state, Mixed):
            raise Mixing(state.why)


# ------------------------------------------------------------ element by element


@rule(
    "Abs", "Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "BitwiseNot", "Bucketize", "Ceiling", "Clamp",
    "Convert", "ConvertLike", "Cos", "Cosh", "Elu", "Erf", "Exp", "Floor", "Gelu", "HardSigmoid", "HSigmoid",
    "HSwish", "Identity", "IsFinite", "IsInf", "IsNaN", "Log", "LogicalNot", "Mish", "Negative", "Relu",
    "Result", "Round", "Selu", "Sigmoid", "Sign", "Sin", "Sinh", "SoftPlus", "SoftSign", "Sqrt", "Swish",
    "Tan", "Tanh",
)  # fmt: skip
def _each_element(operation: Operation) -> list[State]:
    axis = operation.axis_of(0)
    if axis is None:
        raise Mixing("a parameter of it depends on the batch")
    if operation.kind != "ConvertLike":
        operation.only_samples_in(0)
    return [Samples(axis)]


@rule(
    "Add", "Subtract", "Multiply", "Divide", "Maximum", "Minimum", "Power", "Mod", "FloorMod",
    "SquaredDifference", "Equal", "NotEqual", "Greater", "GreaterEqual", "Less", "LessEqual", "LogicalAnd",
    "LogicalOr", "LogicalXor", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "BitwiseLeftShift",
    "BitwiseRightShift", "Select", "FakeQuantize",
)  # fmt: skip
def _broadcasting(operation: Operation) -> list[State]:
    if operation.attributes.get("auto_broadcast", "numpy") not in {"numpy", "none"}:
        raise Unknown("it broadcasts in another way than numpy")
    return [Samples(aligned(operation, range(len(operation.states)), operation.outputs[0].rank))]


def aligned(operation: Operation, indices: range, rank: int) -> int:
    """Return the axis of the samples, in an output of `rank` dimensions, for inputs that broadcast."""
    axes = {rank - operation.inputs[at].rank + axis for at, axis in operation.samples if at in indices}
    if len(axes) != 1:
        raise Mixing("its inputs have their samples on different axes")
    axis = axes.pop()
    for index in indices:
        state, shape = operation.states[index], operation.inputs[index]
        if isinstance(state, Sizes):
            raise Mixing(f"its input {index} depends on how many samples there are")
        here = axis - (rank - shape.rank)
        if isinstance(state, Uniform) and here >= 0 and shape.one[here] != 1:
            raise Mixing(f"its input {index} has another value for each position on the axis of the batch")
    return axis


@rule("PRelu")
def _prelu(operation: Operation) -> list[State]:
    operation.only_samples_in(0)
    if operation.axis_of(0) != 0:
        raise Unknown("its batch is not on axis 0")
    return [Samples(0)]


# ------------------------------------------------------------ other shapes of the same elements


@rule("Reshape", "Squeeze", "Unsqueeze", "Flatten")
def _reshape(operation: Operation) -> list[State]:
    axis, before, after = operation.axis_of(0), operation.inputs[0], operation.outputs[0]
    if axis is None or any(isinstance(state, Samples) for state in operation.states[1:]):
        raise Mixing("its pattern depends on what is in the samples")
    new_axis = after.growing
    # sample i is the same run of elements before and after if and only if the dimensions before its axis
    # agree
    if new_axis is None or before.before(axis) != after.before(new_axis):
        raise Mixing(f"its shape becomes {list(after.one)} with one sample, {list(after.many)} with {PROBE}")
    return [Samples(new_axis)]


@rule("Transpose")
def _transpose(operation: Operation) -> list[State]:
    operation.only_samples_in(0)
    rank, axis = operation.inputs[0].rank, operation.axis_of(0)
    assert axis is not None
    order = operation.axes(1, rank)
    return [Samples((order or list(range(rank))[::-1]).index(axis))]


@rule("Concat")
def _concat(operation: Operation) -> list[State]:
    axes = {axis for _, axis in operation.samples}
    if len(operation.samples) != len(operation.states) or len(axes) != 1:
        raise Mixing("not all of its inputs have the batch on the same axis")
    axis = axes.pop()
    if operation.attribute_axis(operation.outputs[0].rank) == axis:
        raise Mixing(f"it joins tensors on axis {axis}, which is that of the batch")
    return [Samples(axis)]


@rule("Split", "VariadicSplit")
def _split(operation: Operation) -> list[State]:
    return _along_others(operation, operation.axes(1, operation.inputs[0].rank), "splits")


@rule("CumSum", "TopK")
def _axis_input(operation: Operation) -> list[State]:
    rank = operation.inputs[0].rank
    axes = operation.axes(1, rank) if operation.kind == "CumSum" else [operation.attribute_axis(rank)]
    return _along_others(operation, axes, "works along")


@rule("Roll")
def _roll(operation: Operation) -> list[State]:
    return _along_others(operation, operation.axes(2, operation.inputs[0].rank), "rolls")


@rule("Softmax", "LogSoftmax")
def _softmax(operation: Operation) -> list[State]:
    axis = operation.attribute_axis(operation.inputs[0].rank)
    return _along_others(operation, [axis], "normalises over")


@rule("ShuffleChannels")
def _shuffle(operation: Operation) -> list[State]:
    return _along_others(operation, [operation.attribute_axis(operation.inputs[0].rank)], "shuffles")


def _along_others(operation: Operation, axes: list[int], does: str) -> list[State]:
    operation.only_samples_in(0)
    axis = operation.axis_of(0)
    assert axis is not None
    if axis in axes:
        raise Mixing(f"it {does} axis {axis}, which is that of the batch")
    return [Samples(axis) for _ in operation.outputs]


@rule(
    "ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2",
    "ReduceLogicalAnd", "ReduceLogicalOr",
)  # fmt: skip
def _reduce(operation: Operation) -> list[State]:
    axes = operation.axes(1, operation.inputs[0].rank)
    [state] = _along_others(operation, axes, "reduces")
    assert isinstance(state, Samples)
    if operation.attributes.get("keep_dims"):
        return [state]
    return [Samples(state.axis - sum(axis < state.axis for axis in axes))]


@rule("MVN", "NormalizeL2", "LRN")
def _normalise(operation: Operation) -> list[State]:
    if len(operation.states) < 2:
        raise Unknown("it has no axes as input")
    return _along_others(operation, operation.axes(1, operation.inputs[0].rank), "normalises over")


# ------------------------------------------------------------ parts and copies


@rule("Slice")
def _slice(operation: Operation) -> list[State]:
    _no_samples_but_data(operation)
    axis, rank = operation.axis_of(0), operation.inputs[0].rank
    assert axis is not None
    named = len(operation.states) > 4
    axes = operation.axes(4, rank) if named else list(range(operation.inputs[1].one[0]))
    if axis in axes:
        at = axes.index(axis)
        start, stop, step = (operation.constant(index) for index in (1, 2, 3))
        if start is None or stop is None or step is None or start[at] != 0 or step[at] != 1:
            raise Mixing(f"it takes a part of axis {axis}, which is that of the batch")
        if stop[at] < _NO_END:
            raise Mixing(f"it ends at {stop[at]} on axis {axis}, which is that of the batch")
    return [Samples(axis)]


@rule("StridedSlice")
def _strided_slice(operation: Operation) -> list[State]:
    _no_samples_but_data(operation)
    axis = operation.axis_of(0)
    assert axis is not None
    masks = {name: [bool(bit) for bit in operation.attributes[f"{name}_mask"]]
             for name in ("begin", "end", "new_axis", "shrink_axis", "ellipsis")}  # fmt: skip
    if any(masks["new_axis"]) or any(masks["ellipsis"]):
        raise Unknown("it adds axes or has an ellipsis")
    if axis < operation.inputs[1].one[0]:
        begin, stride = operation.constant(1), operation.constant(3)
        from_start = _bit(masks["begin"], axis) or (begin is not None and begin[axis] == 0)
        to_end = _bit(masks["end"], axis)
        step = 1 if len(operation.states) < 4 else 0 if stride is None else int(stride[axis])
        if _bit(masks["shrink_axis"], axis) or not from_start or not to_end or step != 1:
            raise Mixing(f"it takes a part of axis {axis}, which is that of the batch")
    return [Samples(axis - sum(masks["shrink_axis"][:axis]))]


def _bit(mask: list[bool], at: int) -> bool:
    return at < len(mask) and mask[at]


def _no_samples_but_data(operation: Operation) -> None:
    if operation.axis_of(0) is None or len(operation.samples) != 1:
        raise Mixing("its parameters depend on what is in the samples")


@rule("Gather")
def _gather(operation: Operation) -> list[State]:
    operation.only_samples_in(0, 1)
    data, indices = operation.inputs[0], operation.inputs[1]
    data_axis, index_axis = operation.axis_of(0), operation.axis_of(1)
    [along] = operation.axes(2, data.rank)
    batched = int(operation.attributes.get("batch_dims", 0))
    batched += indices.rank if batched < 0 else 0
    if data_axis is not None and index_axis is not None:
        if data_axis == index_axis < batched <= along:
            return [Samples(data_axis)]
        raise Mixing("it takes elements of samples by indices that depend on samples")
    if batched:
        raise Unknown("it gathers batch by batch")
    if data_axis is None:
        assert index_axis is not None
        if not isinstance(operation.states[0], Uniform):
            raise Mixing("what it gathers from depends on how many samples there are")
        return [Samples(along + index_axis)]
    if not isinstance(operation.states[1], Uniform):
        raise Mixing("its indices depend on how many samples there are")
    if data_axis == along:
        raise Mixing(f"it picks samples from axis {along}, which is that of the batch")
    return [Samples(data_axis if data_axis < along else data_axis + indices.rank - 1)]


@rule("GatherElements", "ScatterElementsUpdate")
def _elements(operation: Operation) -> list[State]:
    tensors = 2 if operation.kind == "GatherElements" else 3
    axes = {operation.axis_of(index) for index in range(tensors)}
    operation.only_samples_in(*range(tensors))
    axis = axes.pop()
    if axes or axis is None:
        raise Mixing("not all of its inputs have the batch on the same axis")
    rank = operation.inputs[0].rank
    along = [operation.attribute_axis(rank)] if tensors == 2 else operation.axes(3, rank)
    if axis in along:
        raise Mixing(f"it takes elements along axis {axis}, which is that of the batch")
    return [Samples(axis)]


@rule("OneHot")
def _one_hot(operation: Operation) -> list[State]:
    operation.only_samples_in(0)
    axis = operation.axis_of(0)
    assert axis is not None
    return [Samples(axis + (operation.attribute_axis(operation.outputs[0].rank) <= axis))]


@rule("Pad")
def _pad(operation: Operation) -> list[State]:
    operation.only_samples_in(0)
    axis = operation.axis_of(0)
    assert axis is not None
    for index in (1, 2):
        value = operation.constant(index)
        if value is None:
            raise Unknown("its padding is not a constant")
        if value[axis] != 0:
            raise Mixing(f"it pads axis {axis}, which is that of the batch")
    return [Samples(axis)]


@rule("Tile")
def _tile(operation: Operation) -> list[State]:
    operation.only_samples_in(0)
    axis, repeats = operation.axis_of(0), operation.constant(1)
    if axis is None or repeats is None:
        raise Unknown("its repeats are not a constant")
    here = axis + operation.outputs[0].rank - operation.inputs[0].rank
    at = here - (operation.outputs[0].rank - len(repeats))
    if at >= 0 and repeats[at] != 1:
        raise Mixing(f"it repeats axis {axis}, which is that of the batch")
    return [Samples(here)]


@rule("Broadcast")
def _broadcast(operation: Operation) -> list[State]:
    axis = operation.axis_of(0)
    if axis is None or len(operation.samples) != 1:
        raise Mixing("its target depends on what is in the samples")
    if operation.attributes.get("mode") == "explicit":
        mapping = operation.constant(2)
        if mapping is None:
            raise Unknown("its axes mapping is not a constant")
        return [Samples(int(np.reshape(mapping, -1)[axis]))]
    return [Samples(axis + operation.outputs[0].rank - operation.inputs[0].rank)]
