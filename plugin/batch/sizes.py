"""Shapes as values: the elements of a shape computation that depend on the number of samples."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from softnpu.plugin.batch.lattice import Operation, Samples, Sizes, State, Uniform, evaluated, tensor

Mask = npt.NDArray[np.bool_]

# they only move elements: applied to a mask they return the mask of the result
_MOVING = frozenset(
    ("Gather", "Concat", "StridedSlice", "Slice", "Squeeze", "Unsqueeze", "Reshape", "Transpose", "Split",
     "VariadicSplit", "Convert")
)  # fmt: skip
_ELEMENTWISE = frozenset(
    ("Add", "Subtract", "Multiply", "Divide", "Maximum", "Minimum", "FloorMod", "Mod", "Equal", "NotEqual",
     "Greater", "GreaterEqual", "Less", "LessEqual", "Select", "Power", "Floor", "Ceiling", "Negative", "Abs",
     "LogicalAnd", "LogicalOr", "LogicalNot", "Sqrt")
)  # fmt: skip
_ALL = Sizes(None)


def shape_of(operation: Operation) -> State:
    """Return the state of a tensor's shape."""
    shape, state = operation.inputs[0], operation.states[0]
    if len(shape.one) != len(shape.many) or (shape.one == (-1,) and not isinstance(state, Uniform)):
        return _ALL
    return _state(np.array([one != many for one, many in zip(shape.one, shape.many, strict=True)], bool))


def computed(operation: Operation) -> list[State]:
    """Return the states of the outputs of an operation whose inputs are uniform or sizes."""
    if operation.kind in _ELEMENTWISE:
        return [_elementwise(operation)]
    if operation.kind in _MOVING:
        return _moved(operation)
    return [_ALL for _ in operation.outputs]


def repeated(operation: Operation) -> State | None:
    """Return the state after Broadcast or Tile repeats a uniform tensor for each sample; else None."""
    axis = operation.outputs[0].growing
    if not isinstance(operation.states[0], Uniform) or axis is None:
        return None
    shape = operation.inputs[0]
    if operation.kind == "Broadcast":
        # the axis must be stretched, not already present
        mapping = operation.constant(2)
        here = axis - (operation.outputs[0].rank - shape.rank)
        if operation.attributes.get("mode") == "explicit":
            if mapping is None:
                return None
            at = [int(value) for value in mapping.reshape(-1)]
            here = at.index(axis) if axis in at else -1
        if here >= 0 and shape.one[here] != 1:
            return None
    return Samples(axis)


def _elementwise(operation: Operation) -> State:
    masks = [_mask(operation, index) for index in range(len(operation.states))]
    known = [mask for mask in masks if mask is not None]
    if len(known) != len(masks):
        return _ALL
    try:
        return _state(np.logical_or.reduce(np.broadcast_arrays(*known)))
    except ValueError:
        return _ALL


def _moved(operation: Operation) -> list[State]:
    node = operation.node
    values = []
    data = len(operation.states) if operation.kind == "Concat" else 1
    for index in range(len(operation.states)):
        mask = _mask(operation, index)
        value = None if index < data or mask is None or mask.any() else operation.constant(index)
        if index < data:
            value = mask
        if value is None:
            return [_ALL for _ in operation.outputs]
        values.append(tensor(value, node.input(index).get_element_type()))
    return [_ALL if mask is None else _state(mask != 0) for mask in evaluated(node, values)]


def _mask(operation: Operation, index: int) -> Mask | None:
    state, shape = operation.states[index], operation.inputs[index]
    if isinstance(state, Sizes):
        return state.mask
    return np.zeros(shape.one, bool) if shape.one == shape.many and -1 not in shape.one else None


def _state(mask: Mask) -> State:
    return Sizes(mask) if mask.any() else Uniform()
