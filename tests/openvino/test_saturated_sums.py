"""Quantised models where OpenVINO may not use VNNI, as on CPUs without it: the numbers are the model's."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as ops

from softnpu.emulator.openvino.defects.saturated_sums import IN_F32
from softnpu.plugin import Core
from softnpu.tools.demo.digits import load_test_set
from tests.conftest import StartDaemon
from tests.support.quantised import chain, in_numpy

LIMIT = "ONEDNN_MAX_CPU_ISA"
SIZES, BOUNDS = (64, 256, 64), (-1.0, 2.0)
WRONG = 0.1
"""Fraction of the largest value; saturated sums are wrong by 0.28, roundings by 0.0003."""
PLAIN = """
import sys
import numpy as np, openvino as ov
from softnpu.emulator.common import processor
properties = {"INFERENCE_PRECISION_HINT": "f32", "SNIPPETS_MODE": "DISABLE"}
compiled = ov.Core().compile_model(sys.argv[1], "CPU", properties)
np.save(sys.argv[2], compiled(np.load(sys.argv[3]))[0])
print(processor.has_vnni())
"""


def _value() -> Any:
    return np.random.default_rng(3).normal(0, 1, (4, SIZES[0])).astype(np.float32)


def _error(found: Any) -> float:
    expected = in_numpy(SIZES, *BOUNDS, _value().astype(np.float64))
    return float(np.abs(found - expected).max() / np.abs(expected).max())


@pytest.mark.parametrize("limit", ["AVX2", "AVX512_CORE"])
@pytest.mark.parametrize(
    "more", [{}, {"EXECUTION_MODE_HINT": "PERFORMANCE"}, {"INFERENCE_PRECISION_HINT": "f16"}]
)
def test_a_quantised_model_is_right_without_vnni(
    start_daemon: StartDaemon, monkeypatch: pytest.MonkeyPatch, limit: str, more: dict[str, str]
) -> None:
    monkeypatch.setenv(LIMIT, limit)
    core = Core(start_daemon().socket)
    config = {"NPU_BATCH_MODE": "COMPILER", **more}
    assert _error(core.compile_model(chain(SIZES, *BOUNDS), "NPU", config)([_value()])[0]) < WRONG / 5
    core.unload_plugin()


def test_weights_of_8_bits_are_accepted_without_vnni(
    start_daemon: StartDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OpenVINO would quantise their inputs if the CPU can, and oneDNN would then refuse."""
    monkeypatch.setenv(LIMIT, "AVX2")
    core = Core(start_daemon().socket)
    weights = np.random.default_rng(1).integers(-127, 128, (256, SIZES[0])).astype(np.int8)
    source = ops.parameter([4, SIZES[0]], np.float32)
    scaled = ops.multiply(ops.convert(ops.constant(weights), "f32"), np.float32(0.01))
    model = ov.Model([ops.matmul(source, scaled, False, True)], [source], "compressed")
    config = {"NPU_BATCH_MODE": "COMPILER", "EXECUTION_MODE_HINT": "PERFORMANCE"}
    found = core.compile_model(model, "NPU", config)([_value()])[0]
    np.testing.assert_allclose(found, _value() @ weights.T * np.float32(0.01), rtol=1e-4, atol=1e-4)
    core.unload_plugin()


@pytest.mark.parametrize("limit", ["", "avx2", "AVX512_CORE", "AVX2_VNNI", "AVX512_CORE_VNNI", "other"])
@pytest.mark.parametrize("variable", [LIMIT, "DNNL_MAX_CPU_ISA"])
def test_the_cpu_device_is_wrong_without_vnni(variable: str, limit: str, tmp_path: Path) -> None:
    """When this fails, `saturated_sums` can be removed."""
    model, value, result = tmp_path / "model.xml", tmp_path / "value.npy", tmp_path / "result.npy"
    ov.save_model(chain(SIZES, *BOUNDS), model, compress_to_fp16=False)
    np.save(value, _value())
    done = subprocess.run(
        [sys.executable, "-c", PLAIN, model, result, value],
        env={**os.environ, LIMIT: "", variable: limit},
        stdout=subprocess.PIPE,
        text=True,
        timeout=90,
        check=True,
    )
    assert (_error(np.load(result)) > WRONG) == (done.stdout.strip() == "False")


def test_an_unquantised_model_is_compiled_unchanged(reference: ov.Core, digits: Path) -> None:
    images = load_test_set()[0][:1]
    plain = {"INFERENCE_PRECISION_HINT": "f32"}
    ways = [reference.compile_model(digits, "CPU", plain | more) for more in ({}, IN_F32)]
    results, layers = [way([images])[0] for way in ways], [_layers(way) for way in ways]
    np.testing.assert_array_equal(*results)
    assert layers[0] == layers[1]


def _layers(compiled: ov.CompiledModel) -> list[list[str]]:
    return [
        [str(node.get_rt_info()[key].astype(str)) for key in ("layerType", "primitiveType", "outputLayouts")]
        for node in compiled.get_runtime_model().get_ordered_ops()
    ]
