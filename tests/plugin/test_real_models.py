"""Real models with dynamic dimensions, with a split batch, and exported: the CPU device's numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest

from softnpu.plugin import Core
from softnpu.tools.models.catalogue import lookup
from softnpu.tools.models.fetch import get
from tests.conftest import StartPython
from tests.support.batches import F32, on_cpu
from tests.support.daemon import Daemon

_COMPILER = F32 | {"NPU_BATCH_MODE": "COMPILER"}


def _inputs(model: ov.Model, shapes: Mapping[str, Sequence[int]], seed: int = 0) -> list[Any]:
    """Random inputs in these shapes: numbers below 1, tokens, zeros and ones for other integers."""
    arrays: list[Any] = []
    for number, port in enumerate(model.inputs):
        data = np.random.default_rng([seed, number]).random(tuple(shapes[port.any_name]))
        kind = port.element_type.to_dtype()
        most = 1000 if port.any_name == "input_ids" else 2 if np.issubdtype(kind, np.integer) else 1
        arrays.append((data * most).astype(kind))
    return arrays


# ---------------------------------------------------------------- dynamic dimensions

_ANY_SHAPES: dict[str, tuple[str, list[tuple[int, ...]]]] = {
    # sentences of any length, pictures of any size
    "minilm": ("[1..4,1..64]", [(1, 7), (3, 12), (1, 64), (2, 1), (1, 7)]),
    "yolov8n": ("[1..2,3,..320,?]", [(1, 3, 64, 96), (2, 3, 96, 64), (1, 3, 160, 160), (1, 3, 64, 96)]),
}


@pytest.mark.parametrize("name", _ANY_SHAPES)
def test_results_equal_the_cpu_device_at_every_shape(shared_core: Core, name: str) -> None:
    bounds, shapes = _ANY_SHAPES[name]
    model = ov.Core().read_model(get(name))
    names = [port.any_name for port in model.inputs]
    model.reshape(dict.fromkeys(names, bounds))
    cpu = ov.Core().compile_model(model, "CPU", F32).create_infer_request()
    compiled = shared_core.compile_model(model, "NPU", _COMPILER)
    request = compiled.create_infer_request()
    for seed, shape in enumerate(shapes):
        inputs = _inputs(model, dict.fromkeys(names, shape), seed)
        found, expected = request.infer(inputs), cpu.infer(inputs)
        for index in range(len(compiled.outputs)):
            assert found[index].shape == expected[index].shape
            np.testing.assert_array_equal(found[index], expected[index])


# ---------------------------------------------------------------- a batch


@pytest.mark.parametrize(
    ("name", "batch"),
    [
        ("yolov8n", 4),
        ("minilm", -1),
        ("minilm", 4),
        pytest.param("magika", -1, marks=pytest.mark.soak),
    ],
)
def test_results_equal_the_unsplit_batch(shared_core: Core, name: str, batch: int) -> None:
    one = {port: list(shape) for port, shape in lookup(name).shapes.items()}
    model = ov.Core().read_model(get(name))
    asked = {port: [batch, *shape[1:]] for port, shape in one.items()}
    compiled = shared_core.compile_model(get(name), "NPU", F32, shapes=asked)
    assert compiled.get_property("BATCH_MODE") == ("COMPILER" if name == "minilm" and batch > 0 else "PLUGIN")
    assert [list(port.partial_shape) for port in compiled.inputs] == [
        list(ov.PartialShape(shape)) for shape in asked.values()
    ]
    for count in (4, 2) if compiled.get_property("BATCH_MODE") == "PLUGIN" else (4,):
        inputs = _inputs(model, {port: [count, *shape[1:]] for port, shape in one.items()})
        expected = on_cpu(model, inputs)
        found = compiled(inputs)
        for index, array in enumerate(expected):
            np.testing.assert_allclose(found[index], array, rtol=1e-3, atol=1e-3)


# ---------------------------------------------------------------- exported

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
    shapes = lookup(name).shapes
    model = ov.Core().read_model(get(name))
    model.reshape({port: list(shape) for port, shape in shapes.items()})
    inputs = _inputs(model, shapes)
    cpu = reference.compile_model(model, "CPU", F32)(inputs)
    np.savez(private_dir / "inputs.npz", *inputs)
    np.savez(private_dir / "expected.npz", *(cpu[index] for index in range(len(model.outputs))))
    config = F32 | {"ENABLE_WEIGHTLESS": weightless}
    compiled = core.compile_model(get(name), "NPU", config, shapes=shapes)
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
