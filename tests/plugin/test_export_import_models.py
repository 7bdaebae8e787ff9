"""Real models, exported and imported: the same bits, in other processes that share them."""

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


_CLIENT = """
from softnpu.plugin import Core
core = Core(given["socket"])
compiled = core.import_model(given["file"], "NPU")
request = compiled.create_infer_request()
data = np.load(given["inputs"])
inputs = [data[f"arr_{index}"] for index in range(len(data.files))]
say("ready")
hear()
found = [request.infer(inputs)[index] for index in range(len(compiled.outputs))]
expected = np.load(given["expected"])
say(all(np.array_equal(found[index], expected[f"arr_{index}"]) for index in range(len(found))))
"""


@pytest.mark.parametrize(
    ("name", "weightless"),
    [
        ("yolov8n", False),
        ("magika", True),
        pytest.param("minilm", True, marks=pytest.mark.soak),
    ],
)
def test_other_processes_import_it_and_share_one_image(
    core: Core,
    daemon: Daemon,
    reference: ov.Core,
    start_python: StartPython,
    private_dir: Path,
    name: str,
    weightless: bool,
) -> None:
    model = _shaped(name)
    inputs = _inputs(model)
    cpu = reference.compile_model(model, "CPU", F32)(inputs)
    np.savez(private_dir / "inputs.npz", *inputs)
    np.savez(private_dir / "expected.npz", *(cpu[index] for index in range(len(model.outputs))))
    config = F32 | {"ENABLE_WEIGHTLESS": weightless}
    compiled = core.compile_model(get(name), "NPU", config, shapes=lookup(name).shapes)
    found = compiled(inputs)
    for index in range(len(model.outputs)):
        np.testing.assert_array_equal(found[index], cpu[index])
    compiled.export_model(private_dir / "model.blob")
    del compiled, found
    clients = [
        start_python(
            _CLIENT,
            socket=str(daemon.socket),
            file=str(private_dir / "model.blob"),
            inputs=str(private_dir / "inputs.npz"),
            expected=str(private_dir / "expected.npz"),
        )
        for _ in range(3)
    ]
    for client in clients:
        assert client.hear(120) == "ready"
    assert (daemon.engine().graphs, daemon.engine().images) == (3, 1)
    for client in clients:
        client.tell("go")
    for client in clients:
        assert client.hear(120) is True
        client.finish()
