"""Graphs with states: arguments and metadata, initial values, blobs, refusals."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest
from openvino import opset6
from openvino import opset13 as ops

from softnpu.driver import CommandList, CommandQueue, Context, Graph, GraphSource, ZeResult
from softnpu.driver.graph_creation import compile_source, import_blob
from softnpu.driver.graph_properties import MAX_NAME
from softnpu.emulator.blob.container import ASSIGN, READ_VALUE, BlobReader, Section, StateMeta
from tests.support import stateful
from tests.support.compiler import altered, with_argument, with_meta, with_state
from tests.support.daemon import Daemon
from tests.support.models import Array
from tests.support.work import recorded, refused, run

INIT = {"NPU_STATES_INIT": "YES"}
Compile = Callable[..., Graph]


@pytest.fixture
def compiled(context: Context, tmp_path: Path) -> Compile:
    """Compile a model that a program has in memory."""

    def make(model: ov.Model, renamed: tuple[str, str] = ("", ""), **config: str) -> Graph:
        path = tmp_path / f"{model.get_friendly_name()}.xml"
        ov.serialize(model, path)
        old, new = (f'variable_id="{name}"' for name in renamed)
        path.write_text(path.read_text().replace(old, new))
        with GraphSource.from_ir(path) as source:
            return compile_source(context, source, config=config)

    return make


class Bound:
    """A graph with memory for its arguments, by name."""

    def __init__(self, context: Context, graph: Graph) -> None:
        graph.initialize()
        self.graph = graph
        self.memory = {
            argument.name: context.alloc_host(max(1, argument.byte_size)) for argument in graph.meta.arguments
        }

    def array(self, name: str, dtype: Any = np.float32) -> Array:
        return self.memory[name].view(dtype)

    def commands(self, context: Context, **elsewhere: Any) -> CommandList:
        for index, argument in enumerate(self.graph.meta.arguments):
            place = elsewhere.get(argument.name, self.memory[argument.name])
            self.graph.set_argument_value(index, place)
        return recorded(context, lambda commands: commands.append_graph_execute(self.graph))


def names(graph: Graph) -> list[str]:
    return [argument.name for argument in graph.meta.arguments]


# ---------------------------------------------------------------- arguments and metadata


def test_states_follow_the_models_own_arguments_in_the_order_of_their_ids(compiled: Compile) -> None:
    graph = compiled(stateful.two_variables())
    assert names(graph) == [
        "x", "by", "vpux_ie_read_value_fast", "vpux_ie_read_value_slow",
        "y", "count", "vpux_ie_assign_fast", "vpux_ie_assign_slow",
    ]  # fmt: skip
    assert [argument.input for argument in graph.meta.arguments] == [True] * 4 + [False] * 4
    assert graph.meta.states == (
        StateMeta(variable="fast", input=2, output=6, initial=np.int32(7).tobytes()),
        StateMeta(variable="slow", input=3, output=7, initial=np.arange(3, dtype=np.float32).tobytes()),
    )
    for state in graph.meta.states:
        read, assigned = graph.meta.arguments[state.input], graph.meta.arguments[state.output]
        assert (read.element_type, read.shape) == (assigned.element_type, assigned.shape)


def test_long_ids_are_truncated_alike_in_both_names(compiled: Compile) -> None:
    graph = compiled(stateful.running_sum(variable="v" * 300))
    read, assigned = (graph.get_argument_properties(index).name for index in (1, 3))
    assert read.removeprefix(READ_VALUE) == assigned.removeprefix(ASSIGN)
    assert len(read) == MAX_NAME - 1
    assert graph.meta.states[0].variable == "v" * 300


def test_a_constant_initial_value_is_in_the_metadata_if_it_is_short(compiled: Compile) -> None:
    short = np.arange(256, dtype=np.float32)
    values: list[tuple[Array | None, bytes]] = [
        (None, bytes(4)),
        (np.zeros(600, np.float32), bytes(4)),
        (np.full(600, -0.0, np.float32), bytes(4)),
        (short, short.tobytes()),
        (np.arange(257, dtype=np.float32), b""),
    ]
    for initial, repeated in values:
        shape = (600,) if initial is None else initial.shape
        assert compiled(stateful.running_sum(shape, initial)).meta.states[0].initial == repeated


# ---------------------------------------------------------------- execution


def test_two_lists_with_swapped_buffers_keep_the_state(
    context: Context, queue: CommandQueue, compiled: Compile
) -> None:
    bound = Bound(context, compiled(stateful.running_sum()))
    one, two = bound.memory[READ_VALUE + "sum"], bound.memory[ASSIGN + "sum"]
    lists = [
        bound.commands(context),
        bound.commands(context, **{READ_VALUE + "sum": two, ASSIGN + "sum": one}),
    ]
    one.view()[:] = 0
    for step in range(1, 7):
        bound.array("x")[:] = step
        run(queue, lists[(step - 1) % 2])
        assert list(bound.array("y")) == [step * (step + 1) / 2] * 3


def test_one_buffer_may_be_input_and_output_as_in_intels_plugin(
    context: Context, queue: CommandQueue, compiled: Compile, daemon: Daemon
) -> None:
    # every element moves by one, so that an inference in place would read its own output
    size = 1 << 14
    x = stateful.source([1])
    state = stateful.read(None, "line", x, [size])
    rest = ops.slice(state, *(ops.constant([number]) for number in (0, size - 1, 1, 0)))
    after = ops.concat([x, rest], 0)
    made = stateful.model({"y": ops.relu(x)}, [opset6.assign(after, "line")], [x], "line")
    bound = Bound(context, compiled(made))
    line = bound.memory[READ_VALUE + "line"]
    line.view(np.float32)[:] = np.arange(size)
    commands = bound.commands(context, **{ASSIGN + "line": line})
    before = daemon.engine().staged_bytes
    for step in range(1, 4):
        bound.array("x")[:] = -step
        run(queue, commands)
        expected = [-number for number in range(step, 0, -1)] + list(range(size - step))
        np.testing.assert_array_equal(line.view(np.float32), expected)
    assert daemon.engine().staged_bytes - before == 3 * size * 4


# ---------------------------------------------------------------- the graph of initial values


def test_initial_values_computed_from_inputs_have_their_own_graph(
    context: Context, queue: CommandQueue, compiled: Compile
) -> None:
    main = compiled(stateful.beginning_as_input())
    assert main.meta.states == (StateMeta(variable="level", input=2, output=4),)
    bound = Bound(context, compiled(stateful.beginning_as_input(), **INIT))
    assert [(a.name, a.input) for a in bound.graph.meta.arguments] == [
        ("x", True),
        (READ_VALUE + "level", False),
    ]
    assert bound.graph.meta.states == ()
    bound.array("x")[:] = np.arange(6)
    run(queue, bound.commands(context))
    np.testing.assert_array_equal(bound.array(READ_VALUE + "level"), 10 * np.arange(6, dtype=np.float32))


# ---------------------------------------------------------------- blobs


def test_a_blob_keeps_the_states_and_hides_no_variable(context: Context, compiled: Compile) -> None:
    graph = compiled(stateful.two_computed())
    content = graph.get_native_binary()
    assert b"ReadValue" not in bytes(BlobReader(content).read(Section.IR))
    again = import_blob(context, content)
    assert again.meta == graph.meta
    assert len(again.meta.states) == 3


def test_a_blob_whose_states_differ_from_its_ir_is_refused(context: Context, compiled: Compile) -> None:
    content = compiled(stateful.two_variables()).get_native_binary()
    meta = BlobReader(content).metadata()
    states = meta.states
    wrong: list[dict[str, object]] = [
        with_state(meta, input=-1),
        with_state(meta, input=99),
        with_state(meta, output=states[0].input),
        with_state(meta, input=0),  # that of a port
        with_state(meta, input=states[1].input),
        with_state(meta, variable="other"),
        with_state(meta, initial=bytes(5)),
        {"states": (*states, states[0])},
        with_argument(meta, 3, name="x3"),
        {"states": states[1:]},
    ]
    for change in wrong:
        bad = with_meta(content, **change)
        told = refused(lambda: import_blob(context, bad), ZeResult.ERROR_INVALID_NATIVE_BINARY)  # noqa: B023
        assert "states" in told, change


def test_a_blob_with_a_variable_inside_is_refused(
    context: Context, compiled: Compile, tmp_path: Path
) -> None:
    # as compiled before states were arguments: such a state could not be reset
    graph = compiled(stateful.running_sum())
    ports = tuple(argument for argument in graph.meta.arguments if not argument.name.startswith("vpux"))
    content = altered(graph.get_native_binary(), IR=(tmp_path / "running_sum.xml").read_bytes())
    bad = with_meta(content, arguments=ports, states=())
    told = refused(lambda: import_blob(context, bad), ZeResult.ERROR_INVALID_NATIVE_BINARY)
    assert "ReadValue or Assign of 'sum'" in told


# ---------------------------------------------------------------- refusals


def _growing() -> ov.Model:
    x = stateful.source([1, 3])
    state = stateful.read(ops.constant(np.zeros((1, 3), np.float32)), "grows", x, [-1, 3])
    after = ops.concat([state, x], 0)
    total = ops.reduce_sum(after, ops.constant([0]), keep_dims=False)
    return stateful.model({"y": total}, [opset6.assign(after, "grows")], [x], "growing")


def _dynamic() -> ov.Model:
    x = stateful.source([-1, 3])
    state = stateful.read(None, "wide", x, [-1, 3])
    total = ops.add(x, state)
    return stateful.model({"y": total}, [opset6.assign(total, "wide")], [x], "dynamic_state")


def _unlike() -> ov.Model:
    x = stateful.source([3])
    one = stateful.read(ops.constant(np.zeros(3, np.float32)), "twice", x)
    two = stateful.read(ops.constant(np.ones(3, np.float32)), "twice", x)
    total = ops.add(ops.add(one, two), x)
    return stateful.model({"y": total}, [opset6.assign(total, "twice")], [x], "unlike")


def _never_read() -> ov.Model:
    x = stateful.source([3])
    return stateful.model({"y": ops.relu(x)}, [opset6.assign(ops.add(x, x), "unread")], [x], "never_read")


def _named_alike() -> ov.Model:
    made = stateful.running_sum(variable="s")
    made.inputs[0].get_node().set_friendly_name(READ_VALUE + "s")
    return made


def _chained() -> ov.Model:
    x = stateful.source([3])
    first = stateful.read(ops.multiply(x, x), "first", x)
    second = stateful.read(ops.add(first, x), "second", x)
    assigns = [opset6.assign(ops.add(first, x), "first"), opset6.assign(ops.add(second, x), "second")]
    return stateful.model({"y": ops.add(first, second)}, assigns, [x], "chained")


def test_unsupported_states_are_refused_by_name(compiled: Compile) -> None:
    for make, words in (
        (_growing, ["'grows'", "f32[1,3]", "f32[2,3]"]),
        (_dynamic, ["'wide'", "dynamic shape [?,3]"]),
        (_unlike, ["'twice'", "different initial values"]),
        (_never_read, ["'unread'", "never read"]),
        (_named_alike, ["'s'", "vpux_ie_read_value_s"]),
        (stateful.with_states_inside_a_body, ["'inside'", "If"]),
    ):
        told = refused(lambda: compiled(make()))  # noqa: B023
        assert [word for word in words if word not in told] == [], told


def test_one_variable_is_assigned_one_value(compiled: Compile) -> None:
    x = stateful.source([3])
    state = stateful.read(None, "both", x)
    one, two = ops.add(x, state), ops.multiply(x, state)
    assigns = [opset6.assign(one, "both"), opset6.assign(two, "other")]
    made = stateful.model({"y": ops.add(one, two)}, assigns, [x], "assigned_twice")
    told = refused(lambda: compiled(made, renamed=("other", "both")))
    assert "variable 'both': 2 Assign with different values" in told


def test_an_initial_value_cannot_depend_on_a_computed_one(compiled: Compile) -> None:
    told = refused(lambda: compiled(_chained(), **INIT))
    assert "'first', which is computed too" in told
