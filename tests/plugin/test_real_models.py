"""Real models: the numbers are those of OpenVINO's CPU device, also from several processes at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import openvino as ov
import pytest

from softnpu.plugin import Core
from softnpu.tools.models.catalogue import lookup
from softnpu.tools.models.fetch import get
from tests.conftest import StartPython
from tests.support.daemon import Daemon

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


@pytest.mark.parametrize("name", NAMES)
def test_a_model_file_is_shaped_by_the_compiler(core: Core, reference: ov.Core, name: str) -> None:
    model = _shaped(name)
    inputs = _inputs(model)
    expected = reference.compile_model(model, "CPU", F32)(inputs)[0]
    compiled = core.compile_model(get(name), "NPU", F32, shapes=lookup(name).shapes)
    np.testing.assert_array_equal(compiled(inputs)[0], expected)


def test_a_dynamic_model_without_shapes_stays_dynamic(core: Core) -> None:
    assert core.compile_model(get("yolov8n")).input("images").partial_shape.is_dynamic


def test_a_bf16_model_is_refused_or_computed_as_asked(core: Core, reference: ov.Core, digits: Path) -> None:
    image = np.random.default_rng(3).random((1, 1, 8, 8), np.float32) * 16
    capable = "BF16" in reference.get_property("CPU", "OPTIMIZATION_CAPABILITIES")
    config = {"INFERENCE_PRECISION_HINT": "bf16"}
    if not capable:
        with pytest.raises(RuntimeError, match="bf16"):
            core.compile_model(digits, "NPU", config)
        return
    expected = reference.compile_model(digits, "CPU", config)(image)[0]
    np.testing.assert_array_equal(core.compile_model(digits, "NPU", config)(image)[0], expected)


_CLIENT = """
import openvino as ov
from softnpu.plugin import Core
core = Core(given["socket"])
compiled = core.compile_model(given["model"], "NPU", given["config"], shapes=given["shapes"])
request = compiled.create_infer_request()
data = np.load(given["inputs"])
inputs = [data[f"arr_{index}"] for index in range(len(data.files))]
expected = np.load(given["expected"])
say("ready")
hear()
equal = all(np.array_equal(request.infer(inputs)[0], expected) for _ in range(given["count"]))
say(equal)
"""


@pytest.mark.parametrize("name", NAMES)
def test_four_processes_at_once_get_the_right_numbers_from_one_loaded_model(
    daemon: Daemon, reference: ov.Core, start_python: StartPython, private_dir: Path, name: str
) -> None:
    model = _shaped(name)
    inputs = _inputs(model)
    np.savez(private_dir / "inputs.npz", *inputs)
    np.save(private_dir / "expected.npy", reference.compile_model(model, "CPU", F32)(inputs)[0])
    clients = [
        start_python(
            _CLIENT,
            socket=str(daemon.socket),
            model=str(get(name)),
            config=F32,
            shapes={port: list(shape) for port, shape in lookup(name).shapes.items()},
            inputs=str(private_dir / "inputs.npz"),
            expected=str(private_dir / "expected.npy"),
            count=10,
        )
        for _ in range(4)
    ]
    for client in clients:
        assert client.hear(120) == "ready"
    assert daemon.engine().graphs == 4
    assert daemon.engine().images == 1
    for client in clients:
        client.tell("go")
    for client in clients:
        assert client.hear(120) is True
        client.finish()
