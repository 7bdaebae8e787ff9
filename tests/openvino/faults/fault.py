"""What a fault is for a test: a model, inputs, and what they should give."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import openvino as ov

Array = npt.NDArray[Any]
Compile = Callable[[ov.Model, Mapping[str, str]], Any]
"""Compile a model, with properties."""
Fault = Callable[[Compile], str]
"""Run a model. The result says what is wrong, and is empty if nothing is."""

_LOST = "DEVICE_LOST"
"""An engine that has ended refuses nothing."""
_LEFT = 77
"""What outputs hold before an inference."""


class Step(NamedTuple):
    """An inference: its inputs, and its outputs; None if it must be refused."""

    inputs: Sequence[Any]
    expected: Sequence[Array] | None


def steps(make: Callable[[], ov.Model], *given: Step, rtol: float = 0) -> Fault:
    """Return a fault that shows in these inferences of one request."""

    def run(compiled_by: Compile) -> str:
        try:
            request = compiled_by(make(), {}).create_infer_request()
        except RuntimeError as error:
            return "" if all(step.expected is None for step in given) else f"does not compile: {error}"
        for number, step in enumerate(given):
            wrong = _judge(request, step, rtol)
            if wrong:
                return f"inference {number}: {wrong}"
        return ""

    return run


def _judge(request: Any, step: Step, rtol: float) -> str:
    for index, port in enumerate(request.model_outputs):
        if port.partial_shape.is_static:
            request.get_output_tensor(index).data[...] = _LEFT
    try:
        results = request.infer(list(step.inputs)).to_tuple()
    except RuntimeError as error:
        is_right = step.expected is None and _LOST not in str(error)
        return "" if is_right else f"refused: {error}"
    if step.expected is None:
        return "accepted"
    return differences(results, step.expected, rtol)


def differences(found: Sequence[Any], expected: Sequence[Array], rtol: float = 0) -> str:
    """Return how results differ from those that are right."""
    for index, (ours, right) in enumerate(zip(found, expected, strict=True)):
        if ours.shape != right.shape:
            return f"output {index} has shape {ours.shape}, not {right.shape}"
        if not np.allclose(ours, right, rtol, rtol, equal_nan=True):
            return f"output {index} is {ours.reshape(-1)[:8]}, not {right.reshape(-1)[:8]}"
    return ""


def model(outputs: Any, *inputs: Any) -> ov.Model:
    """Return a model of these outputs."""
    given = outputs if isinstance(outputs, list) else [outputs]
    ports = [each if isinstance(each, ov.Output) else each.output(0) for each in given]
    return ov.Model([ov.opset13.result(port) for port in ports], list(inputs), "fault")


def random(*shape: int) -> Array:
    """Return some numbers, always the same."""
    return np.random.default_rng(len(shape)).uniform(-1, 1, shape).astype(np.float32)
