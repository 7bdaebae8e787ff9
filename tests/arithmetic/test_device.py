"""f16 on the device: the bits of the arithmetic, however a model is compiled, kept and run."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as ops

from softnpu.plugin import Core
from tests.arithmetic.models import F32, Array, computed, constant, convolution, rewritten
from tests.support import growing, stateful
from tests.support.batches import conv_net, random

F16 = {"INFERENCE_PRECISION_HINT": "f16"}


def _picture_model() -> ov.Model:
    x = ops.parameter([1, 8, 12, 12], np.float32, name="x")
    first = ops.swish(ops.add(convolution(x), constant(2, 1, 8, 1, 1)))
    second = ops.relu(ops.add(convolution(first, seed=5), constant(6, 1, 8, 1, 1)))
    return ov.Model([ops.result(ops.softmax(ops.add(second, first), 1))], [x], "picture")


def _given(seed: int = 0) -> Array:
    return np.random.default_rng(seed).normal(size=(1, 8, 12, 12)).astype(np.float32)


def test_every_way_to_run_a_model_gives_the_same_bits(
    shared_core: Core, openvino_core: ov.Core, tmp_path: Path
) -> None:
    model, given = _picture_model(), _given()
    (expected,) = computed(openvino_core, model, [given])
    in_f32 = openvino_core.compile_model(model, "CPU", F32)([given])[0]
    assert not np.array_equal(expected, in_f32)
    configs: list[dict[str, Any]] = [
        {},
        {"INFERENCE_NUM_THREADS": 1},
        {"PERFORMANCE_HINT": "THROUGHPUT"},
        {"PERF_COUNT": True},
        {"CACHE_DIR": tmp_path},
        {"CACHE_DIR": tmp_path},
        {"EXECUTION_MODE_HINT": "PERFORMANCE"},
    ]
    for config in configs:
        compiled = shared_core.compile_model(model, "NPU", F16 | config)
        np.testing.assert_array_equal(compiled([given])[0], expected, str(config))
    assert compiled.get_property("INFERENCE_PRECISION_HINT") == ov.Type.f16
    imported = shared_core.import_model(compiled.export_model(), "NPU")
    assert imported.get_property("INFERENCE_PRECISION_HINT") == ov.Type.f16
    np.testing.assert_array_equal(imported([given])[0], expected)
    default = shared_core.compile_model(model, "NPU")
    np.testing.assert_array_equal(default([given])[0], in_f32, "f32 stays the default")


def test_inferences_beside_each_other_and_clients_give_the_same_bits(
    shared_core: Core, openvino_core: ov.Core
) -> None:
    model = _picture_model()
    expected = [computed(openvino_core, model, [_given(seed)])[0] for seed in range(4)]
    compiled = shared_core.compile_model(model, "NPU", F16 | {"PERFORMANCE_HINT": "THROUGHPUT"})
    found: dict[int, Array] = {}

    def run(seed: int) -> None:
        request = compiled.create_infer_request()
        for _ in range(5):
            request.infer([_given(seed)])
        found[seed] = request.get_output_tensor(0).data.copy()

    threads = [threading.Thread(target=run, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    for seed, values in enumerate(expected):
        np.testing.assert_array_equal(found[seed], values)


@pytest.mark.parametrize("mode", ["AUTO", "COMPILER"])
def test_batches_and_dynamic_shapes_are_rounded_alike(
    shared_core: Core, openvino_core: ov.Core, mode: str
) -> None:
    for batch in (3, -1):
        model = conv_net(batch)
        shape = [3 if dim.is_dynamic else dim.get_length() for dim in model.inputs[0].partial_shape]
        given = random(*shape)
        compiled = shared_core.compile_model(model, "NPU", F16 | {"NPU_BATCH_MODE": mode})
        if mode == "COMPILER":
            (expected,) = computed(openvino_core, model, [given])
        else:
            rows = [computed(openvino_core, conv_net(1), [given[row : row + 1]])[0] for row in range(3)]
            expected = np.concatenate(rows)
        np.testing.assert_array_equal(compiled([given])[0], expected, f"{batch}, {mode}")


@pytest.mark.parametrize("make", [stateful.running_sum, growing.history, growing.attention])
def test_states_are_rounded_when_they_are_assigned(
    shared_core: Core, openvino_core: ov.Core, make: Any
) -> None:
    model = make()
    compiled = shared_core.compile_model(model, "NPU", F16)
    reference = openvino_core.compile_model(rewritten(model)[0], "CPU", F32 | {"KV_CACHE_PRECISION": "f32"})
    ours, theirs = compiled.create_infer_request(), reference.create_infer_request()
    for step in stateful.random_steps(reference, 3) if make is stateful.running_sum else _steps(make):
        for index, tensor in enumerate(step):
            ours.set_input_tensor(index, tensor)
            theirs.set_input_tensor(index, tensor)
        ours.infer()
        theirs.infer()
        for index in range(len(reference.outputs)):
            one, other = ours.get_output_tensor(index).data, theirs.get_output_tensor(index).data
            np.testing.assert_array_equal(one, other)


def _steps(make: Any) -> list[list[ov.Tensor]]:
    if make is growing.attention:
        return growing.steps([3, 1, 1])
    return [[ov.Tensor(random(length, 3, seed=length))] for length in (2, 1, 3)]


def test_sessions_with_other_settings_never_share_an_image(shared_core: Core) -> None:
    model, given = _picture_model(), _given() * 3e4
    layers = "compute-layers-with-higher-precision="
    configs = [
        {},
        F16,
        F16 | {"NPU_F16_OVERFLOW": "INFINITY"},
        F16 | {"NPU_COMPILATION_MODE_PARAMS": f"{layers}Convolution"},
        F16 | {"NPU_COMPILATION_MODE_PARAMS": f"{layers}Convolution,Add,Swish,Relu"},
    ]
    found = []
    for _ in range(2):  # the second time out of the driver's cache
        loaded = [shared_core.compile_model(model, "NPU", config) for config in configs]
        found.append([compiled([given])[0].tobytes() for compiled in loaded])
    assert found[0] == found[1]
    assert len(set(found[0])) == len(configs)
