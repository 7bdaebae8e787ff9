"""What the reference must know of the CPU device's faults (docs/defects.md), without the product's remedies.

A wrong remedy could else excuse itself. Forms of a model that the CPU device computes rightly are made here;
what has no such form is named by `is_wrong`, and its numbers are tested in tests/openvino.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import openvino as ov
from openvino import opset13 as ops

from softnpu.emulator.common import processor
from softnpu.emulator.common.model_bodies import all_bodies, bodies_of

UNFUSED = {"SNIPPETS_MODE": "DISABLE"}
"""Without subgraphs, some of which are wrong in 8 bits."""
IN_F32 = {} if processor.has_vnni() else {"LP_TRANSFORMS_MODE": "NO", "DYNAMIC_QUANTIZATION_GROUP_SIZE": "0"}
"""Without sums in 16 bits, which overflow."""
_NOT_FOLDED = ("Assign", "Multinomial", "Parameter", "RandomUniform", "ReadValue", "Result")
_SHAPED = ("Constant", "Convert", "Reshape", "ShapeOf", "Squeeze", "Unsqueeze")
_PACKED = ("u1", "u2", "u3", "u4", "u6", "i4", "nf4", "f4e2m1")
_LENGTHS = {"LSTMSequence": 3, "GRUSequence": 2, "RNNSequence": 2}
_WEIGHTS = {
    "RNNCell": (2, 3), "GRUCell": (2, 3), "AUGRUCell": (2, 3), "LSTMCell": (3, 4),
    "RNNSequence": (3, 4), "GRUSequence": (3, 4), "AUGRUSequence": (3, 4), "LSTMSequence": (4, 5),
}  # fmt: skip
"""Positions of the weights of the data, and of those of the state."""


# ---------------------------------------------------------------- other forms


def constant_values(model: ov.Model, *, left: str = "") -> Iterator[Any]:
    """Yield what others use of operations on constants alone: OpenVINO may write over it.

    Operations of the type `left` count as others.
    """
    known: set[str] = set()
    for node in model.get_ordered_ops():
        kind, sources = node.get_type_name(), node.input_values()
        if kind == "Constant" or (
            sources
            and kind not in (*_NOT_FOLDED, left)
            and not bodies_of(node)
            and all(source.get_node().get_name() in known for source in sources)
        ):
            known.add(node.get_name())
    for node in model.get_ordered_ops():
        if node.get_name() in known and node.get_type_name() != "Constant":
            for output in node.outputs():
                readers = [target.get_node() for target in output.get_target_inputs()]
                if any(reader.get_name() not in known for reader in readers):
                    yield output


def computes_constants(model: ov.Model) -> bool:
    """Return whether some are more than reshaped or converted."""
    return any(
        value.get_node().get_type_name() not in _SHAPED
        for part in [model, *all_bodies(model)]
        for value in constant_values(part)
    )


def fold(model: ov.Model, compiled: Callable[[ov.Model], Any]) -> None:
    """Replace these values by constants, each the first result of a compiled model."""
    for part in [model, *all_bodies(model)]:
        for value in list(constant_values(part, left="FakeQuantize")):
            if value.get_element_type().to_string() in (*_PACKED, "string"):
                continue
            alone = ov.Model([ops.result(value)], [], "alone").clone()
            data = np.array(compiled(alone).create_infer_request().infer()[0])
            made = ops.constant(data, value.get_element_type())
            for target in value.get_target_inputs():
                target.replace_source_output(made.output(0))


def make_loadable(model: ov.Model) -> None:
    """Replace what OpenVINO refuses without subgraphs: levels of one dimension, and GroupNormalization."""
    for part in [model, *all_bodies(model)]:
        for node in part.get_ordered_ops():
            rank = node.get_input_partial_shape(0).rank if node.get_input_size() else ov.Dimension()
            if rank.is_dynamic:
                continue
            readers = list(node.output(0).get_target_inputs()) if node.get_output_size() else []
            if node.get_type_name() == "GroupNormalization":
                made = _group_normalization(node, rank.get_length())
            elif node.get_type_name() == "FakeQuantize" and rank.get_length() == 1:
                wide = ops.unsqueeze(node.input_value(0), ops.constant(0))
                levels = ops.fake_quantize(wide, *node.input_values()[1:], node.get_attributes()["levels"])
                made = ops.squeeze(levels, ops.constant(0))
            else:
                continue
            for reader in readers:
                reader.replace_source_output(made.output(0))
        part.validate_nodes_and_infer_types()


def _group_normalization(node: Any, rank: int) -> Any:
    data, scale, bias = node.input_values()
    attributes = node.get_attributes()
    groups = ops.reshape(data, ops.constant([0, attributes["num_groups"], -1]), special_zero=True)
    normal = ops.mvn(groups, ops.constant([2]), True, attributes["epsilon"], "inside_sqrt")
    normal = ops.reshape(normal, ops.shape_of(data), special_zero=False)
    if rank > 2:
        scale, bias = (ops.unsqueeze(each, ops.constant([*range(1, rank - 1)])) for each in (scale, bias))
    return ops.add(ops.multiply(normal, scale), bias)


def state_inner_dimensions(model: ov.Model) -> None:
    """Give data and states of recurrent layers the inner dimension of their weights; a state's stays open."""
    for part in [model, *all_bodies(model)]:
        for node in part.get_ordered_ops():
            for position, weights in enumerate(_WEIGHTS.get(node.get_type_name(), ())):
                source, known = node.input_value(position), node.get_input_partial_shape(weights)
                shape = source.get_partial_shape()
                if shape.rank.is_dynamic or shape[-1].is_static or known.is_dynamic:
                    continue
                pattern = [0] * (len(shape) - 1) + [known[-1].get_length()]
                made = ops.reshape(source, ops.constant(pattern), special_zero=True)
                if position:
                    axis = ops.constant([-1])
                    size = ops.gather(ops.shape_of(source), axis, ops.constant(0))
                    made = ops.slice(made, ops.constant([0]), size, ops.constant([1]), axis)
                node.input(position).replace_source_output(made.output(0))
        part.validate_nodes_and_infer_types()


