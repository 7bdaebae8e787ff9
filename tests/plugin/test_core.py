"""`Core`: models from memory and from files, progress, and the end of the daemon."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as ops

from softnpu.plugin import CompileError, Core, DeviceLostError, ModelError, NpuError
from tests.conftest import StartDaemon


def test_a_model_in_memory_and_its_file_give_the_same_numbers(
    shared_core: Core, reference: ov.Core, digits: Path
) -> None:
    image = np.random.default_rng(1).random((1, 1, 8, 8), np.float32) * 16
    expected = reference.compile_model(digits, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})(image)[0]
    for model in (digits, str(digits), shared_core.read_model(digits)):
        np.testing.assert_array_equal(shared_core.compile_model(model)(image)[0], expected)


@pytest.mark.parametrize("suffix", [".xml", ".onnx", ".pdmodel", ""])
def test_a_missing_or_broken_file_is_named(shared_core: Core, private_dir: Path, suffix: str) -> None:
    path = private_dir / f"broken{suffix}"
    with pytest.raises(ModelError, match=f"broken{suffix}"):
        shared_core.compile_model(path)
    path.write_bytes(os.urandom(1000))
    with pytest.raises((ModelError, CompileError), match="broken"):
        shared_core.compile_model(path)


@pytest.mark.parametrize("name", [" ", ",", " ,x", "x, "])
def test_an_operation_may_have_a_blank_name(shared_core: Core, name: str) -> None:
    x = ops.parameter([2, 3], ov.Type.f32, name="x")
    negative = ops.negative(x)
    negative.set_friendly_name(name)
    # for new shapes OpenVINO writes down the names of operations, and cannot read blank ones back
    compiled = shared_core.compile_model(ov.Model([negative], [x]), shapes={"x": [4, 3]})
    np.testing.assert_array_equal(compiled(np.ones((4, 3), np.float32))[0], -np.ones((4, 3)))


def _with_odd_names(folder: Path) -> Path:
    """A model with a dynamic batch whose names all contain a byte that is not UTF-8."""
    x, y = (ops.parameter([-1, 3], np.float32, name=f"{name}~operation") for name in "xy")
    x.output(0).set_names({"x~tensor"})
    offset = ops.constant(np.ones((1, 3), np.float32))
    offset.set_friendly_name("offset~")
    total = ops.add(ops.add(x, y, name="sum~"), offset, name="total~")
    total.output(0).set_names({"total~tensor"})
    path = folder / "odd.xml"
    ov.serialize(ov.Model([ops.result(total, name="result~")], [x, y], "model~"), path)
    path.write_bytes(path.read_bytes().replace(b"~", b"\xe4"))
    return path


@pytest.mark.parametrize("mode", ["AUTO", "COMPILER"])
def test_names_that_are_not_utf8_are_escaped(
    shared_core: Core, reference: ov.Core, private_dir: Path, mode: str
) -> None:
    path = _with_odd_names(private_dir)
    data = np.arange(6, dtype=np.float32).reshape(2, 3)
    model = reference.read_model(path)
    for source in (path, model):
        compiled = shared_core.compile_model(source, "NPU", {"BATCH_MODE": mode})
        assert compiled.inputs[0].get_names() == {r"x\xe4tensor"}
        assert compiled.inputs[1].node.friendly_name == r"y\xe4operation"
        assert compiled.outputs[0].any_name == r"total\xe4tensor"
        for found in (compiled, shared_core.import_model(compiled.export_model())):
            np.testing.assert_array_equal(found({r"x\xe4tensor": data, 1: data})[0], 2 * data + 1)
    bounded = shared_core.compile_model(model, shapes={r"x\xe4tensor": ["1..4", 3]})
    assert str(bounded.inputs[0].partial_shape) == "[1..4,3]"
    assert set(shared_core.query_model(model)) >= {r"sum\xe4", r"offset\xe4"}
    request = compiled.create_infer_request()
    request.set_tensor(model.inputs[0], ov.Tensor(data))
    request.set_tensor(model.inputs[1], ov.Tensor(data))
    request.infer()
    np.testing.assert_array_equal(request.get_tensor(model.outputs[0]).data, 2 * data + 1)


def test_without_a_daemon_the_error_says_what_to_do(private_dir: Path) -> None:
    with pytest.raises(NpuError, match="softnpu daemon"):
        _ = Core(private_dir / "nobody.sock").available_devices


def test_after_the_daemon_was_lost_a_core_connects_to_the_next_one(
    start_daemon: StartDaemon, digits: Path
) -> None:
    first = start_daemon()
    core = Core(first.socket)
    compiled = core.compile_model(digits)
    image = np.ones((1, 1, 8, 8), np.float32)
    before = compiled(image)[0]
    first.kill()
    with pytest.raises(DeviceLostError):
        compiled(image)
    start_daemon()
    np.testing.assert_array_equal(core.compile_model(digits)(image)[0], before)
    core.unload_plugin()


def test_compiling_reports_its_stages_and_can_be_cancelled(shared_core: Core, digits: Path) -> None:
    stages: list[tuple[str, float]] = []
    shared_core.compile_model(digits, progress=lambda stage, done: stages.append((stage, done)))
    assert [done for _, done in stages] == sorted(done for _, done in stages)
    assert len({stage for stage, _ in stages}) > 2

    def stop(stage: str, done: float) -> None:
        raise KeyboardInterrupt(f"{stage} {done}")

    with pytest.raises(KeyboardInterrupt):
        shared_core.compile_model(digits, progress=stop)
    assert shared_core.compile_model(digits).outputs[0].any_name == "probabilities"
