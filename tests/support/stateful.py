"""Models with states, and OpenVINO's CPU device over the same steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
from openvino import opset3, opset6
from openvino import opset13 as ops
from openvino._offline_transformations import (
    apply_low_latency_transformation,
    apply_make_stateful_transformation,
    convert_sequence_to_tensor_iterator_transformation,
)

from softnpu.plugin import CompiledModel, InferRequest, VariableState
from tests.support.models import Array

CPU = {"INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY", "EXECUTION_MODE_HINT": "ACCURACY"}
Reset = dict[int, str]
"""What to reset before which step: the name of a state, or empty for all."""


def named(node: Any, name: str) -> Any:
    """Return the node with tensor and friendly name `name`."""
    node.set_friendly_name(name)
    node.output(0).set_names({name})
    return node


def source(shape: Sequence[int], name: str = "x", element_type: ov.Type = ov.Type.f32) -> Any:
    return named(ops.parameter(list(shape), element_type), name)


def result(value: Any, name: str) -> Any:
    node = ops.result(value)
    node.set_friendly_name(f"{name}/result")
    return node


def read(initial: Any, variable: str, like: Any, shape: Sequence[int] | None = None) -> Any:
    """Return a ReadValue-6 with the type, and by default the shape, of `like`; `initial` None: zeros."""
    kind = like.get_element_type()
    sizes = like.get_output_partial_shape(0) if shape is None else list(shape)
    if initial is None:
        return opset6.read_value(variable, kind, sizes)
    return opset6.read_value(initial, variable, kind, sizes)


def model(outputs: dict[str, Any], assigns: Sequence[Any], inputs: Sequence[Any], name: str) -> ov.Model:
    """Return a model whose outputs have these names."""
    results = []
    for output, value in outputs.items():
        value.output(0).add_names({output})
        results.append(result(value, output))
    return ov.Model(results, list(assigns), list(inputs), name)


def running_sum(
    shape: Sequence[int] = (3,),
    initial: Array | None = None,
    variable: str = "sum",
    element_type: ov.Type = ov.Type.f32,
) -> ov.Model:
    """y = x + the sum of all previous x, which begins as `initial`."""
    x = source(shape, element_type=element_type)
    state = read(None if initial is None else ops.constant(initial, element_type), variable, x)
    total = ops.logical_xor(x, state) if element_type == ov.Type.boolean else ops.add(x, state)
    return model({"y": named(total, "y")}, [opset6.assign(total, variable)], [x], "running_sum")


def old_running_sum() -> ov.Model:
    """The same with ReadValue-3 and Assign-3, beginning as 1, 2, 3."""
    x = source([3])
    state = opset3.read_value(ops.constant(np.array([1, 2, 3], np.float32)), "sum")
    total = named(ops.add(x, state), "y")
    return model({"y": total}, [opset3.assign(total, "sum")], [x], "old_running_sum")


def scaled_sum(opset: int, element_type: ov.Type) -> ov.Model:
    """1.7 times the sum of all x, with operations of opset 3 or 6: hidden values need no rounding."""
    x = source([64], element_type=element_type)
    zeros = ops.constant(np.zeros(64), element_type)
    state = opset3.read_value(zeros, "sum") if opset == 3 else read(zeros, "sum", x)
    total = ops.add(x, state)
    shown = ops.multiply(total, ops.constant(np.array(1.7), element_type))
    assign = (opset3 if opset == 3 else opset6).assign(total, "sum")
    return model({"y": shown}, [assign], [x], "scaled_sum")


def beginning_as_input() -> ov.Model:
    """`level` begins as 10 * x; the input `gain` does not affect its initial value."""
    x, gain = source([2, 3]), source([1], "gain")
    state = read(ops.multiply(x, ops.constant(np.float32(10))), "level", x)
    after = named(ops.add(ops.multiply(x, gain), state), "y")
    return model({"y": after}, [opset6.assign(after, "level")], [x, gain], "beginning_as_input")


def two_computed() -> ov.Model:
    """`a` begins as -x, `b` as tanh(x) plus `c`, and `c` as 5: every kind of dependence at once."""
    x = source([4])
    c = read(ops.constant(np.full(4, 5, np.float32)), "c", x)
    a = read(ops.negative(x), "a", x)
    b = read(ops.add(ops.tanh(x), c), "b", x)
    after_a, after_b, after_c = ops.add(a, x), ops.multiply(b, a), ops.add(c, ops.constant(np.float32(1)))
    assigns = [opset6.assign(after_c, "c"), opset6.assign(after_a, "a"), opset6.assign(after_b, "b")]
    return model({"y": ops.add(ops.add(a, b), c)}, assigns, [x], "two_computed")


def two_variables() -> ov.Model:
    """`fast` (i32) counts, `slow` (f32, of another shape than the input) averages."""
    x = source([2, 3])
    counter = source([1], "by", ov.Type.i32)
    count = read(ops.constant(np.array([7], np.int32)), "fast", counter)
    mean = read(ops.constant(np.arange(3, dtype=np.float32)), "slow", x, [3])
    counted = named(ops.add(count, counter), "count")
    averaged = ops.multiply(
        ops.add(mean, ops.reduce_mean(x, ops.constant([0]), keep_dims=False)), ops.constant(np.float32(0.5))
    )
    shown = ops.multiply(averaged, ops.convert(counted, "f32"))
    assigns = [opset6.assign(averaged, "slow"), opset6.assign(counted, "fast")]
    return model({"y": named(shown, "y"), "count": counted}, assigns, [x, counter], "two_variables")


def lstm(inputs: int = 4, hidden: int = 8) -> ov.Model:
    """Return an LSTM cell whose hidden and cell states are variables."""
    random = np.random.default_rng(0)

    def weights(*shape: int) -> Any:
        return ops.constant(random.standard_normal(shape, np.float32))

    x = source([1, inputs])
    like = ops.constant(np.zeros((1, hidden), np.float32))
    h, c = read(like, "h", like), read(like, "c", like)
    cell = ops.lstm_cell(
        x, h, c, weights(4 * hidden, inputs), weights(4 * hidden, hidden), weights(4 * hidden), hidden
    )
    after = [ops.reshape(cell.output(index), ops.constant([1, hidden]), False) for index in range(2)]
    assigns = [opset6.assign(after[0], "h"), opset6.assign(after[1], "c")]
    y = named(ops.softmax(cell.output(0), 1), "y")
    return model({"y": y}, assigns, [x], "lstm")


def low_latency() -> ov.Model:
    """Return LowLatency2's result for a sequence of one step."""
    random = np.random.default_rng(1)
    x = source([1, 1, 4])
    h, c = source([1, 1, 8], "h"), source([1, 1, 8], "c")
    arrays = [random.standard_normal(shape, np.float32) for shape in ((1, 32, 4), (1, 32, 8), (1, 32))]
    sequence = ops.lstm_sequence(
        x, h, c, ops.constant(np.array([1], np.int64)), *map(ops.constant, arrays), 8, "FORWARD"
    )
    made = model({"y": named(ops.relu(sequence.output(0)), "y")}, [], [x, h, c], "low_latency")
    convert_sequence_to_tensor_iterator_transformation(made)
    apply_low_latency_transformation(made)
    return made


