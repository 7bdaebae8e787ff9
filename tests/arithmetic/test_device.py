"""f16 on the device: the bits are the same however a model is compiled, stored and run."""

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


def test_concurrent_inferences_and_clients_give_the_same_bits(
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


def _bf16(values: Array) -> Array:
    """The nearest bf16, ties to even, as f32."""
    bits = values.astype(np.float32).view(np.uint32)
    nearest = (bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)
    return nearest.astype(np.uint32).view(np.float32)


def _f16(values: Array) -> Array:
    return values.astype(np.float16).astype(np.float32)


def _of_bf16(values: Array) -> Any:
    return ops.constant(values, dtype=ov.Type.bf16)


BIAS = np.array([[1, 2.5, 3, 4]], np.float32)
WEIGHTS = np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3)


def _sum_in_a_body(data: Any) -> Any:
    choice = ops.if_op(ops.constant(np.array(True)))
    inner = [ops.parameter([1, 4], ov.Type.bf16) for _ in range(2)]
    results = [ops.result(ops.add(each, _of_bf16(BIAS))) for each in inner]
    choice.set_then_body(ov.Model([results[0]], [inner[0]]))
    choice.set_else_body(ov.Model([results[1]], [inner[1]]))
    choice.set_input(data.output(0), *inner)
    return choice.set_output(*results)


IN_BF16: dict[str, tuple[Any, Any]] = {
    "sum": (lambda data: ops.relu(ops.add(data, _of_bf16(BIAS))), lambda data: np.maximum(data + BIAS, 0)),
    "product": (
        lambda data: ops.matmul(data, _of_bf16(_bf16(WEIGHTS)), False, False),
        lambda data: data @ _bf16(WEIGHTS),
    ),
    "body": (_sum_in_a_body, lambda data: data + BIAS),
}


@pytest.mark.parametrize("argument", [False, True], ids=["within", "arguments"])
@pytest.mark.parametrize("name", IN_BF16)
def test_a_model_in_bf16_runs_in_f16(shared_core: Core, name: str, argument: bool) -> None:
    """A conversion to bf16 rounds to it; the arithmetic behind it is that of the device."""
    make, expected = IN_BF16[name]
    values = np.array([[1.001, -2.5, 3.3, 70]], np.float32)
    source = ops.parameter([1, 4], ov.Type.bf16 if argument else ov.Type.f32)
    data = source if argument else ops.convert(source, "bf16")
    output = make(data)
    result = ops.result(output if argument else ops.convert(output, "f32"))
    request = shared_core.compile_model(ov.Model([result], [source], name), "NPU", F16).create_infer_request()
    given = request.get_input_tensor(0).data
    if argument:
        given.view(np.uint16)[:] = (_bf16(values).view(np.uint32) >> 16).astype(np.uint16)
    else:
        given[:] = values
    request.infer()
    found = request.get_output_tensor(0).data
    right = _f16(expected(_bf16(values if argument else _f16(values))))
    if argument:
        bits = (_bf16(right).view(np.uint32) >> 16).astype(np.uint16)
        np.testing.assert_array_equal(found.view(np.uint16), bits)
    else:
        np.testing.assert_array_equal(found, right)
