"""States: the CPU device's numbers over many steps, double buffers, reset, get and set."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import openvino as ov
import pytest
from openvino import opset6
from openvino import opset13 as ops

from softnpu.plugin import Core, InferRequest, InputError, VariableState
from tests.support import stateful
from tests.support.daemon import Daemon
from tests.support.stateful import only

ONE = np.ones(3, np.float32)
Types = ov.Type


def address(state: VariableState) -> int:
    return int(state.state.data.ctypes.data)


@pytest.fixture
def summing(shared_core: Core) -> InferRequest:
    return shared_core.compile_model(stateful.running_sum()).create_infer_request()


# ---------------------------------------------------------------- numbers

MODELS: dict[str, Callable[[], ov.Model]] = {
    "running sum": stateful.running_sum,
    "a constant": lambda: stateful.running_sum([4, 4], np.random.default_rng(1).random((4, 4), np.float32)),
    "a long constant": lambda: stateful.running_sum(
        [64, 64], np.random.default_rng(1).random((64, 64), np.float32)
    ),
    "minus one": lambda: stateful.running_sum([3], np.full(3, -1), element_type=ov.Type.i32),
    "operations of opset 3": stateful.old_running_sum,
    "from an input": stateful.beginning_as_input,
    "from inputs, states and constants": stateful.two_computed,
    "two variables": stateful.two_variables,
    "LSTM cell": stateful.lstm,
    "LowLatency2": stateful.low_latency,
    "MakeStateful": stateful.made_stateful,
    "many states": lambda: stateful.many(60),
}


@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS.keys())
def test_results_equal_the_cpu_device_after_every_step(
    shared_core: Core, make: Callable[[], ov.Model]
) -> None:
    model = make()
    compiled = shared_core.compile_model(model)
    one = compiled.query_state()[0].name
    steps = stateful.random_steps(compiled, 24)
    resets = {7: "", 8: "", 15: one, 20: ""}
    found = stateful.run(compiled.create_infer_request(), steps, resets)
    assert found == stateful.on_cpu(model, steps, resets)


@pytest.mark.parametrize(
    "kind", [Types.f32, Types.f16, Types.bf16, Types.i32, Types.i8, Types.u8, Types.boolean]
)
def test_states_of_types_supported_by_the_cpu_device(shared_core: Core, kind: ov.Type) -> None:
    model = stateful.running_sum(initial=np.array([0, 1, 1]), element_type=kind)
    compiled = shared_core.compile_model(model)
    steps = stateful.random_steps(compiled, 6)
    assert stateful.run(compiled.create_infer_request(), steps, {4: ""}) == stateful.on_cpu(
        model, steps, {4: ""}
    )


@pytest.mark.parametrize("kind", [Types.i64, Types.u64, Types.i16, Types.u16, Types.u32, Types.f64])
def test_states_of_types_refused_by_the_cpu_device(shared_core: Core, kind: ov.Type) -> None:
    model = stateful.running_sum(initial=np.array([0, 1, 2]), element_type=kind)
    request = shared_core.compile_model(model).create_infer_request()
    total = np.array([0, 1, 2], kind.to_dtype())
    for step in range(5):
        if step == 3:
            request.reset_state()
            total = np.array([0, 1, 2], kind.to_dtype())
        total = total + np.array([step, 1, 100], kind.to_dtype())
        found = request.infer([np.array([step, 1, 100], kind.to_dtype())])["y"]
        np.testing.assert_array_equal(found, total)
        np.testing.assert_array_equal(only(request).state.data, total)
        assert only(request).state.element_type == kind


@pytest.mark.parametrize("kind", [Types.f8e4m3, Types.f8e5m2, Types.f16, Types.bf16, Types.i32, Types.u8])
def test_a_conversion_of_a_state_is_performed(shared_core: Core, reference: ov.Core, kind: ov.Type) -> None:
    def converted(value: Any) -> Any:
        return ops.convert(ops.convert(value, kind), ov.Type.f32)

    x = stateful.source([3])
    state = stateful.read(x, "v", x)
    model = ov.Model([ops.result(converted(state))], [opset6.assign(ops.add(state, x), "v")], [x], "kept")
    plain = stateful.source([3])
    given = ov.Model([ops.result(converted(plain))], [plain], "given")
    cpu = reference.compile_model(given, "CPU", stateful.CPU)
    request = shared_core.compile_model(model, "NPU").create_infer_request()
    step = np.array([1.4759134, 0.3, 0.77], np.float32)
    held = step
    for _ in range(3):
        np.testing.assert_array_equal(request.infer([step])[0], cpu([held])[0])
        held = held + step


@pytest.mark.parametrize("kind", [Types.f16, Types.bf16])
def test_a_state_of_opset_3_has_the_type_of_the_model(shared_core: Core, kind: ov.Type) -> None:
    # the CPU device keeps an opset 3 state in f32, unlike one of opset 6
    old, new = (stateful.scaled_sum(opset, kind) for opset in (3, 6))
    compiled = shared_core.compile_model(old)
    steps = stateful.random_steps(compiled, 6)
    assert stateful.run(compiled.create_infer_request(), steps, {4: ""}) == stateful.on_cpu(
        new, steps, {4: ""}
    )
    assert only(compiled).state.element_type == kind


@pytest.mark.parametrize(
    ("kind", "numbers"),
    [
        (Types.f32, [1e-42, -0.0, 1.0, -1e-40, 1e-38]),
        (Types.f16, [1e-42, -0.0, 1.0, -1e-40, 6e-8]),
        (Types.bf16, [1e-42, -0.0, 1.0, -1e-40, 1e-38]),
        (Types.f32, [-0.0, *range(300)]),
    ],
)
def test_subnormal_initial_values_equal_the_cpu_device(
    shared_core: Core, kind: ov.Type, numbers: list[float]
) -> None:
    x = stateful.source([len(numbers)], element_type=kind)
    first = ops.constant(np.array(numbers), kind)
    state = stateful.read(first, "v", x)
    model = stateful.model({"y": state}, [opset6.assign(ops.add(state, x), "v")], [x], "small")
    compiled = shared_core.compile_model(model)
    steps = stateful.random_steps(compiled, 4)
    found = stateful.run(compiled.create_infer_request(), steps, {2: ""})
    assert found == stateful.on_cpu(model, steps, {2: ""})


@pytest.mark.parametrize("kind", [np.int64, np.uint64])
def test_initial_64_bit_integers_are_clamped_to_32_bits(
    shared_core: Core, kind: type[np.int64 | np.uint64]
) -> None:
    """As for constants, which OpenVINO's CPU device converts to 32 bits: not by truncation."""
    numbers = np.array([7 + (5 << 40), 3], kind)
    state = opset6.read_value(ops.constant(numbers), "v", ov.Type(kind), ov.PartialShape([2]))
    x = stateful.source([2], element_type=ov.Type(kind))
    model = stateful.model({"y": ops.maximum(state, x)}, [opset6.assign(state, "v")], [x], "large")
    result = shared_core.compile_model(model).create_infer_request().infer([np.array([0, 9], kind)])["y"]
    assert result.tolist() == [2**31 - 1, 9]


