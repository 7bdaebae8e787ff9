"""Find outputs without a tensor of their own: those equal to an input or another output.

OpenVINO's CPU runtime has one tensor for both. Setting such an output would redirect the input as well, and
the model would read its input from the memory of its result. Models declare such outputs, and transformations
create them: from an Einsum "ab->ab", an If with a constant condition, two identical operations. So these
outputs are copied from the tensor that holds their value.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import openvino as ov


class Origin(NamedTuple):
    """The source of an output's value: the position of an input, or of an output with its own tensor."""

    input: bool
    position: int


def origins(compiled: ov.CompiledModel) -> Mapping[int, Origin]:
    """Return the outputs without a tensor of their own, by position."""
    inputs = [port.get_tensor() for port in compiled.inputs]
    outputs = [port.get_tensor() for port in compiled.outputs]
    # a descriptor is one Python object while that is alive: the lists keep them
    known = {id(tensor): Origin(True, position) for position, tensor in enumerate(inputs)}
    shared: dict[int, Origin] = {}
    for position, tensor in enumerate(outputs):
        origin = known.setdefault(id(tensor), Origin(False, position))
        if origin != (False, position):
            shared[position] = origin
    return shared


def take_inputs(model: ov.Model, compiled: ov.CompiledModel) -> bool:
    """Connect outputs of dynamic shape that equal an input to it in `model` too; return whether any changed.

    When no-ops are removed, such outputs keep a descriptor of their own. With two equal ones, an inference
    (2026.4) writes its input into the input of another request.
    """
    equal: dict[int, list[int]] = {}
    for position, origin in origins(compiled).items():
        if not origin.input:
            equal.setdefault(origin.position, [origin.position]).append(position)
    taken = False
    for first, positions in equal.items():
        number = _input_behind(compiled, first)
        if number is None:
            continue
        taken = True
        for position in positions:
            value = model.inputs[number].node.output(0)
            model.outputs[position].node.input(0).replace_source_output(value)
    return taken


def _input_behind(compiled: ov.CompiledModel, position: int) -> int | None:
    """Return the input that an output of dynamic shape equals in the executed model; None if none."""
    port = compiled.outputs[position]
    if not port.partial_shape.is_dynamic or not any(_is_like(port, other) for other in compiled.inputs):
        return None
    executed = compiled.get_runtime_model()  # its nodes have the names of the ports, each once
    names = {result.get_friendly_name(): result for result in executed.get_results()}
    result = names.get(port.node.get_friendly_name())
    producer = None if result is None else result.input_value(0).get_node()
    if producer is None or producer.get_type_name() != "Parameter":
        return None
    inputs = [other.node.get_friendly_name() for other in compiled.inputs]
    return inputs.index(producer.get_friendly_name())


def _is_like(output: ov.ConstOutput, other: ov.ConstOutput) -> bool:
    alike: bool = output.partial_shape == other.partial_shape and output.element_type == other.element_type
    return alike
