"""Find models whose quantised layers OpenVINO's CPU runtime fuses, possibly with wrong results.

From AVX-512 on it fuses a chain of quantised MatMuls, or quantised attention, into one subgraph. That may
compute wrong numbers, some of them from uninitialised memory, or corrupt the heap (2026.4). Without such
subgraphs the same layers are correct; where the subgraph is correct too, the bits are the same.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import openvino as ov
from openvino import opset13

from softnpu.emulator.common.model_bodies import all_bodies

UNFUSED = {"SNIPPETS_MODE": "DISABLE"}
"""The property of OpenVINO's CPU device that disables subgraphs."""
_QUANTISES = "FakeQuantize"
_NORMALISES = "GroupNormalization"
_BYTES = ("i8", "u8")
_ELEMENTWISE = frozenset(
    ("Abs", "Add", "Clamp", "Convert", "Divide", "Equal", "FakeQuantize", "Greater", "GreaterEqual", "Less",
     "LessEqual", "LogicalAnd", "LogicalNot", "LogicalOr", "LogicalXor", "Maximum", "Minimum", "Multiply",
     "Negative", "NotEqual", "Relu", "Select", "Subtract")
)  # fmt: skip
_NAMES = "originalLayersNames"


def are_in(model: ov.Model, compiled: ov.CompiledModel) -> bool:
    """Return whether a compiled subgraph works on 8 bits, and not elementwise.

    `compiled` does not show bodies: they count as affected if they quantise. So does a subgraph of operations
    whose names are missing from the model, or ambiguous.
    """
    bodies = any(_quantises(body) for body in all_bodies(model))
    if bodies or not _quantises(model):
        return bodies
    names = Counter(operation.get_friendly_name() for operation in model.get_ops())
    harmless = {
        operation.get_friendly_name()
        for operation in model.get_ops()
        if operation.get_type_name() in _ELEMENTWISE and names[operation.get_friendly_name()] == 1
    }
    return any(
        any(port.get_element_type().to_string() in _BYTES for port in operation.inputs())
        and not harmless.issuperset(str(operation.get_rt_info()[_NAMES].astype(str)).split(","))
        for operation in compiled.get_runtime_model().get_ordered_ops()
        if _is_subgraph(operation)
    )


def make_loadable(model: ov.Model) -> None:
    """Replace operations that OpenVINO refuses to load without subgraphs by equivalent ones.

    They are a FakeQuantize of one dimension, and a GroupNormalization.
    """
    for part in [model, *all_bodies(model)]:
        for node in part.get_ordered_ops():
            kind, shape = node.get_type_name(), None
            if kind in (_QUANTISES, _NORMALISES):
                shape = node.get_input_partial_shape(0)
            if shape is None or shape.rank.is_dynamic:
                continue
            if kind == _NORMALISES:
                _replace(node, list(node.output(0).get_target_inputs()), _normalised(node, len(shape)))
            elif len(shape) == 1:
                readers = list(node.output(0).get_target_inputs())
                wide = opset13.unsqueeze(node.input_value(0), opset13.constant(0))
                node.input(0).replace_source_output(wide.output(0))
                node.validate_and_infer_types()
                _replace(node, readers, opset13.squeeze(node, opset13.constant(0)))
        part.validate_nodes_and_infer_types()


def _normalised(node: Any, rank: int) -> Any:
    """Return a GroupNormalization as a normalisation per group, scaled and shifted per channel."""
    data, scale, bias = node.input_values()
    attributes = node.get_attributes()
    pattern = opset13.constant(np.array([0, attributes["num_groups"], -1]))
    groups = opset13.reshape(data, pattern, special_zero=True)
    values = opset13.mvn(groups, opset13.constant([2]), True, attributes["epsilon"], "inside_sqrt")
    values = opset13.reshape(values, opset13.shape_of(data), special_zero=False)
    if rank > 2:
        others = opset13.constant(list(range(1, rank - 1)))
        scale, bias = (opset13.unsqueeze(each, others) for each in (scale, bias))
    return opset13.add(opset13.multiply(values, scale), bias)


def _replace(node: Any, readers: list[Any], made: Any) -> None:
    made.set_friendly_name(f"{node.get_friendly_name()}/without subgraphs")
    for reader in readers:
        reader.replace_source_output(made.output(0))


def _quantises(model: ov.Model) -> bool:
    return any(operation.get_type_name() == _QUANTISES for operation in model.get_ops())


def _is_subgraph(operation: Any) -> bool:
    info = operation.get_rt_info()
    return "layerType" in info and str(info["layerType"].astype(str)) == "Subgraph"