def test_a_state_keeps_minus_zero(shared_core: Core) -> None:
    # the CPU device reads plus zero
    x = stateful.source([1])
    model = stateful.model(
        {"y": stateful.read(ops.constant(ONE[:1]), "v", x)}, [opset6.assign(ops.abs(x), "v")], [x], "zero"
    )
    request = shared_core.compile_model(model).create_infer_request()
    only(request).state = ov.Tensor(np.array([-0.0], np.float32))
    assert [bool(np.signbit(request.infer([ONE[:1]])["y"][0])) for _ in range(2)] == [True, False]


def test_setting_a_state_behaves_as_on_the_cpu_device(shared_core: Core) -> None:
    model = stateful.beginning_as_input()
    requests = [
        shared_core.compile_model(model).create_infer_request(),
        ov.Core().compile_model(model, "CPU", stateful.CPU).create_infer_request(),
    ]
    value = ov.Tensor(np.arange(6, dtype=np.float32).reshape(2, 3))
    x, gain = np.ones((2, 3), np.float32), np.array([0.5], np.float32)
    found: list[list[bytes]] = []
    for request in requests:
        request.query_state()[0].state = value  # before the initial value was ever computed
        outputs = [request.infer([x, gain])[0].tobytes()]
        request.reset_state()
        outputs += [request.infer([x, gain])[0].tobytes() for _ in range(2)]
        request.query_state()[0].state = value
        found.append([*outputs, request.infer([x, gain])[0].tobytes()])
    assert found[0] == found[1]


# ---------------------------------------------------------------- what the user sees


def test_ports_do_not_show_states(shared_core: Core) -> None:
    model = stateful.two_variables()
    compiled = shared_core.compile_model(model)
    for found, expected in ((compiled.inputs, model.inputs), (compiled.outputs, model.outputs)):
        assert [port.get_names() for port in found] == [port.get_names() for port in expected]
    request = compiled.create_infer_request()
    with pytest.raises(InputError, match="vpux_ie_read_value_fast"):
        request.get_tensor("vpux_ie_read_value_fast")