def made_stateful() -> ov.Model:
    """Return MakeStateful's result for a matching input and output."""
    x, before = source([2, 2]), source([2, 2], "before")
    after = named(ops.add(ops.matmul(before, x, False, False), x), "after")
    made = model({"y": named(ops.tanh(after), "y"), "after": after}, [], [x, before], "made_stateful")
    apply_make_stateful_transformation(made, {"before": "after"})
    return made


def row_writer(rows: int, width: int = 1024, computed: bool = False) -> ov.Model:
    """Row `at` of the state becomes x; y is the sum of that row and the next. An out-of-range index fails.

    Initially all rows are 0, or if `computed` the first x.
    """
    x, at = source([1, width]), source([1], "at", ov.Type.i32)
    initial = ops.broadcast(x, ops.constant([rows, width])) if computed else None
    table = read(initial, "table", x, [rows, width])
    axis = ops.constant(0)
    after = ops.scatter_update(table, at, x, axis)
    here = ops.gather(after, at, axis)
    following = ops.gather(table, ops.add(at, ops.constant(np.array([1], np.int32))), axis)
    y = named(ops.add(here, following), "y")
    return model({"y": y}, [opset6.assign(after, "table")], [x, at], "row_writer")


def many(count: int) -> ov.Model:
    """Return `count` chained states: each step moves every value to the next one."""
    x = source([2])
    # OpenVINO's CPU device shows garbage after the first step for an input that is assigned unchanged
    value: Any = ops.add(x, ops.constant(np.float32(1)))
    assigns = []
    for number in range(count):
        state = read(ops.constant(np.full(2, number, np.float32)), f"v{number}", x)
        assigns.append(opset6.assign(value, f"v{number}"))
        value = state
    return model({"y": named(ops.relu(value), "y")}, assigns, [x], "many")


