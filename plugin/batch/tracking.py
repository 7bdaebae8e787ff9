"""Data-flow analysis of a batch: a proof that the samples of a model are independent.

A model may be split if its result for a batch equals the results of its samples, side by side. Shapes alone
do not show that: a softmax over the batch keeps every shape. So each operation needs a rule (`rules`); one
that mixes samples, or has no rule, ends the proof.

The proof is an induction over the operations in order. The states (`lattice`) hold for the parameters, which
are shared, or have samples side by side on their axis. A rule derives the states of an operation's results
from those of its inputs, and the shapes at batches 1 and 97, a prime, confirm the axis of the samples. A
value that depends on the number of samples may be the size of a tensor, but results are never computed from
it. So each result is, sample by sample, the model's result for one sample.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import openvino as ov

from softnpu.emulator.openvino import errors as openvino_errors
from softnpu.plugin.batch import layer_rules as _layer_rules  # noqa: F401 - RULES has them then
from softnpu.plugin.batch import sizes
from softnpu.plugin.batch.axes import NotSplittable
from softnpu.plugin.batch.input_scan import BATCH_BY_DEFINITION
from softnpu.plugin.batch.lattice import (
    PROBE,
    Mixed,
    Mixing,
    Operation,
    Samples,
    Shape,
    Sizes,
    State,
    Uniform,
    Unknown,
)
from softnpu.plugin.batch.rules import RULES, readable

_RANDOM = frozenset(("RandomUniform", "Multinomial"))


@dataclass(frozen=True)
class Tracked:
    """For each output the axis of the samples, and its shape for one sample.

    `batch_layer` is the first operation that defines its batch on the axis of the samples; `trusted` are
    unknown operations whose shapes follow the batch. `narrowing` is the first one whose numbers change with
    dynamic shapes, see `_narrows`.
    """

    outputs: tuple[tuple[int, Shape], ...]
    batch_layer: str
    trusted: tuple[str, ...]
    narrowing: str = ""


def track(model: ov.Model, inputs: Sequence[int | None], trusting: bool = False) -> Tracked:
    """Follow samples from the `inputs` (axis of each, None: shared) to all outputs.

    The model has no other dynamic dimensions. `trusting` accepts operations of an unknown type if their
    shapes follow the batch.
    Raises `NotSplittable`.
    """
    one, many = (_reshaped(model, inputs, batch) for batch in (1, PROBE))
    known: dict[tuple[str, int], State] = {}
    layer = narrowing = ""
    trusted: list[str] = []
    axes = {port.node.get_name(): axis for port, axis in zip(one.inputs, inputs, strict=True)}
    results: dict[str, tuple[int, Shape]] = {}
    for first, second in _pairs(one, many):
        name = first.get_name()  # friendly names need not be unique
        operation = Operation(first, second, [known[_key(value)] for value in first.input_values()])
        if operation.kind == "Parameter":
            axis = axes[name]
            states: list[State] = [Uniform() if axis is None else Samples(axis)]
        else:
            states = _states(operation, trusted if trusting else None)
        if operation.kind in BATCH_BY_DEFINITION and operation.axis_of(0) == 0:
            layer = layer or operation.name
        if operation.samples and _narrows(first):
            narrowing = narrowing or f"'{operation.name}' ({operation.kind})"
        if operation.kind == "Result":
            results[name] = _result(operation)
        known.update({(name, index): state for index, state in enumerate(states)})
    return Tracked(
        tuple(results[port.node.get_name()] for port in one.outputs), layer, tuple(trusted), narrowing
    )


def _narrows(node: Any) -> bool:
    """Return whether an operation converts real numbers to 8 bits.

    In OpenVINO's CPU runtime (2026.4) out-of-range values wrap around with a static shape, and saturate with
    a dynamic one.
    """
    if node.get_type_name() not in {"Convert", "ConvertLike"}:
        return False
    before, after = node.get_input_element_type(0), node.get_output_element_type(0)
    return bool(before.is_real()) and after in {ov.Type.u8, ov.Type.i8}


def _states(operation: Operation, trusted: list[str] | None) -> list[State]:
    """Return the states of an operation's outputs; unknown types are added to `trusted` if it is a list."""
    if operation.kind in _RANDOM:
        raise NotSplittable(
            f"operation '{operation.name}' ({operation.kind}) draws random numbers", mixes=True
        )
    if operation.kind == "ShapeOf":
        return [sizes.shape_of(operation)]
    if not operation.samples and not any(isinstance(state, Mixed) for state in operation.states):
        return _without_samples(operation)
    rule = RULES.get(operation.kind)
    try:
        readable(operation)
        if rule is None:
            raise Unknown("nothing is known of how it treats samples")
        states = rule(operation)
    except Mixing as mixing:
        raise _refusal(operation, str(mixing), mixes=True) from None
    except Unknown as unknown:
        if trusted is None:
            raise _refusal(operation, str(unknown), mixes=False) from None
        trusted.append(f"'{operation.name}' ({operation.kind})")
        states = [
            Mixed("") if shape.growing is None else Samples(shape.growing) for shape in operation.outputs
        ]
        if any(isinstance(state, Mixed) for state in states):
            raise _refusal(operation, f"{unknown}, and its shape does not follow the batch", True) from None
    for state, shape in zip(states, operation.outputs, strict=True):
        if isinstance(state, Samples) and shape.growing != state.axis:
            shapes = f"its shape is {list(shape.one)} for one sample, {list(shape.many)} for {PROBE}"
            raise _refusal(operation, shapes, mixes=True)
    return states


