"""Outputs that are inputs: OpenVINO's CPU runtime has one tensor for both.

Whoever sets the output of such a pair sets the input with it, and the model computes from the wrong memory.
An operation between the two keeps them apart; the runtime makes a copy of it.
"""

from __future__ import annotations

import openvino as ov
from openvino import opset13 as ops


def separate(model: ov.Model) -> None:
    """Puts a conversion to the same type between every input and an output that is this input."""
    for result in model.get_results():
        source = result.input_value(0)
        if source.get_node().get_type_name() == "Parameter":
            copy = ops.convert(source, source.get_element_type())
            copy.set_friendly_name(f"{result.get_friendly_name()}/copy")
            result.input(0).replace_source_output(copy.output(0))