def with_states_inside_a_body() -> ov.Model:
    """Return a variable in a branch of an If."""
    x, flag = source([3]), source([], "flag", ov.Type.boolean)
    inner = ops.parameter([3], ov.Type.f32)
    state = read(ops.constant(np.zeros(3, np.float32)), "inside", inner)
    total = ops.add(inner, state)
    then = ov.Model([ops.result(total)], [opset6.assign(total, "inside")], [inner], "then")
    other = ops.parameter([3], ov.Type.f32)
    otherwise = ov.Model([ops.result(ops.relu(other))], [other], "else")
    node = ops.if_op(flag)
    node.set_then_body(then)
    node.set_else_body(otherwise)
    node.set_input(x.output(0), inner, other)
    out = node.set_output(then.results[0], otherwise.results[0])
    return ov.Model([ops.result(out)], [x, flag], "with_a_body")


def random_steps(compiled: Any, count: int, seed: int = 0) -> list[list[ov.Tensor]]:
    """Return inputs for `count` steps."""
    random = np.random.default_rng(seed)
    return [[_random(port, random) for port in compiled.inputs] for _ in range(count)]


def _random(port: Any, random: np.random.Generator) -> ov.Tensor:
    tensor = ov.Tensor(port.get_element_type(), port.get_shape())
    kind = port.get_element_type()
    if kind == ov.Type.bf16:
        halves = random.standard_normal(tuple(port.get_shape()), np.float32).view(np.uint32) >> 16
        tensor.data.view(np.uint16)[...] = halves
    elif kind.is_real():
        tensor.data[...] = random.standard_normal(tuple(port.get_shape()), np.float32)
    else:
        tensor.data[...] = random.integers(0, 2, tuple(port.get_shape()))
    return tensor


def run(
    request: Any,
    steps: Sequence[Sequence[ov.Tensor]],
    resets: Reset | None = None,
    each: Callable[[int], None] = lambda _: None,
) -> list[list[bytes]]:
    """Return outputs and states (by name) after every step, for an `InferRequest` of either side."""
    found = []
    for number, inputs in enumerate(steps):
        if resets is not None and number in resets:
            _reset(request, resets[number])
        request.infer(list(inputs))
        states = sorted(request.query_state(), key=lambda state: str(state.name))
        tensors = [*request.output_tensors, *(state.state for state in states)]
        found.append([tensor.data.tobytes() for tensor in tensors])
        each(number)
    return found


def _reset(request: Any, name: str) -> None:
    if not name:
        request.reset_state()
    for state in request.query_state():
        if state.name == name:
            state.reset()


def on_cpu(
    what: ov.Model | Path, steps: Sequence[Sequence[ov.Tensor]], resets: Reset | None = None
) -> list[list[bytes]]:
    """Do `run` on OpenVINO's own CPU device with the settings of a default compilation."""
    return run(ov.Core().compile_model(what, "CPU", CPU).create_infer_request(), steps, resets)


def only(owner: InferRequest | CompiledModel) -> VariableState:
    """Return the only state of a model."""
    (state,) = owner.query_state()
    return state


@contextmanager
def held(request: InferRequest) -> Iterator[None]:
    """Delay the execution of everything started inside until the end of the block."""
    context = request._executable.context
    event, gate = context.create_event(), context.create_command_list()
    gate.append_wait_on_events([event])
    gate.close()
    request._executable.queue().execute_command_lists([gate])
    yield
    event.host_signal()
