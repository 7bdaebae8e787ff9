"""Outputs without a tensor of their own: those that are an input, or that show what another output shows.

OpenVINO's CPU runtime has one tensor for both then, and a request one place for it. Whoever sets such an
output moves the input as well, and the model computes from the memory of its result. A model can say so
itself, and transformations leave it so: of an Einsum "ab->ab", of an If with a constant condition, of two
operations that compute the same. So these outputs are copied, from where their value is.
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
    """The outputs without a tensor of their own, by position."""
    inputs = [port.get_tensor() for port in compiled.inputs]
    outputs = [port.get_tensor() for port in compiled.outputs]
    # one descriptor is one Python object as long as that lives: the lists keep them
    known = {id(tensor): Origin(True, position) for position, tensor in enumerate(inputs)}
    found = {}
    for position, tensor in enumerate(outputs):
        origin = known.setdefault(id(tensor), Origin(False, position))
        if origin != (False, position):
            found[position] = origin
    return found
