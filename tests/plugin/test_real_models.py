"""Real models: the numbers are those of OpenVINO's CPU device, also from several processes at once."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import openvino as ov
import pytest

from softnpu.plugin import Core
from softnpu.tools.models.catalogue import lookup
from softnpu.tools.models.fetch import get

NAMES = ["yolov8n", "magika", "minilm"]
F32 = {"INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY"}


def _shaped(name: str) -> ov.Model:
    model = ov.Core().read_model(get(name))
    model.reshape({port: list(shape) for port, shape in lookup(name).shapes.items()})
    return model


def _inputs(model: ov.Model) -> list[npt.NDArray[Any]]:
    random = np.random.default_rng(7)
    arrays = []
    for port in model.inputs:
        kind = port.element_type.to_dtype()
        shape = tuple(port.shape)
        if np.issubdtype(kind, np.integer):
            arrays.append(random.integers(0, 2, shape).astype(kind))
        else:
            arrays.append(random.random(shape).astype(kind))
    return arrays


@pytest.mark.parametrize("name", NAMES)
def test_the_numbers_are_those_of_the_cpu_device(core: Core, reference: ov.Core, name: str) -> None:
    model = _shaped(name)
    inputs = _inputs(model)
    expected = reference.compile_model(model, "CPU", F32)(inputs)
    found = core.compile_model(model, "NPU", F32)(inputs)
    for index in range(len(model.outputs)):
        np.testing.assert_array_equal(found[index], expected[index])
