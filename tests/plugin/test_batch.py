"""NPU_BATCH_MODE: who splits a batch, what is refused and why, and what the log reports."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as ops

from softnpu.plugin import CompileError, Core
from tests.support.batches import (
    F32,
    columns_net,
    conv_net,
    matmul_net,
    model_of,
    on_cpu,
    parameter,
    random,
    same,
    weights,
)
from tests.support.cases import case

PLUGIN = {**F32, "BATCH_MODE": "PLUGIN"}
COMPILER = {**F32, "BATCH_MODE": "COMPILER"}


def _shapes(compiled: Any) -> list[str]:
    return [str(port.partial_shape) for port in (*compiled.inputs, *compiled.outputs)]


# ------------------------------------------------------------ split


@pytest.mark.parametrize("net", [conv_net, matmul_net, columns_net])
def test_auto_splits_independent_samples_in_the_plugin(
    shared_core: Core, net: Callable[[Any], ov.Model]
) -> None:
    axis = 1 if net is columns_net else 0
    alone = ov.Core().compile_model(net(1), "CPU", F32)
    for batch in (-1, 4, ov.Dimension(1, 8)):
        model = net(batch)
        compiled = shared_core.compile_model(model, "NPU", F32)
        assert compiled.get_property("BATCH_MODE") == "PLUGIN"
        assert _shapes(compiled) == [str(port.partial_shape) for port in (*model.inputs, *model.outputs)]
        assert compiled.inputs[0].node.layout == model.inputs[0].node.layout
        assert all(1 in argument.shape for argument in compiled.meta.arguments)
        for count in (4, 1, 7, 4):
            shape = [1 if dim.is_dynamic else dim.get_length() for dim in model.inputs[0].partial_shape]
            shape[axis] = count
            data = random(*shape)
            found = compiled(data)
            same(found, on_cpu(model, [data]))
            for sample in range(count):  # bit for bit
                expected = alone(data.take([sample], axis))[0]
                np.testing.assert_array_equal(found[0].take([sample], axis), expected)


def test_the_compiler_keeps_the_batch_on_request(shared_core: Core) -> None:
    model = conv_net(4)
    compiled = shared_core.compile_model(model, "NPU", COMPILER)
    assert compiled.get_property("NPU_BATCH_MODE") == "COMPILER"
    assert compiled.meta.arguments[0].shape == (4, 3, 8, 8)
    data = random(4, 3, 8, 8)
    np.testing.assert_array_equal(compiled(data)[0], on_cpu(model, [data])[0])


def test_a_model_without_a_batch_passes_through_every_mode_unchanged(shared_core: Core, digits: Path) -> None:
    for mode in ["AUTO", "PLUGIN", "COMPILER"]:
        with case(mode):
            image = random(1, 1, 8, 8)
            compiled = shared_core.compile_model(digits, "NPU", {**F32, "BATCH_MODE": mode})
            assert compiled.get_property("BATCH_MODE") == mode
            assert _shapes(compiled) == ["[1,1,8,8]", "[1,10]"]
            expected = ov.Core().compile_model(digits, "CPU", F32)(image)[0]
            np.testing.assert_array_equal(compiled(image)[0], expected)
            with pytest.raises(RuntimeError, match=r"expected float32\[1, 1, 8, 8\]"):
                compiled(random(2, 1, 8, 8))


def test_matrix_rows_are_a_batch_only_if_the_user_says_so(shared_core: Core) -> None:
    model = matmul_net(4, layout="")
    assert shared_core.compile_model(model, "NPU", F32).meta.arguments[0].shape == (4, 6)
    compiled = shared_core.compile_model(model, "NPU", PLUGIN)
    assert compiled.meta.arguments[0].shape == (1, 6)
    data = random(9, 6)
    same(compiled(data), on_cpu(model, [data]))


def test_an_input_without_a_batch_is_shared_by_all_samples(shared_core: Core) -> None:
    x, scale = parameter("x", (-1, 3, 4), "NCW"), parameter("scale", (3, 4), "CW")
    model = model_of(ops.multiply(ops.relu(x), scale), x, scale)
    compiled = shared_core.compile_model(model, "NPU", F32)
    assert compiled.get_property("BATCH_MODE") == "PLUGIN"
    for count in (4, 2):
        inputs = [random(count, 3, 4), random(3, 4, seed=8)]
        same(compiled(inputs), on_cpu(model, inputs))


def test_two_batched_inputs_on_different_axes(shared_core: Core) -> None:
    left, right = parameter("left", (-1, 3), "NC"), parameter("right", (3, -1), "CN")
    total = ops.add(left, ops.transpose(right, ops.constant([1, 0])))
    model = model_of([total, ops.transpose(total, ops.constant([1, 0]))], left, right)
    compiled = shared_core.compile_model(model, "NPU", F32)
    assert compiled.get_property("BATCH_MODE") == "PLUGIN"
    for count in (5, 1, 2):
        inputs = [random(count, 3), random(3, count, seed=8)]
        same(compiled(inputs), on_cpu(model, inputs))


def test_samples_with_several_output_rows_are_concatenated(shared_core: Core) -> None:
    x = parameter("x", (-1, 4, 6), "NHW")
    model = model_of(ops.reshape(ops.relu(x), ops.constant([-1, 6]), False), x)
    compiled = shared_core.compile_model(model, "NPU", F32)
    assert compiled.get_property("BATCH_MODE") == "PLUGIN"
    data = random(3, 4, 6)
    same(compiled(data), on_cpu(model, [data]))
    bounded = model.clone()
    bounded.reshape([ov.Dimension(1, 5), 4, 6])
    assert _shapes(shared_core.compile_model(bounded)) == ["[1..5,4,6]", "[4..20,6]"]


def test_shapes_of_the_call_are_applied_before_the_batch(shared_core: Core) -> None:
    model = conv_net(-1)
    static = shared_core.compile_model(model, "NPU", F32, shapes={"x": [2, 3, 16, 16]})
    assert static.get_property("BATCH_MODE") == "PLUGIN"
    assert _shapes(static) == ["[2,3,16,16]", "[2,5]"]
    single = shared_core.compile_model(model, "NPU", PLUGIN, shapes={"x": [1, 3, 16, 16]})
    assert single.meta.arguments[0].shape == (1, 3, 16, 16)
    assert _shapes(single) == ["[1,3,16,16]", "[1,5]"]
    data = random(3, 3, 16, 16)
    same(static(data), on_cpu(model, [data]))


def test_an_input_that_is_an_output_keeps_all_of_its_names(shared_core: Core) -> None:
    # OpenVINO loses one when it copies such a model
    x = parameter("x", (-1, 4))
    x.output(0).add_names({"a"})
    result = ops.result(x)
    result.output(0).set_names({"x"})
    model = ov.Model([result], [x], "through")
    data = random(3, 4)
    for shapes in (None, {"a": [3, 4]}, {"x": [3, 4]}):
        compiled = shared_core.compile_model(model, "NPU", F32, shapes=shapes)
        assert compiled.input("a").names == {"a", "x"}
        same(compiled(data), [data])


# ------------------------------------------------------------ not split


def _softmax_over_batch(batch: Any) -> ov.Model:
    x = parameter("x", (batch, 6), "NC")
    return model_of(ops.softmax(x, 0), x)


def _statistics(batch: Any) -> ov.Model:
    x = parameter("x", (batch, 6), "NC")
    return model_of(ops.subtract(x, ops.reduce_mean(x, ops.constant([0]), True)), x)


def _hard_coded(batch: Any) -> ov.Model:
    x = parameter("x", (batch, 6), "NC")
    return model_of(ops.reshape(ops.relu(x), ops.constant([4, 2, 3]), False), x)


def _constant_of_the_batch(batch: Any) -> ov.Model:
    x = parameter("x", (batch, 6), "NC")
    return model_of(ops.add(x, ops.constant(weights(4, 1))), x)


def _unbatched_output(batch: Any) -> ov.Model:
    x, scale = parameter("x", (batch, 6), "NC"), parameter("scale", (6,), "C")
    return model_of([ops.multiply(x, scale), ops.exp(scale)], x, scale)


def _six_dimensions(batch: Any) -> ov.Model:
    x = parameter("x", (2, batch, 1, 1, 1, 3), "CN...")
    return model_of(ops.relu(x), x)


def _contradicting_layouts(batch: Any) -> ov.Model:
    left, right = parameter("left", (batch, 3), "NC"), parameter("right", (8, 3), "NC")
    return model_of([ops.relu(left), ops.relu(right)], left, right)


def _states(batch: Any) -> ov.Model:
    x = parameter("x", (batch, 3), "NC")
    return _summing(x, (batch, 3))


def _summing(x: Any, shape: tuple[int, ...]) -> ov.Model:
    """The sum of all inputs so far, kept in a state."""
    zeros = ops.constant(np.zeros(shape, np.float32))
    state = ops.read_value(zeros, "state", ov.Type.f32, ov.PartialShape(list(shape)))
    total = ops.add(x, state)
    total.output(0).get_tensor().set_names({"y"})
    return ov.Model([ops.result(total)], [ops.assign(total, "state")], [x], "stateful")


REFUSED = {
    "softmax over the batch": (_softmax_over_batch, "Softmax.*normalises over axis 0"),
    "statistics of the batch": (_statistics, "ReduceMean.*reduces axis 0"),
    "hard-coded reshape": (_hard_coded, "cannot be reshaped to a batch of|Reshape"),
    "constant of the batch": (_constant_of_the_batch, "cannot be reshaped to a batch of 97|Add"),
    "output without a batch": (_unbatched_output, "has no batch"),
    "six dimensions": (_six_dimensions, "more than 5 dimensions"),
    "states": (_states, "it has states"),
    "contradicting layouts": (
        _contradicting_layouts,
        "inputs have different batches: 4 of 'left', 8 of 'right'",
    ),
}


def test_inseparable_batches_go_to_the_compiler_and_plugin_mode_is_refused(
    shared_core: Core, caplog: pytest.LogCaptureFixture
) -> None:
    for name, (build, reason) in REFUSED.items():
        with case(name):
            model = build(4)
            size = "unknown size" if build is _contradicting_layouts else "4"
            refusal = f"PLUGIN cannot split its batch of {size}.*{reason}.*AUTO or COMPILER"
            with pytest.raises(CompileError, match=refusal):
                shared_core.compile_model(model, "NPU", PLUGIN)
            caplog.clear()
            with caplog.at_level(logging.INFO, "softnpu.plugin"):
                compiled = shared_core.compile_model(model, "NPU", F32)
            assert compiled.get_property("BATCH_MODE") == "COMPILER"
            told = f"model '{model.get_friendly_name()}': batch {size} handled by the compiler because "
            assert told in caplog.text
            inputs = [random(*port.shape) for port in model.inputs]
            same(compiled(inputs), on_cpu(model, inputs))


def test_auto_leaves_a_conversion_to_8_bits_of_a_dynamic_batch_to_the_compiler(shared_core: Core) -> None:
    for kind in [ov.Type.u8, ov.Type.i8]:
        with case(kind):
            data = np.array([[-1.66, 3.2], [300.7, -300.2]], np.float32)
            for batch, mode in ((-1, "COMPILER"), (ov.Dimension(1, 5), "COMPILER"), (2, "PLUGIN")):
                x = parameter("x", (batch, 2), "NC")
                model = model_of(ops.convert(x, kind), x)
                compiled = shared_core.compile_model(model, "NPU", F32)
                assert compiled.get_property("BATCH_MODE") == mode
                expected = ov.Core().compile_model(model, "CPU", F32)([data])  # in the model's own shape
                np.testing.assert_array_equal(compiled([data])[0], expected[0])


def test_states_without_a_batch_pass_through_every_mode(shared_core: Core) -> None:
    model = _summing(parameter("x", (1, 3), "NC"), (1, 3))
    for mode in ("AUTO", "PLUGIN", "COMPILER"):
        request = shared_core.compile_model(model, "NPU", {"BATCH_MODE": mode}).create_infer_request()
        data = random(1, 3)
        for step in (1, 2, 3):
            np.testing.assert_allclose(request.infer([data])[0], data * step, rtol=1e-6)


def test_an_output_with_a_contradicting_layout_is_not_split(shared_core: Core) -> None:
    model = matmul_net(4)
    model.get_results()[0].set_layout(ov.Layout("CN"))
    with pytest.raises(CompileError, match="samples on axis 0, and on axis 1 by its layout"):
        shared_core.compile_model(model, "NPU", PLUGIN)
    model.get_results()[0].set_layout(ov.Layout("NC"))
    assert shared_core.compile_model(model, "NPU", PLUGIN).get_property("BATCH_MODE") == "PLUGIN"


def test_a_second_dynamic_dimension_is_left_to_the_compiler(shared_core: Core) -> None:
    x = parameter("x", (-1, ov.Dimension(1, 8)), "NC")
    model = model_of(ops.relu(x), x)
    with pytest.raises(CompileError, match="axis 1 of input 'x' is dynamic too"):
        shared_core.compile_model(model, "NPU", PLUGIN)
    compiled = shared_core.compile_model(model, "NPU", F32)
    assert compiled.get_property("BATCH_MODE") == "COMPILER"
    data = random(3, 5)
    same(compiled(data), on_cpu(model, [data]))


def test_plugin_mode_trusts_the_user_for_unknown_operations(
    shared_core: Core, caplog: pytest.LogCaptureFixture
) -> None:
    x = parameter("x", (2, 1, 4, 4), "NCHW")
    blocks = ops.space_to_batch(x, [1, 1, 2, 2], [0, 0, 0, 0], [0, 0, 0, 0])
    model = model_of(ops.reduce_max(blocks, ops.constant([1, 2, 3]), True), x)
    assert shared_core.compile_model(model, "NPU", F32).get_property("BATCH_MODE") == "COMPILER"
    with caplog.at_level(logging.INFO, "softnpu.plugin"):
        shared_core.compile_model(model, "NPU", PLUGIN)
    assert "trusting the layouts that samples are independent in 'SpaceToBatch" in caplog.text


# ------------------------------------------------------------ reported


def test_the_log_reports_the_decision_with_the_batch(
    shared_core: Core, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "softnpu.plugin"):
        shared_core.compile_model(conv_net(4), "NPU", F32)
        shared_core.compile_model(columns_net(), "NPU", F32)
        shared_core.compile_model(conv_net(4), "NPU", COMPILER)
    begin = "model 'batched': batch "
    told = [record.getMessage() for record in caplog.records]
    assert [line.removeprefix(begin) for line in told if line.startswith(begin)] == [
        "4 -> 1 handled by the plugin: axis 0 of 'x', axis 0 of output 0, by its layout",
        "? -> 1 handled by the plugin: axis 1 of 'x', axis 1 of output 0, by its layout",
        "4 handled by the compiler, as NPU_BATCH_MODE asks",
    ]


def test_user_strides_and_batch_strides_combine(shared_core: Core) -> None:
    model = columns_net()
    compiled = shared_core.compile_model(model, "NPU", {**F32, "NPU_ENABLE_STRIDES_FOR": "x"})
    assert [argument.strides for argument in compiled.meta.arguments] == [True, True]
    assert compiled.get_property("NPU_ENABLE_STRIDES_FOR") == "x"
    data = random(6, 3)
    same(compiled(data), on_cpu(model, [data]))
