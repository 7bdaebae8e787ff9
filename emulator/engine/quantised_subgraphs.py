"""Find the models whose quantised layers OpenVINO's CPU runtime fuses, which may compute other numbers.

From AVX-512 on it makes one subgraph of a chain of quantised MatMuls, or of quantised attention. That may
compute something else, some of it from memory that nobody wrote, or damage the heap (2026.4). Without such
subgraphs the same layers compute what the model says; where the subgraph is right, both have the same bits.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import openvino as ov
from openvino import opset13

from softnpu.emulator.common.model_bodies import all_bodies

UNFUSED = {"SNIPPETS_MODE": "DISABLE"}
"""The property of OpenVINO's CPU device that makes no subgraphs."""
_QUANTISES = "FakeQuantize"
_BYTES = ("i8", "u8")
_ELEMENTWISE = frozenset(
    ("Abs", "Add", "Clamp", "Convert", "Divide", "Equal", "FakeQuantize", "Greater", "GreaterEqual", "Less",
     "LessEqual", "LogicalAnd", "LogicalNot", "LogicalOr", "LogicalXor", "Maximum", "Minimum", "Multiply",
     "Negative", "NotEqual", "Relu", "Select", "Subtract")
)  # fmt: skip
_NAMES = "originalLayersNames"


def are_in(model: ov.Model, compiled: ov.CompiledModel) -> bool:
    """Return whether a subgraph of what was compiled works on 8 bits, and not element by element.

    `compiled` does not show bodies: they count as affected if they quantise. So does a subgraph of operations
    that the model does not name, or names twice.
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


def widen(model: ov.Model) -> None:
    """Give what is quantised and has one dimension another: without subgraphs OpenVINO refuses to load it."""
    for part in [model, *all_bodies(model)]:
        for node in part.get_ordered_ops():
            shape = node.get_input_partial_shape(0) if node.get_type_name() == _QUANTISES else None
            if shape is not None and shape.rank.is_static and len(shape) == 1:
                readers = list(node.output(0).get_target_inputs())
                wide = opset13.unsqueeze(node.input_value(0), opset13.constant(0))
                node.input(0).replace_source_output(wide.output(0))
                node.validate_and_infer_types()
                narrow = opset13.squeeze(node, opset13.constant(0))
                for reader in readers:
                    reader.replace_source_output(narrow.output(0))
        part.validate_nodes_and_infer_types()


def _quantises(model: ov.Model) -> bool:
    return any(operation.get_type_name() == _QUANTISES for operation in model.get_ops())


def _is_subgraph(operation: Any) -> bool:
    info = operation.get_rt_info()
    return "layerType" in info and str(info["layerType"].astype(str)) == "Subgraph"
