"""States of f16 with an open shape: f32 between inferences, where OpenVINO's CPU device has it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import openvino as ov
import pytest
from openvino import opset13

from softnpu.plugin import Core, InputError
from tests.support import growing, stateful


def test_states_of_f16_are_rounded_where_the_cpu_device_rounds_them(
    shared_core: Core, private_dir: Path
) -> None:
    """One with an open shape keeps f32, unless its value is an output. Clients see f16 in all of them."""
    data = opset13.parameter(ov.PartialShape([-1, 3]), np.float32)
    total = opset13.reduce_sum(data, opset13.constant([0]), True)
    _, wide = growing.accumulated("wide", ov.Type.f16, -1, data, 0)
    shown, second = growing.accumulated("shown", ov.Type.f16, -1, data, 0)
    _, static = growing.accumulated("static", ov.Type.f16, 1, total, 0)
    assigned = [wide, second, static]
    outputs = [opset13.convert(each.input_value(0), "f32") for each in assigned]
    outputs.append(opset13.reshape(shown, opset13.constant([0, 0]), True))  # OpenVINO removes it
    model = ov.Model([opset13.result(each) for each in outputs], assigned, [data], "halves")
    compiled = shared_core.compile_model(model, "NPU", stateful.CPU)
    compiled.export_model(private_dir / "halves.blob")
    imported = shared_core.import_model(private_dir / "halves.blob", "NPU")
    cpu = ov.Core().compile_model(model, "CPU", stateful.CPU).create_infer_request()
    requests = [each.create_infer_request() for each in (compiled, imported)]
    thirds = np.array([[1 / 3, 0.1, 2 / 3], [1e-3, 1e5, 7]], np.float32)
    for step in range(6):
        expected = [array.copy() for array in cpu.infer([thirds]).values()]
        wanted = {state.name: state for state in cpu.query_state()}
        for request in requests:
            for found, array in zip(request.infer([thirds]).values(), expected, strict=True):
                np.testing.assert_array_equal(found, array)
            for state in request.query_state():
                assert state.state.element_type == ov.Type.f16
                np.testing.assert_array_equal(state.state.data, wanted[state.name].state.data)
        if step == 3:  # rounded on their way to the client and back
            for state in [*wanted.values(), *(each for one in requests for each in one.query_state())]:
                state.state = ov.Tensor(np.array(state.state.data))
    assert not np.array_equal(expected[0], expected[1])
    state = next(each for each in requests[0].query_state() if each.name == "wide")
    with pytest.raises(InputError, match=r"f32\[2, 3\] given; expected an openvino\.Tensor of f16"):
        state.state = ov.Tensor(thirds)


def test_attention_with_keys_and_values_of_f16_is_that_of_the_cpu_device(shared_core: Core) -> None:
    """OpenVINO fuses it with its states, and keeps these in f32."""
    model = growing.appended(element_type=ov.Type.f16, computed=True)
    request = shared_core.compile_model(model, "NPU", stateful.CPU).create_infer_request()
    cpu = ov.Core().compile_model(model, "CPU", stateful.CPU).create_infer_request()
    random = np.random.default_rng(5)
    for length in (5, 1, 1, 3, 1):
        shape = (2, growing.HEADS, length, growing.WIDTH)
        given = [random.standard_normal(shape).astype(np.float16) for _ in range(3)]
        given.append(np.array([1, 0], np.int32))
        np.testing.assert_array_equal(request.infer(given)[0], cpu.infer(given)[0])
