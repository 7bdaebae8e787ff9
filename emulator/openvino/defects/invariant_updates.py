"""Have updates of what does not change between the iterations of a loop work on a copy.

OpenVINO writes them over the input of the loop, so that the next iteration begins with the updated numbers.
"""

from __future__ import annotations

from typing import Any, Final

from openvino import opset13 as ops

from softnpu.emulator.common.graph_edits import numbers
from softnpu.emulator.common.model_bodies import all_bodies

LOOPS: Final = frozenset({"Loop", "TensorIterator"})
_UPDATES: Final = frozenset({"ScatterElementsUpdate", "ScatterNDUpdate", "ScatterUpdate"})
_IN_PLACE: Final = frozenset({"Reshape", "Squeeze", "Unsqueeze"})


def separate_states(model: Any) -> bool:
    """Put a Roll by 0, which copies and is not left out, before each update of an invariant input."""
    parts = [model, *all_bodies(model)]
    loops = [node for part in parts for node in part.get_ops() if node.get_type_name() in LOOPS]
    copied = [_copy_in(loop) for loop in loops]
    return any(copied)


def _copy_in(loop: Any) -> bool:
    body = loop.get_function()
    parameters = [parameter.get_friendly_name() for parameter in body.get_parameters()]
    invariant = {
        parameters[each.body_parameter_index]
        for each in loop.get_input_descriptions()
        if type(each).__name__ == "InvariantInputDescription"
    }
    updates = [
        node
        for node in body.get_ops()
        if node.get_type_name() in _UPDATES and _origin(node.input_value(0)) in invariant
    ]
    for node in updates:
        copied = ops.roll(node.input_value(0), numbers([0]), numbers([0]))
        node.input(0).replace_source_output(copied.output(0))
    if updates:
        body.validate_nodes_and_infer_types()
    return bool(updates)


def _origin(output: Any) -> str:
    """Return the name of the parameter whose memory this may be; empty if it is none's."""
    node = output.get_node()
    while node.get_type_name() in _IN_PLACE:
        node = node.input_value(0).get_node()
    name: str = node.get_friendly_name() if node.get_type_name() == "Parameter" else ""
    return name
