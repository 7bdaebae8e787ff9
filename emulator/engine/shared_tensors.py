"""Find outputs without a tensor of their own: those that are an input or equal another output.

OpenVINO's CPU runtime has one tensor for both. Setting such an output would move the input as well, and the
model would compute from the memory of its result. Models declare such outputs, and transformations create
them: from an Einsum "ab->ab", an If with a constant condition, two operations that compute the same. So these
outputs are copied from the tensor that has their value.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import openvino as ov


class Origin(NamedTuple):
    """Where the value of an output is: the position of an input, or of an output with its own tensor."""

    input: bool
    position: int


def origins(compiled: ov.CompiledModel) -> Mapping[int, Origin]:
    """Return the outputs without a tensor of their own, by position."""
    inputs = [port.get_tensor() for port in compiled.inputs]
    outputs = [port.get_tensor() for port in compiled.outputs]
    # one descriptor is one Python object as long as that lives: the lists keep them
    known = {id(tensor): Origin(True, position) for position, tensor in enumerate(inputs)}
    shared = {}
    for position, tensor in enumerate(outputs):
        origin = known.setdefault(id(tensor), Origin(False, position))
        if origin != (False, position):
            shared[position] = origin
    return shared
