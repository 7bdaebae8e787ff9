"""Real models with dynamic dimensions equal OpenVINO's CPU device at every shape."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import openvino as ov
import pytest

from softnpu.plugin import Core
from softnpu.tools.models.fetch import get
from tests.support.dynamic import F32

_COMPILER = F32 | {"NPU_BATCH_MODE": "COMPILER"}


@pytest.fixture
def core(shared_core: Core) -> Core:
    return shared_core


def _equal(core: Core, name: str, bounds: dict[str, str], inputs: list[list[npt.NDArray[Any]]]) -> None:
    model = ov.Core().read_model(get(name))
    model.reshape(bounds)
    cpu = ov.Core().compile_model(model, "CPU", F32).create_infer_request()
    compiled = core.compile_model(model, "NPU", _COMPILER)
    request = compiled.create_infer_request()
    for arrays in inputs:
        found, expected = request.infer(arrays), cpu.infer(arrays)
        for index in range(len(compiled.outputs)):
            assert found[index].shape == expected[index].shape
            np.testing.assert_array_equal(found[index], expected[index])


def test_minilm_with_sentences_of_any_length(core: Core) -> None:
    random = np.random.default_rng(5)
    shapes = [(1, 7), (3, 12), (1, 64), (2, 1), (1, 7)]
    names = [port.any_name for port in ov.Core().read_model(get("minilm")).inputs]
    batches = [
        [
            random.integers(1, 1000, shape, np.int64) if "ids" in name else np.ones(shape, np.int64)
            for name in names
        ]
        for shape in shapes
    ]
    _equal(core, "minilm", dict.fromkeys(names, "[1..4,1..64]"), batches)


def test_yolov8n_with_pictures_of_any_size(core: Core) -> None:
    random = np.random.default_rng(6)
    pictures = [
        [random.random((count, 3, height, width), np.float32)]
        for count, height, width in ((1, 64, 96), (2, 96, 64), (1, 160, 160), (1, 64, 96))
    ]
    _equal(core, "yolov8n", {"images": "[1..2,3,..320,?]"}, pictures)
