"""Models with empty constants, on every path to the device."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest

from softnpu.plugin import CompiledModel, Core
from tests.support.cases import case
from tests.support.empty_constants import MODELS

F32 = {"INFERENCE_PRECISION_HINT": "f32"}
WEIGHTLESS = {"ENABLE_WEIGHTLESS": True}


def _file(model: ov.Model, folder: Path) -> Path:
    path = folder / "model.xml"
    ov.save_model(model, path, compress_to_fp16=False)
    return path


def _cached(core: Core, model: ov.Model, folder: Path) -> CompiledModel:
    core.compile_model(model, "NPU", {"CACHE_DIR": folder})
    again = core.compile_model(model, "NPU", {"CACHE_DIR": folder})
    assert again.get_property("LOADED_FROM_CACHE")
    return again


def _weightless(core: Core, model: ov.Model, folder: Path) -> CompiledModel:
    path = _file(model, folder)
    blob = core.compile_model(path, "NPU", WEIGHTLESS).export_model()
    return core.import_model(blob, "NPU", {"WEIGHTS_PATH": path})


WAYS: dict[str, Callable[[Core, ov.Model, Path], CompiledModel]] = {
    "in memory": lambda core, model, _: core.compile_model(model, "NPU"),
    "file": lambda core, model, folder: core.compile_model(_file(model, folder), "NPU"),
    "read from a file": lambda core, model, folder: core.compile_model(
        ov.Core().read_model(_file(model, folder)), "NPU"
    ),
    "all weights copied": lambda core, model, _: core.compile_model(
        model, "NPU", {"NPU_USE_BASE_MODEL_SERIALIZER": True}
    ),
    "small weights copied": lambda core, model, _: core.compile_model(
        model, "NPU", {"NPU_SERIALIZATION_WEIGHTS_SIZE_THRESHOLD": 100}
    ),
    "exported": lambda core, model, _: core.import_model(core.compile_model(model, "NPU").export_model()),
    "cached": _cached,
    "weightless": _weightless,
    "weightless, from the model": lambda core, model, folder: core.import_model(
        core.compile_model(_file(model, folder), "NPU", WEIGHTLESS).export_model(),
        "NPU",
        {ov.properties.hint.model: model},
    ),
}


def _inputs(model: ov.Model) -> list[Any]:
    generator = np.random.default_rng(1)
    return [generator.random(list(port.shape)).astype(port.element_type.to_dtype()) for port in model.inputs]


@pytest.mark.parametrize("kind", MODELS)
def test_constants_without_elements(
    shared_core: Core, reference: ov.Core, private_dir: Path, kind: str
) -> None:
    for number, (way, compiled) in enumerate(WAYS.items()):
        with case(way):
            folder = private_dir / str(number)
            folder.mkdir()
            model = MODELS[kind]()
            inputs = _inputs(model)
            expected = reference.compile_model(model, "CPU", F32)(inputs).to_tuple()
            found = compiled(shared_core, model, folder)(inputs).to_tuple()
            for ours, theirs in zip(found, expected, strict=True):
                assert ours.shape == theirs.shape
                np.testing.assert_array_equal(ours, theirs)