# ---------------------------------------------------------------- what has no right form


def is_wrong(node: Any) -> bool:
    """Return whether the CPU device may compute it wrongly, or something in its bodies."""
    kind, sources = node.get_type_name(), node.input_values()
    if any(is_wrong(inner) for body in bodies_of(node) for inner in body.get_ordered_ops()):
        return True
    if kind in ("Loop", "TensorIterator"):
        return any(output.get_partial_shape().is_dynamic for output in node.outputs())
    if kind in ("Constant", "Parameter", "Result", "Convert"):
        return False
    if any(source.get_element_type().to_string() in _PACKED for source in sources):
        return True
    if any(_is_empty(port) for port in (*sources, *node.outputs())):
        return True
    condition = _CONDITIONS.get(kind)
    return condition is not None and condition(node)


def _is_empty(port: Any) -> bool:
    shape = port.get_partial_shape()
    return bool(shape.rank.is_static and any(size == 0 for size in shape))


def _is_computed(node: Any, position: int) -> bool:
    if node.get_input_size() <= position:
        return False
    return bool(node.input_value(position).get_node().get_type_name() != "Constant")


def _reads_integers(node: Any) -> bool:
    """Return whether it takes integers in one dimension, and an index may be out of range."""
    shape = node.get_input_partial_shape(0)
    if node.get_input_element_type(0).is_real() or (shape.rank.is_static and len(shape) != 1):
        return False
    if shape.is_dynamic or _is_computed(node, 1):
        return True
    indices, size = node.input_value(1).get_node().data, shape[0].get_length()
    return bool(((indices < -size) | (indices >= size)).any())


def _gather(node: Any) -> bool:
    batches = bool(node.get_attributes().get("batch_dims", 0))
    return batches or _is_computed(node, 2) or _reads_integers(node)


def _has_lengths(node: Any) -> bool:
    lengths = node.input_value(_LENGTHS[node.get_type_name()]).get_node()
    time = node.get_input_partial_shape(0)[1]
    if lengths.get_type_name() != "Constant" or time.is_dynamic:
        return True
    return bool((lengths.data != time.get_length()).any())


def _tile(node: Any) -> bool:
    data, repeats = node.get_input_partial_shape(0), node.get_input_partial_shape(1)
    if data.rank.is_dynamic or repeats.is_dynamic:
        return True
    return not len(data) or len(data) != repeats[0].get_length()


def _looks_outside(node: Any) -> bool:
    """Return whether constant indices of a GatherND may be out of range, also of one sample of a batch.

    A loop's result may have another shape than the model declares.
    """
    if _is_computed(node, 1):
        return False
    if node.input_value(0).get_node().get_type_name() in ("TensorIterator", "Loop"):
        return True
    data, indices = node.get_input_partial_shape(0), node.input_value(1).get_node().data
    begin = int(node.get_attributes()["batch_dims"])
    if data.is_dynamic or not indices.size:
        return False
    limits = list(data.to_shape())[begin : begin + indices.shape[-1]]
    return bool(((indices < 0) | (indices >= limits)).any())


_CONDITIONS: dict[str, Callable[[Any], bool]] = {
    **dict.fromkeys(_LENGTHS, _has_lengths),
    "Gather": _gather,
    "GatherND": _looks_outside,
    "BatchToSpace": lambda node: node.input_value(0).get_index() > 0,
    "Tile": _tile,
    "Pad": lambda node: _is_computed(node, 3),
    "ReadValue": lambda node: node.get_output_partial_shape(0).is_dynamic and _is_half(node),
    "ScatterUpdate": _reads_integers,
    "Slice": lambda node: _is_computed(node, 4),
    "SliceScatter": lambda node: any(_is_computed(node, at) for at in range(2, 6)) or _is_open(node),
    "Transpose": lambda node: node.get_input_partial_shape(1) == ov.PartialShape([0]),
}


def _is_half(node: Any) -> bool:
    return bool(node.get_output_element_type(0).size == 2)


def _is_open(node: Any) -> bool:
    return any(node.get_input_partial_shape(position).is_dynamic for position in (0, 1))