def _without_samples(operation: Operation) -> list[State]:
    if not any(isinstance(state, Sizes) for state in operation.states):
        return [Uniform() for _ in operation.outputs]
    if operation.kind in {"Broadcast", "Tile"}:
        copies = sizes.repeated(operation)
        if copies is not None:
            return [copies]
    return sizes.computed(operation)


def _result(operation: Operation) -> tuple[int, Shape]:
    axis = operation.axis_of(0)
    if axis is None:
        name = operation.node.input_value(0).get_node().get_friendly_name()
        raise NotSplittable(f"the output that '{name}' computes has no batch", mixes=True)
    return axis, operation.inputs[0].one


def _refusal(operation: Operation, why: str, mixes: bool) -> NotSplittable:
    return NotSplittable(f"operation '{operation.name}' ({operation.kind}): {why}", mixes)


def _key(value: Any) -> tuple[str, int]:
    return value.get_node().get_name(), value.get_index()


def _pairs(one: ov.Model, many: ov.Model) -> list[tuple[Any, Any]]:
    """Return pairs of the same operations of two clones, in order.

    Reshaping may add operations, and ids and names differ between clones, so types and inputs are compared.
    """
    pairs = list(zip(one.get_ordered_ops(), many.get_ordered_ops(), strict=False))
    positions = [{pair[side].get_name(): at for at, pair in enumerate(pairs)} for side in (0, 1)]
    for pair in pairs:
        kinds = {node.get_type_name() for node in pair}
        reads = [
            [(position.get(name), port) for name, port in map(_key, node.input_values())]
            for node, position in zip(pair, positions, strict=True)
        ]
        if len(kinds) != 1 or reads[0] != reads[1] or any(at is None for at, _ in reads[0]):
            raise NotSplittable("its structure depends on the batch", mixes=False)
    return pairs


def _reshaped(model: ov.Model, inputs: Sequence[int | None], batch: int) -> ov.Model:
    """Return a clone with another batch, sharing the constants."""
    clone = model.clone()
    shapes: Mapping[int, ov.PartialShape] = {
        index: with_dimension(clone.inputs[index].partial_shape, axis, ov.Dimension(batch))
        for index, axis in enumerate(inputs)
        if axis is not None
    }
    try:
        clone.reshape(shapes)
    except RuntimeError as failure:
        reason = openvino_errors.reason(failure)
        raise NotSplittable(f"it cannot be reshaped to a batch of {batch}: {reason}", mixes=True) from failure
    return clone


def with_dimension(shape: ov.PartialShape, axis: int, dimension: ov.Dimension) -> ov.PartialShape:
    """Return the shape with another dimension on one axis."""
    dims = list(shape)
    dims[axis] = dimension
    return ov.PartialShape(dims)
