"""Find the models whose quantised layers OpenVINO's CPU runtime fuses, which may compute other numbers.

From AVX-512 on it makes one subgraph of a chain of quantised MatMuls, or of quantised attention. That may
compute something else, some of it from memory that nobody wrote, or damage the heap (2026.4). Without such
subgraphs the same layers compute what the model says; where the subgraph is right, both have the same bits.
"""

from __future__ import annotations

from typing import Any

import openvino as ov

from softnpu.emulator.common.model_bodies import all_bodies

UNFUSED = {"SNIPPETS_MODE": "DISABLE"}
"""The property of OpenVINO's CPU device that makes no subgraphs."""
_QUANTISES = "FakeQuantize"
_BYTES = ("i8", "u8")
_MULTIPLIES = ("MatMul", "ScaledDotProductAttention")
_NAMES = "originalLayersNames"


def are_in(model: ov.Model, compiled: ov.CompiledModel) -> bool:
    """Return whether a subgraph of what was compiled multiplies matrices of 8 bits.

    `compiled` does not show bodies: they count as affected if they quantise. A subgraph of operations that
    the model does not name counts as one that multiplies.
    """
    bodies = any(_quantises(body) for body in all_bodies(model))
    if bodies or not _quantises(model):
        return bodies
    harmless = {
        operation.get_friendly_name()
        for operation in model.get_ops()
        if operation.get_type_name() not in _MULTIPLIES
    }
    return any(
        any(port.get_element_type().to_string() in _BYTES for port in operation.inputs())
        and not harmless.issuperset(str(operation.get_rt_info()[_NAMES].astype(str)).split(","))
        for operation in compiled.get_runtime_model().get_ordered_ops()
        if _is_subgraph(operation)
    )


def _quantises(model: ov.Model) -> bool:
    return any(operation.get_type_name() == _QUANTISES for operation in model.get_ops())


def _is_subgraph(operation: Any) -> bool:
    info = operation.get_rt_info()
    return "layerType" in info and str(info["layerType"].astype(str)) == "Subgraph"