def test_states_are_reported_as_named_tensors_of_their_shape(shared_core: Core) -> None:
    states = shared_core.compile_model(stateful.two_variables()).create_infer_request().query_state()
    assert [state.name for state in states] == ["fast", "slow"]
    assert [tuple(state.state.shape) for state in states] == [(1,), (3,)]
    assert [state.state.element_type for state in states] == [Types.i32, Types.f32]
    assert list(states[1].state.data) == [0, 1, 2]  # the initial value, before any inference
    assert repr(states[0]) == "<VariableState: 'fast' i32[1]>"


def test_calling_the_model_keeps_its_states_too(shared_core: Core) -> None:
    compiled = shared_core.compile_model(stateful.running_sum())
    assert [compiled([ONE])["y"][0] for _ in range(3)] == [1, 2, 3]
    assert list(only(compiled).state.data) == [3, 3, 3]
    compiled.reset_state()
    assert compiled([ONE])["y"][0] == 1


def test_each_request_has_its_own_states(shared_core: Core) -> None:
    compiled = shared_core.compile_model(stateful.running_sum())
    requests = [compiled.create_infer_request() for _ in range(3)]
    for step in range(1, 9):
        for factor, request in enumerate(requests, 1):
            request.start_async([ONE * factor])  # all in flight at once
        for factor, request in enumerate(requests, 1):
            request.wait()
            assert list(only(request).state.data) == [step * factor] * 3
    requests[1].reset_state()
    assert [only(request).state.data[0] for request in requests] == [8, 0, 24]


# ---------------------------------------------------------------- buffers


def test_the_buffers_swap_and_nothing_is_copied(shared_core: Core, shared_daemon: Daemon) -> None:
    before = shared_daemon.engine().staged_bytes
    compiled = shared_core.compile_model(stateful.running_sum())
    request = compiled.create_infer_request()
    request.get_tensor("x").data[:] = 1
    recorded: list[int] = []
    record = compiled._executable.record
    compiled._executable.record = lambda *given: (recorded.append(1), record(*given))[1]  # type: ignore[func-returns-value, method-assign]
    places = []
    for step in range(1, 11):
        places.append(address(only(request)))
        request.infer(share_outputs=True)
        assert list(only(request).state.data) == [step] * 3
    assert places[0::2] == places[:1] * 5
    assert places[1::2] == places[1:2] * 5
    assert places[0] != places[1]
    assert len(recorded) == 2
    assert (compiled.staged_bytes, shared_daemon.engine().staged_bytes) == (0, before)


def test_a_state_tensor_is_device_memory_that_stays_current_until_the_next_inference(
    summing: InferRequest,
) -> None:
    summing.infer([ONE])
    before = only(summing).state
    before.data[:] = 10  # writing into it changes the state
    assert summing.infer([ONE])["y"][0] == 11
    assert list(before.data) == [10] * 3
    assert only(summing).state.data[0] == 11
    summing.infer([ONE])  # this one writes into the memory of `before`
    assert list(before.data) == [12] * 3


def test_setting_a_state_copies_and_is_counted(shared_core: Core) -> None:
    compiled = shared_core.compile_model(stateful.running_sum())
    request = compiled.create_infer_request()
    value = np.array([5, 6, 7], np.float32)
    only(request).state = ov.Tensor(value)
    assert compiled.staged_bytes == value.nbytes
    value[:] = 0  # no effect: it was copied
    assert list(only(request).state.data) == [5, 6, 7]
    only(request).state = only(request).state
    assert compiled.staged_bytes == value.nbytes
    request.get_tensor("x").data[:] = 1
    assert list(request.infer()["y"]) == [6, 7, 8]
    assert compiled.staged_bytes == value.nbytes


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (ov.Tensor(np.zeros(4, np.float32)), "f32[4]"),
        (ov.Tensor(np.zeros((1, 3), np.float32)), "f32[1, 3]"),
        (ov.Tensor(np.zeros(3, np.int32)), "i32[3]"),
        (np.zeros(3, np.float32), "ndarray"),
        (7, "int"),
    ],
    ids=["length", "rank", "type", "array", "number"],
)
def test_a_value_that_does_not_fit_a_state_is_refused_and_changes_nothing(
    summing: InferRequest, value: Any, found: str
) -> None:
    summing.infer([ONE])
    with pytest.raises(InputError) as caught:
        only(summing).state = value
    assert str(caught.value) == f"state 'sum': {found} given; expected an openvino.Tensor of f32[3]"
    assert list(only(summing).state.data) == [1, 1, 1]
