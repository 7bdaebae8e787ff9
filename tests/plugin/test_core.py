"""`Core`: devices, models from memory and from files, and what it refuses."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest

from softnpu.driver import ZeError
from softnpu.plugin import CompileError, Core, DeviceLostError, ModelError, NpuError, PropertyError
from tests.conftest import StartDaemon
from tests.support.daemon import Daemon


def test_one_device_is_called_npu(core: Core) -> None:
    assert core.available_devices == ["NPU"]


def test_several_devices_are_numbered(start_daemon: StartDaemon) -> None:
    daemon = start_daemon(devices=("3720", "4000", "5010"))
    core = Core(daemon.socket)
    assert core.available_devices == ["NPU.0", "NPU.1", "NPU.2"]
    core.unload_plugin()


def test_each_device_computes(start_daemon: StartDaemon, digits: Path) -> None:
    daemon = start_daemon(devices=("3720", "5010"))
    core = Core(daemon.socket)
    image = np.ones((1, 1, 8, 8), np.float32)
    results = [core.compile_model(digits, name)(image)[0] for name in ("NPU.0", "NPU.1")]
    np.testing.assert_array_equal(results[0], results[1])
    assert [engine.inferences for engine in daemon.status().engines] == [1, 1]
    core.unload_plugin()


@pytest.mark.parametrize("name", ["GPU", "NPU.1", "NPU.x", ""])
def test_a_device_that_is_not_there_is_refused_by_name(core: Core, digits: Path, name: str) -> None:
    with pytest.raises(PropertyError, match=repr(name)):
        core.compile_model(digits, name)


def test_a_model_in_memory_and_its_file_give_the_same_numbers(
    core: Core, reference: ov.Core, digits: Path
) -> None:
    image = np.random.default_rng(1).random((1, 1, 8, 8), np.float32) * 16
    from_file = core.compile_model(digits)(image)[0]
    from_text = core.compile_model(str(digits), "NPU")(image)[0]
    from_memory = core.compile_model(core.read_model(digits))(image)[0]
    config = {"INFERENCE_PRECISION_HINT": "f32"}
    expected = reference.compile_model(digits, "CPU", config)(image)[0]
    for found in (from_file, from_text, from_memory):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("suffix", [".xml", ".onnx", ".pdmodel", ""])
def test_a_missing_file_is_named(core: Core, private_dir: Path, suffix: str) -> None:
    path = private_dir / f"nothing{suffix}"
    with pytest.raises(ModelError, match=f"nothing{suffix}"):
        core.compile_model(path)


@pytest.mark.parametrize("suffix", [".xml", ".onnx"])
def test_a_file_that_is_no_model_is_refused(core: Core, private_dir: Path, suffix: str) -> None:
    path = private_dir / f"broken{suffix}"
    path.write_bytes(os.urandom(1000))
    with pytest.raises((ModelError, CompileError), match="broken"):
        core.compile_model(path)
    path.unlink()


def test_an_unknown_property_is_refused_by_name(core: Core, digits: Path) -> None:
    with pytest.raises(PropertyError, match=r"INFERENCE_PRECISION_HIND.*INFERENCE_PRECISION_HINT"):
        core.compile_model(digits, "NPU", {"INFERENCE_PRECISION_HIND": "f32"})


@pytest.mark.parametrize(
    ("name", "value"),
    [("INFERENCE_PRECISION_HINT", "f12"), ("MODEL_PRIORITY", "URGENT"), ("NPU_TURBO", "MAYBE")],
)
def test_a_bad_value_is_refused_with_what_is_allowed(core: Core, digits: Path, name: str, value: str) -> None:
    with pytest.raises(PropertyError, match=f"{name}.*{value}.*expected"):
        core.compile_model(digits, "NPU", {name: value})


@pytest.mark.parametrize(
    "config",
    [
        {ov.properties.hint.inference_precision: ov.Type.f32},
        {"PERFORMANCE_HINT": ov.properties.hint.PerformanceMode.LATENCY},
        {"INFERENCE_NUM_THREADS": 1, "NPU_TURBO": True, "MODEL_PRIORITY": "HIGH"},
    ],
)
def test_values_may_be_those_of_openvino(core: Core, digits: Path, config: dict[Any, Any]) -> None:
    compiled = core.compile_model(digits, "NPU", config)
    assert compiled(np.zeros((1, 1, 8, 8), np.float32))[0].shape == (1, 10)


def test_an_error_has_the_level_zero_result_as_its_cause(core: Core, digits: Path) -> None:
    with pytest.raises(NpuError) as caught:
        core.compile_model(digits, "NPU", {"NPU_PLATFORM": "3721"})
    assert isinstance(caught.value.__cause__, ZeError)
    assert isinstance(caught.value, RuntimeError)


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


def test_compiling_reports_its_stages_and_can_be_cancelled(core: Core, digits: Path, daemon: Daemon) -> None:
    stages: list[tuple[str, float]] = []
    core.compile_model(digits, progress=lambda stage, done: stages.append((stage, done)))
    assert [done for _, done in stages] == sorted(done for _, done in stages)
    assert len({stage for stage, _ in stages}) > 2

    def stop(stage: str, done: float) -> None:
        raise KeyboardInterrupt(f"{stage} {done}")

    with pytest.raises(KeyboardInterrupt):
        core.compile_model(digits, progress=stop)
    assert core.compile_model(digits).outputs[0].any_name == "probabilities"
    assert daemon.alive
