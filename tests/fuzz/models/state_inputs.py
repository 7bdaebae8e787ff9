"""A stateful model on OpenVINO's CPU device with external states: as inputs and outputs.

This follows the operations' specification. With states of its own the CPU device keeps some in another type,
and omits conversions of them (docs/plugin.md, States).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import openvino as ov
from openvino import opset13

from tests.fuzz.models.case import Case

Compile = Callable[[ov.Model], Any]
Run = Callable[[Any, list[ov.Tensor]], list[ov.Tensor]]
"""Run a compiled model on inputs; return copies of its outputs."""


class Outside:
    """The stateless model, and its states, which begin as `zeros` or as the model says."""

    def __init__(self, case: Case, zeros: bool) -> None:
        self._shown = len(case.model.get_results())
        model = case.model.clone()
        nodes = model.get_ordered_ops()
        reads = [node for node in nodes if node.get_type_name() == "ReadValue"]
        writes = {node.get_variable_id(): node for node in nodes if node.get_type_name() == "Assign"}
        self._kinds = [(node.get_element_type(), list(node.get_output_shape(0))) for node in reads]
        self._begin = None if zeros else _beginning(case.model)
        places = []
        for number, node in enumerate(reads):
            place = opset13.parameter(self._kinds[number][1], self._kinds[number][0])
            place.set_friendly_name(f"state.{number}")
            node.output(0).replace(place.output(0))
            places.append(place)
        after = []
        for node, place in zip(reads, places, strict=True):
            write = writes.get(node.get_variable_id())
            after.append(opset13.result(place if write is None else write.input_value(0)))
        self.model = ov.Model([*model.get_results(), *after], [*model.get_parameters(), *places], "outside")

    def run(self, case: Case, compile_model: Compile, run: Run) -> list[list[ov.Tensor] | RuntimeError]:
        """Return the outputs of every step, or the error: then no state has changed."""
        compiled = compile_model(self.model)
        states = [ov.Tensor(kind, ov.Shape(shape)) for kind, shape in self._kinds]
        for one in states:
            if one.size:
                one.data[...] = 0
        if self._begin is not None:
            begin, which = self._begin
            results, values = begin.get_results(), run(compile_model(begin), case.steps[0])
            for index, result, value in zip(which, results, values, strict=True):
                states[index] = value
                if not _depends_on_inputs(result):
                    _flush(value)
        found: list[list[ov.Tensor] | RuntimeError] = []
        for step in case.steps:
            try:
                outputs = run(compiled, [*step, *states])
            except RuntimeError as error:
                found.append(error)
                compiled = compile_model(self.model)
                continue
            found.append(outputs[: self._shown])
            states = outputs[self._shown :]
        return found


def _depends_on_inputs(node: Any) -> bool:
    return node.get_type_name() == "Parameter" or any(
        _depends_on_inputs(port.get_node()) for port in node.input_values()
    )


def _flush(constant: ov.Tensor) -> None:
    """Flush subnormal numbers and minus zero to zero, as in the CPU device's constants."""
    if constant.get_element_type() == ov.Type.f32 and constant.size:
        numbers = np.asarray(constant.data).reshape(-1).view(np.uint32)
        numbers[(numbers & 0x7F800000) == 0] = 0


def _beginning(model: ov.Model) -> tuple[ov.Model, list[int]] | None:
    """Return a model of the states' initial values, and their indices. `None` if there are none."""
    model = model.clone()
    reads = [node for node in model.get_ordered_ops() if node.get_type_name() == "ReadValue"]
    which = [index for index, node in enumerate(reads) if node.get_input_size()]
    if not which:
        return None
    results = [opset13.result(reads[index].input_value(0)) for index in which]
    return ov.Model(results, model.get_parameters(), "begin"), which
