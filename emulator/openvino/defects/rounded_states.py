"""Keep outputs that are states from changing OpenVINO's fusion, where fusion changes numbers.

On a host that computes in bf16, OpenVINO's CPU runtime (2026.4) rounds numbers of that type after each
operation but not inside fused ones. It fuses an operation whose result is assigned to a variable with the
next one, but not if the result is an output. Such an output is therefore reshaped, without a copy.
"""

from __future__ import annotations

from collections.abc import Iterator

import openvino as ov
from openvino import opset13

from softnpu.emulator.blob.container import ASSIGN, GraphMeta

_TYPE = "bf16"


def separate_states(model: ov.Model, meta: GraphMeta) -> None:
    """Prepend a dimension of 1 to outputs that are states with other consumers in the model."""
    results = model.get_results()
    for position in _states(meta):
        value = results[position].input_value(0)
        if len(value.get_target_inputs()) > 1:
            results[position].input(0).replace_source_output(opset13.unsqueeze(value, 0).output(0))


def positions(meta: GraphMeta, compiled: ov.CompiledModel) -> frozenset[int]:
    """Return the positions of the outputs changed by `separate_states`."""
    return frozenset(
        position
        for position in _states(meta)
        if compiled.outputs[position].partial_shape == ov.PartialShape([1, *meta.outputs[position].shape])
    )


def _states(meta: GraphMeta) -> Iterator[int]:
    if meta.dynamic_states:
        return
    for position, argument in enumerate(meta.outputs):
        if argument.name.startswith(ASSIGN) and argument.element_type == _TYPE:
            yield position
