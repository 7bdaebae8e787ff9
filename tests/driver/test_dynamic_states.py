"""Graphs with dynamic states: arguments, execution in place, deaths midway, blobs."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as ops

from softnpu.driver import CommandList, Context, Driver, Graph, GraphSource, ZeError, ZeResult
from softnpu.driver.graph_creation import compile_source, import_blob
from softnpu.emulator.blob.container import BlobReader, GraphMeta, StateMeta
from tests.conftest import StartDaemon
from tests.support import growing, stateful
from tests.support.compiler import altered, with_argument, with_meta, with_state
from tests.support.models import Array
from tests.support.work import recorded, refused, run

READ, ASSIGN, SHAPE = "vpux_ie_read_value_rows", "vpux_ie_assign_rows", "vpux_ie_shape_"
DYNAMIC = {"NPU_STATES_DYNAMIC": "YES"}
ROOM = 1 << 16


def compiled(context: Context, folder: Path, model: ov.Model, **config: str) -> Graph:
    path = folder / f"{model.get_friendly_name()}.xml"
    ov.serialize(model, path)
    with GraphSource.from_ir(path) as source:
        return compile_source(context, source, config=config)


class InPlace:
    """A graph with one memory for both arguments of each state, and one for both shape tensors.

    `rows` is the state that the methods act on; `rooms` has the bytes of dynamic arguments.
    """

    def __init__(self, context: Context, graph: Graph, **rooms: int) -> None:
        graph.initialize()
        self.context = context
        self.memory = {
            argument.name: context.alloc_host(
                rooms.get(argument.name, ROOM) if argument.is_dynamic else argument.byte_size
            )
            for argument in graph.meta.arguments
        }
        for state in graph.meta.states:
            read, assign = (graph.meta.arguments[index].name for index in (state.input, state.output))
            self.memory[assign], self.memory[SHAPE + assign] = self.memory[read], self.memory[SHAPE + read]
            self.memory[SHAPE + read].view(np.int32)[:] = -1
        for index, argument in enumerate(graph.meta.arguments):
            graph.set_argument_value(index, self.memory[argument.name])
        self.commands: CommandList = recorded(context, lambda commands: commands.append_graph_execute(graph))
        self.queue = context.create_command_queue()

    @property
    def shape(self) -> Array:
        return self.memory[SHAPE + READ].view(np.int32)

    def rows(self) -> Array:
        width, count = self.shape.tolist()
        return self.memory[READ].view(np.float32)[: count * width].reshape(count, width)

    def append(self, rows: Array) -> None:
        self.memory["x"].view(np.float32)[: rows.size] = rows.reshape(-1)
        self.memory[SHAPE + "x"].view(np.int32)[:] = rows.shape[::-1]
        run(self.queue, self.commands)


def test_the_arguments_of_a_state_have_shape_tensors(context: Context, tmp_path: Path) -> None:
    meta = compiled(context, tmp_path, growing.history(), **DYNAMIC).meta
    assert [argument.name for argument in meta.arguments] == [
        "x", READ, SHAPE + "x", SHAPE + READ, "y", ASSIGN, SHAPE + ASSIGN,
    ]  # fmt: skip
    assert meta.states == (StateMeta(variable="rows", input=1, output=5),)
    assert meta.arguments[1].partial_shape == meta.arguments[5].partial_shape == "[?,3]"
    static = compiled(context, tmp_path, growing.beside_a_static_one(), **DYNAMIC).meta
    assert [static.arguments[state.input].partial_shape for state in static.states] == ["[?,3]", "[3]"]


def test_one_memory_may_be_input_and_output(context: Context, tmp_path: Path) -> None:
    bound = InPlace(context, compiled(context, tmp_path, growing.history(), **DYNAMIC))
    parts = [np.random.default_rng(count).random((count, 3), np.float32) for count in (2, 1, 400, 3)]
    for number, part in enumerate(parts):
        bound.append(part)
        np.testing.assert_array_equal(bound.rows(), np.concatenate(parts[: number + 1]))
    bound.shape[:] = -1
    bound.append(parts[1])
    np.testing.assert_array_equal(bound.rows(), parts[1])


@pytest.mark.parametrize("point", ["engine.running", "engine.staged", "engine.copied", "engine.completing"])
def test_a_dying_engine_advances_a_state_in_place_once(
    start_daemon: StartDaemon, tmp_path: Path, point: str
) -> None:
    daemon = start_daemon(failpoints=f"{point}=kill:1:2")
    with Driver.open(daemon.socket) as driver:
        context = driver.devices[0].create_context()
        bound = InPlace(context, compiled(context, tmp_path, growing.history(), **DYNAMIC))
        parts = [np.full((count, 3), count, np.float32) for count in (2, 1, 300, 3, 1)]
        for part in parts:
            bound.append(part)
        np.testing.assert_array_equal(bound.rows(), np.concatenate(parts))
    assert daemon.engine().restarts == 1


def test_too_little_memory_keeps_the_rows_and_reports_the_shape(context: Context, tmp_path: Path) -> None:
    bound = InPlace(context, compiled(context, tmp_path, growing.history(), **DYNAMIC), **{READ: 12 * 10})
    first = np.arange(24, dtype=np.float32).reshape(8, 3)
    bound.append(first)
    told = refused(lambda: bound.append(first), ZeResult.ERROR_INVALID_SIZE)
    assert f"'{ASSIGN}'" in told
    assert "[16, 3]" in told
    assert bound.shape.tolist() == [3, 16]  # in place: the shape of the state must be written again
    bound.shape[:] = [3, 8]
    np.testing.assert_array_equal(bound.rows(), first)
    bound.append(first[:2])
    np.testing.assert_array_equal(bound.rows(), np.concatenate([first, first[:2]]))


def test_too_little_memory_for_an_output_reports_the_shape_after_one_step(
    context: Context, tmp_path: Path
) -> None:
    # OpenVINO advances its variables before it finds that the output does not fit
    graph = compiled(context, tmp_path, growing.beside_a_static_one(), **DYNAMIC)
    bound = InPlace(context, graph, y=12 * 3)
    bound.append(np.ones((2, 3), np.float32))
    told = refused(lambda: bound.append(np.ones((5, 3), np.float32)), ZeResult.ERROR_INVALID_SIZE)
    assert "'y'" in told
    assert bound.memory[SHAPE + "y"].view(np.int32).tolist() == [3, 7]


def test_an_impossible_shape_is_refused(context: Context, tmp_path: Path) -> None:
    bound = InPlace(context, compiled(context, tmp_path, growing.history(), **DYNAMIC), **{READ: 12 * 10})
    bound.append(np.ones((1, 3), np.float32))
    for shape in ([3, 11], [4, 2], [3, -1], [-1, 2], [3, -5]):
        bound.shape[:] = shape
        told = refused(lambda: bound.append(np.ones((1, 3), np.float32)), ZeResult.ERROR_INVALID_ARGUMENT)
        assert f"'{READ}'" in told
    bound.shape[:] = [3, 1]
    bound.append(np.ones((1, 3), np.float32))
    assert bound.rows().tolist() == [[1, 1, 1]] * 2


# ---------------------------------------------------------------- states of one attention


class Attention(InPlace):
    """A graph of `growing.appended` in which all numbers are one, and so are all results, up to rounding."""

    def execute(
        self,
        keys: Sequence[int],
        values: Sequence[int],
        *,
        new_keys: Sequence[int] = (1, 2, 1, 8),
        new_values: Sequence[int] = (1, 2, 1, 8),
        beams: Sequence[int] = (0,),
    ) -> None:
        shapes = {"query": new_keys, "key": new_keys, "value": new_values}
        for state, shape in (("key", keys), ("value", values)):
            shapes[f"vpux_ie_read_value_{state}"] = shape
        for name, shape in shapes.items():
            self.memory[name].view(np.float32)[:] = 1
            self.memory[SHAPE + name].view(np.int32)[:] = shape[::-1]
        self.memory["beam_idx"].view(np.int32)[: len(beams)] = beams
        self.memory[SHAPE + "beam_idx"].view(np.int32)[:] = len(beams)
        run(self.queue, self.commands)

    def result(self) -> tuple[list[int], set[float]]:
        shape = self.memory[SHAPE + "y"].view(np.int32)[::-1].tolist()
        return shape, set(np.round(self.memory["y"].view(np.float32)[: math.prod(shape)], 5).tolist())


BEGINS = (-1, -1, -1, -1)
FITS = (1, 2, 5, 8)


@pytest.mark.parametrize(
    ("keys", "values"),
    [
        (FITS, (1, 2, 4, 8)),
        (FITS, (1, 2, 300, 8)),
        ((1, 2, 300, 8), FITS),
        (FITS, (2, 2, 5, 8)),
        ((2, 2, 5, 8), FITS),
        (FITS, BEGINS),
        (BEGINS, FITS),
    ],
)
def test_mismatched_keys_and_values_are_refused(
    context: Context, tmp_path: Path, keys: tuple[int, ...], values: tuple[int, ...]
) -> None:
    bound = Attention(context, compiled(context, tmp_path, growing.appended(), **DYNAMIC))
    bound.execute(FITS, FITS)
    told = refused(lambda: bound.execute(keys, values), ZeResult.ERROR_INVALID_ARGUMENT)
    assert "'key'" in told
    assert "'value'" in told
    bound.execute((1, 2, 9, 8), (1, 2, 9, 8))
    assert bound.result() == ([1, 2, 1, 8], {1.0})


_WRONG: dict[str, tuple[dict[str, Any], tuple[int, ...], dict[str, Any], str]] = {
    "more keys than values": ({}, FITS, {"new_keys": (1, 2, 300, 8)}, "'value'"),
    "more values than keys": ({}, FITS, {"new_values": (1, 2, 300, 8)}, "'value'"),
    "too few beams": ({}, FITS, {"new_keys": (2, 2, 1, 8), "new_values": (2, 2, 1, 8)}, "beam|Concat"),
    "too many beams": ({}, FITS, {"beams": (0, 0)}, "beam|Concat"),
    "more heads": ({"heads": -1}, (1, 3, 5, 8), {}, "'key'|Concat"),
    "fewer heads": ({"heads": -1}, (1, 1, 5, 8), {}, "'key'|Concat"),
    "initial lengths": ({"begin": [(1, 2, 5, 8), (1, 2, 4, 8)]}, BEGINS, {}, "'value'"),
    "initial batch": (
        {"begin": [(1, 2, 5, 8)] * 2},
        BEGINS,
        {"new_keys": (2, 2, 1, 8), "new_values": (2, 2, 1, 8), "beams": (0, 0)},
        "initial value",
    ),
}


@pytest.mark.parametrize(("model", "states", "inputs", "words"), _WRONG.values(), ids=_WRONG.keys())
def test_states_that_do_not_fit_the_inputs_are_refused(
    context: Context,
    tmp_path: Path,
    model: dict[str, Any],
    states: tuple[int, ...],
    inputs: dict[str, Any],
    words: str,
) -> None:
    bound = Attention(context, compiled(context, tmp_path, growing.appended(**model), **DYNAMIC))
    bound.execute(FITS, FITS)
    told = refused(lambda: bound.execute(states, states, **inputs), ZeResult.ERROR_INVALID_ARGUMENT)
    assert re.search(words, told), told
    bound.execute(FITS, FITS)
    assert bound.result() == ([1, 2, 1, 8], {1.0})


@pytest.mark.parametrize("beam", [1, -1])
def test_a_beam_outside_the_states_fails(context: Context, tmp_path: Path, beam: int) -> None:
    bound = Attention(context, compiled(context, tmp_path, growing.appended(), **DYNAMIC))
    refused(lambda: bound.execute(FITS, FITS, beams=[beam]), ZeResult.ERROR_INVALID_ARGUMENT)
    bound.execute(FITS, FITS)
    assert bound.result() == ([1, 2, 1, 8], {1.0})


def test_a_fitting_shape_does_not_vouch_for_others(context: Context, tmp_path: Path) -> None:
    bound = Attention(context, compiled(context, tmp_path, growing.appended(heads=-1), **DYNAMIC))
    for heads, batch, length, new in ((2, 1, 5, 1), (3, 1, 5, 1), (3, 2, 7, 2), (2, 1, 1, 1)):
        state, appended = (batch, heads, length, 8), (batch, heads, new, 8)
        more = {"new_keys": appended, "new_values": appended, "beams": range(batch)}
        bound.execute(state, state, **more)
        assert bound.result() == ([*appended], {1.0})
        for wrong in ((batch, heads + 1, length, 8), (batch, heads - 1, length, 8)):
            refused(lambda: bound.execute(wrong, wrong, **more), ZeResult.ERROR_INVALID_ARGUMENT)  # noqa: B023


# ---------------------------------------------------------------- refusals


def test_without_the_property_it_is_refused_and_named(context: Context, tmp_path: Path) -> None:
    with pytest.raises(ZeError) as caught:
        compiled(context, tmp_path, growing.attention())
    assert caught.value.info.property == "NPU_STATES_DYNAMIC"


@pytest.mark.parametrize("other", ["NPU_STATES_INIT", "ENABLE_WEIGHTLESS"])
def test_properties_that_conflict_with_it_are_refused(context: Context, tmp_path: Path, other: str) -> None:
    def make() -> Graph:
        return compiled(context, tmp_path, growing.history(), **DYNAMIC, **{other: "YES"})

    assert other in refused(make, ZeResult.ERROR_INVALID_ARGUMENT)


def _no_dimension() -> ov.Model:
    return stateful.running_sum(shape=())


def _of_64_bits() -> ov.Model:
    return stateful.running_sum(element_type=ov.Type.i64)


@pytest.mark.parametrize(
    ("make", "words"),
    [(_no_dimension, ["'sum'", "f32[]"]), (_of_64_bits, ["'sum'", "i64[3]"])],
    ids=["scalar", "i64"],
)
def test_states_that_the_cpu_runtime_cannot_keep_are_refused(
    context: Context, tmp_path: Path, make: Callable[[], ov.Model], words: list[str]
) -> None:
    told = refused(lambda: compiled(context, tmp_path, make(), **DYNAMIC), ZeResult.ERROR_UNSUPPORTED_FEATURE)
    assert [word for word in words if word not in told] == [], told


# ---------------------------------------------------------------- blobs


def test_a_blob_keeps_its_variables(context: Context, tmp_path: Path) -> None:
    graph = compiled(context, tmp_path, growing.history(), **DYNAMIC)
    again = import_blob(context, graph.get_native_binary())
    assert again.meta == graph.meta
    bound = InPlace(context, again)
    bound.append(np.ones((2, 3), np.float32))
    assert bound.rows().tolist() == [[1, 1, 1]] * 2


_CHANGES: dict[str, Callable[[GraphMeta], dict[str, object]]] = {
    "a port": lambda meta: with_state(meta, input=0),
    "beyond": lambda meta: with_state(meta, input=99),
    "another's": lambda meta: with_state(meta, output=meta.states[1].output),
    "another name": lambda meta: with_state(meta, variable="other"),
    "begins": lambda meta: with_state(meta, initial=bytes(4)),
    "one left out": lambda meta: {"states": meta.states[1:]},
    "all left out": lambda _: {"states": ()},
    "twice": lambda meta: {"states": (*meta.states, meta.states[0])},
    "other bounds": lambda meta: with_argument(meta, meta.states[0].input, partial_shape="[?,?]"),
    "static": lambda meta: with_argument(meta, meta.states[0].output, partial_shape=""),
    "other type": lambda meta: with_argument(meta, meta.states[0].input, element_type="i32"),
    "other size": lambda meta: with_argument(meta, meta.states[0].input, byte_size=4),
    "no shape tensor": lambda meta: with_argument(meta, meta.shape_tensors[meta.states[0].input], shape_of=0),
}


def test_a_blob_whose_states_are_not_its_variables_is_refused(context: Context, tmp_path: Path) -> None:
    content = compiled(context, tmp_path, growing.beside_a_static_one(), **DYNAMIC).get_native_binary()
    meta = BlobReader(content).metadata()
    for change in _CHANGES.values():
        bad = with_meta(content, **change(meta))
        refused(partial(import_blob, context, bad), ZeResult.ERROR_INVALID_NATIVE_BINARY)


def test_a_blob_without_the_variables_of_its_states_is_refused(context: Context, tmp_path: Path) -> None:
    content = compiled(context, tmp_path, growing.history(), **DYNAMIC).get_native_binary()
    x, rows = stateful.source([-1, 3]), stateful.source([-1, 3], READ)
    both = stateful.named(ops.concat([rows, x], 0), ASSIGN)
    total = stateful.named(ops.reduce_sum(both, ops.constant([0]), False), "y")
    path = tmp_path / "plain.xml"
    ov.serialize(stateful.model({"y": total, ASSIGN: both}, [], [x, rows], "history"), path)
    bad = altered(content, IR=path.read_bytes())
    told = refused(lambda: import_blob(context, bad), ZeResult.ERROR_INVALID_NATIVE_BINARY)
    assert "states" in told
