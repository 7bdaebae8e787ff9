"""Commands begun by one engine and finished by the next: right results, effects exactly once."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
import openvino as ov
import pytest
from openvino import opset6
from openvino import opset13 as ops

from softnpu.driver import Allocation, CommandList, Context, Graph, GraphSource, ZeResult
from softnpu.driver.graph_creation import compile_source
from softnpu.driver.region import CopyRegion
from tests.conftest import OpenContext, StartContext
from tests.support import stateful
from tests.support.daemon import Daemon
from tests.support.dynamic import graph_of, relu
from tests.support.models import on_cpu
from tests.support.waiting import wait_until
from tests.support.work import LONG, check_works, copy, execute, failure, inference, recorded, run

_LARGE = 20 << 20  # three parts
_SHAPE = (4, 1024)


def _points(*points: str) -> pytest.MarkDecorator:
    """Parametrise engine deaths at these points; the later ones run on request only."""
    return pytest.mark.parametrize(
        "points", [points[0], *(pytest.param(point, marks=pytest.mark.soak) for point in points[1:])]
    )


Dying = Callable[[str], Context]


@pytest.fixture
def dying(start_context: StartContext) -> Iterator[Dying]:
    """Open a context on a device whose engines die: `staged:1` means on the second arrival there."""
    expected = []

    def start(points: str) -> Context:
        rules = [f"engine.{point.replace(':', '=kill:1:')}" for point in points.split()]
        daemon, context = start_context(failpoints=",".join(rules))
        expected.append((daemon, len(rules)))
        return context

    yield start
    for daemon, deaths in expected:
        wait_until(lambda: daemon.engine().restarts == deaths, what="the end of every engine")  # noqa: B023


def _compiled(context: Context, folder: Path, model: ov.Model, **config: str) -> Graph:
    path = folder / f"{model.get_friendly_name()}.xml"
    ov.serialize(model, path)
    with GraphSource.from_ir(path) as source:
        graph = compile_source(context, source, config=config)
    graph.initialize()
    return graph


def _bind(context: Context, graph: Graph, shared: dict[str, str]) -> dict[str, Allocation]:
    """Allocate all arguments by name; those in `shared` alias the other one."""
    memory = {a.name: context.alloc_host(max(64, a.byte_size)) for a in graph.meta.arguments}
    memory |= {name: memory[other] for name, other in shared.items()}
    for index, argument in enumerate(graph.meta.arguments):
        graph.set_argument_value(index, memory[argument.name])
    return memory


def _two_results() -> ov.Model:
    """x -> a = x + 1, b = 2 sin x."""
    x = stateful.source(_SHAPE)
    one = stateful.named(ops.add(x, np.float32(1)), "a")
    two = stateful.named(ops.multiply(ops.sin(x), np.float32(2)), "b")
    return ov.Model([ops.result(one), ops.result(two)], [x], "two")


def _mapped_again(context: Context, memory: Allocation) -> Allocation:
    fd = context.export_memory(memory)
    try:
        return context.import_memory(fd)
    finally:
        os.close(fd)


# ---------------------------------------------------------------- inferences


@_points("staged:1 copied:3 completing:3", "staged:3 copied:1 signal:1", "signal:3 completing:1 staged:0")
def test_a_state_in_place_advances_once(dying: Dying, tmp_path: Path, points: str) -> None:
    context = dying(points)
    graph = _compiled(context, tmp_path, stateful.running_sum((4096,)))
    (state,) = graph.meta.states
    names = [argument.name for argument in graph.meta.arguments]
    memory = _bind(context, graph, {names[state.output]: names[state.input]})
    kept = memory[names[state.input]].view(np.float32)
    kept[:] = 0
    memory["x"].view(np.float32)[:] = 1
    queue, once = context.create_command_queue(), inference(context, graph)
    three = recorded(context, *[lambda c: c.append_graph_execute(graph)] * 3)
    for number, commands in ((1, once), (2, once), (5, three), (6, once), (9, three)):
        run(queue, commands)
        assert np.all(kept == number)


@_points("staged:0 copied:1", "copied:0 staged:1", "completing:0 staged:1")
def test_an_output_in_place_of_an_input_is_right(dying: Dying, tmp_path: Path, points: str) -> None:
    context = dying(points)
    graph, queue = _compiled(context, tmp_path, _two_results()), context.create_command_queue()
    x = np.random.default_rng(5).random(_SHAPE, np.float32)
    expected = dict(zip(("a", "b"), on_cpu(tmp_path / "two.xml", x), strict=True))
    for output, mapped in (("a", "once"), ("b", "twice")):
        memory = _bind(context, graph, {})
        shared = context.alloc_host(graph.meta.arguments[0].byte_size, export=True)
        memory["x"] = shared
        memory[output] = shared if mapped == "once" else _mapped_again(context, shared)
        for index, argument in enumerate(graph.meta.arguments):
            graph.set_argument_value(index, memory[argument.name])
        memory["x"].view(np.float32)[: x.size] = x.ravel()

        run(queue, inference(context, graph))

        for name, value in expected.items():
            np.testing.assert_array_equal(memory[name].view(np.float32)[: x.size], value.ravel())


@_points("staged:0 copied:1", "copied:0 staged:1")
def test_dynamic_and_strided_outputs_in_place_of_their_inputs_are_right(
    dying: Dying, tmp_path: Path, points: str
) -> None:
    context = dying(points)
    graph, queue = graph_of(context, tmp_path, relu("[?,1..64]")), context.create_command_queue()
    x, shape = context.alloc_host(1 << 16), context.alloc_host(64)
    for index, argument in enumerate(graph.meta.arguments):
        graph.set_argument_value(index, shape if argument.shape_of >= 0 else x)
    data = np.random.default_rng(3).standard_normal((40, 50), np.float32)
    x.view(np.float32)[: data.size] = data.ravel()
    x.view(np.float32)[data.size :] = -1
    shape.view(np.int32)[:2] = [50, 40]
    run(queue, inference(context, graph))
    np.testing.assert_array_equal(x.view(np.float32)[: data.size], np.maximum(data, 0).ravel())
    assert np.all(x.view(np.float32)[data.size :] == -1)
    assert shape.view(np.int32)[:2].tolist() == [50, 40]

    graph, memory = _strided(context, tmp_path), context.alloc_host(8 * 24 * 4)
    memory.view(np.float32)[:] = np.arange(8 * 24)
    graph.set_argument_value(0, memory)
    graph.set_argument_value2(1, memory, [1, 24])
    expected = np.arange(8 * 24, dtype=np.float32).reshape(8, 24)
    expected[:, :16] = np.arange(8 * 16).reshape(8, 16) + 1
    run(queue, inference(context, graph))
    np.testing.assert_array_equal(memory.view(np.float32, (8, 24)), expected)


def _strided(context: Context, folder: Path) -> Graph:
    """Return x [8, 16] -> y = x + 1; both take strides."""
    x = stateful.source((8, 16))
    model = stateful.model({"y": stateful.named(ops.add(x, np.float32(1)), "y")}, [], [x], "step")
    return _compiled(context, folder, model, NPU_ENABLE_STRIDES_FOR="x,y")


def test_outputs_that_overlap_each_other_or_themselves_are_refused_by_name(
    shared_daemon: Daemon, open_context: OpenContext, tmp_path: Path
) -> None:
    context = open_context(shared_daemon)
    graph = _compiled(context, tmp_path, _two_results())
    memory = context.alloc_host(4 * graph.meta.arguments[0].byte_size).view()
    for index, start in enumerate((0, 40_000, 40_064)):
        graph.set_argument_value(index, memory[start:])
    queue = context.create_command_queue()
    fence = execute(queue, inference(context, graph))
    error = failure(lambda: fence.host_synchronize(LONG), ZeResult.ERROR_INVALID_ARGUMENT)
    assert "outputs 'a' and 'b'" in str(error)

    graph, memory = _strided(context, tmp_path), context.alloc_host(8192).view()
    for source, target, overlap in (
        ([1, 16], [1, 15], True),
        ([1, 16], [8, 9], True),
        ([1, 8], [1, 16], False),  # an input may be read twice
        ([1, 16], [8, 1], False),
    ):
        graph.set_argument_value2(0, memory[4096:], source)
        graph.set_argument_value2(1, memory, target)
        fence = execute(queue, inference(context, graph))
        if overlap:
            error = failure(partial(fence.host_synchronize, LONG), ZeResult.ERROR_INVALID_ARGUMENT)
            assert "argument 'y', strides" in str(error)
            assert "elements that overlap" in str(error)
        else:
            assert fence.host_synchronize(LONG)


# ------------------------------------------------------------ interrupted inferences


@pytest.fixture
def long_model() -> ov.Model:
    """Return x [512, 512] -> y: a few seconds of products; the state, of the same shape, goes up by one."""
    x = stateful.source((512, 512))
    value = x
    for _ in range(400):
        value = ops.softmax(ops.matmul(value, x, False, False), axis=1)
    state = stateful.read(None, "count", x)
    after = ops.add(state, np.float32(1))
    y = stateful.named(ops.add(value, after), "y")
    return stateful.model({"y": y}, [opset6.assign(after, "count")], [x], "long")


def test_an_inference_that_is_cut_off_writes_nothing_of_what_it_stages(
    context: Context, tmp_path: Path, long_model: ov.Model
) -> None:
    graph = _compiled(context, tmp_path, long_model, NPU_ENABLE_STRIDES_FOR="y")
    (state,) = graph.meta.states
    names = [argument.name for argument in graph.meta.arguments]
    memory = _bind(context, graph, {names[state.output]: names[state.input]})
    y = context.alloc_host(512 * 520 * 4)
    graph.set_argument_value2(names.index("y"), y, [1, 520])
    memory["x"].view(np.float32)[:] = 1
    memory[names[state.input]].view(np.float32)[:] = 100
    y.view()[:] = 0x5A
    begun, queue = context.create_event(), context.create_command_queue()
    commands = recorded(
        context, lambda c: c.append_signal_event(begun), lambda c: c.append_graph_execute(graph)
    )
    fence = execute(queue, commands)
    assert begun.host_synchronize(LONG)

    fence.cancel()

    failure(lambda: fence.host_synchronize(LONG), ZeResult.ERROR_NOT_AVAILABLE)
    assert np.all(memory[names[state.input]].view(np.float32) == 100)
    assert np.all(y.view() == 0x5A)
    check_works(context)


# ---------------------------------------------------------------- copies


@_points("staged:1 copied:3", "staged:5 copied:0", "staged:0 copied:5")
def test_a_long_copy_onto_itself_is_right(dying: Dying, points: str) -> None:
    context = dying(points)
    source, queue = context.alloc_host(_LARGE, export=True), context.create_command_queue()
    expected = np.random.default_rng(1).integers(0, 255, _LARGE, np.uint8)
    source.view()[:] = expected
    for distance, mapped in ((64, "twice"), (-4096, "once"), (9 << 20, "once"), (-1, "twice")):
        target = source if mapped == "once" else _mapped_again(context, source)
        size, to, start = _LARGE - abs(distance), max(0, distance), max(0, -distance)
        views = target.view()[to:], source.view()[start:]
        run(queue, copy(context, *views, size))
        expected[to : to + size] = expected[start : start + size].copy()
        assert np.array_equal(source.view(), expected)


@_points("staged:0 copied:1", "copied:0 staged:2", "completing:1 staged:3")
def test_rows_copied_onto_each_other_are_right(dying: Dying, points: str) -> None:
    context = dying(points)
    width, pitch = 4000, 4096
    memory, queue = context.alloc_host(4098 * pitch), context.create_command_queue()
    expected = np.random.default_rng(1).integers(0, 255, memory.size, np.uint8)
    memory.view()[:] = expected
    for rows, shift in ((64, (1, 8)), (4096, (1, 0)), (4096, (0, 4)), (64, (-1, 0)), (4096, (-1, 4))):
        start, to = pitch, pitch + shift[0] * pitch + shift[1]
        before = expected.copy()
        for at in range(0, rows * pitch, pitch):
            expected[to + at : to + at + width] = before[start + at : start + at + width]
        region, views = CopyRegion(0, 0, 0, width, rows), (memory.view()[to:], memory.view()[start:])
        commands = context.create_command_list()
        commands.append_memory_copy_region(views[0], region, pitch, views[1], region, pitch)
        commands.close()
        run(queue, commands)
        assert np.array_equal(memory.view(), expected)


@pytest.mark.quick
@pytest.mark.parametrize(
    "copies",
    [
        pytest.param([(1, 0), (0, 2)], id="over what was copied"),
        pytest.param([(3, 0), (0, 1), (1, 2), (2, 3)], id="around"),
    ],
)
def test_a_list_that_overwrites_what_it_has_read_is_right(
    dying: Dying, copies: list[tuple[int, int]]
) -> None:
    context = dying("completing:0")
    blocks = [context.alloc_host(4096) for _ in range(4)]
    numbers = [1, 2, 3, 4]
    for number, memory in zip(numbers, blocks, strict=True):
        memory.view()[:] = number

    def record(commands: CommandList) -> None:
        # after the first command, where the engine logs anyway
        commands.append_memory_fill(context.alloc_host(64), b"\1", 64)
        for target, source in copies:
            commands.append_memory_copy(blocks[target], blocks[source], 4096)

    run(context.create_command_queue(), recorded(context, record))

    for target, source in copies:
        numbers[target] = numbers[source]
    assert [memory.view()[0] for memory in blocks] == numbers


# ------------------------------------------------------------ costs


def _staging(daemon: Daemon) -> int:
    """Return bytes of the engine's staging."""
    for entry in Path(f"/proc/{daemon.pid}/fd").iterdir():
        if "softnpu-staging" in os.readlink(entry):
            return entry.stat().st_blocks * 512
    raise AssertionError("the daemon has no staging file")


def test_staging_does_not_grow_with_contexts_graphs_and_dead_engines(
    start_context: StartContext, tmp_path: Path
) -> None:
    daemon, idle = start_context(failpoints="engine.staged=kill:2:1")
    check_works(idle)
    assert _staging(daemon) == 0
    for number in range(4):
        with idle.device.create_context() as context:
            graph = _compiled(context, tmp_path, _two_results())
            memory = _bind(context, graph, {"a": "x"})
            x = np.random.default_rng(number).random(_SHAPE, np.float32)
            queue, commands = context.create_command_queue(), inference(context, graph)
            for _ in range(2):
                memory["x"].view(np.float32)[: x.size] = x.ravel()
                run(queue, commands)
            assert np.array_equal(memory["a"].view(np.float32)[: x.size], (x + 1).ravel()), number
            assert 0 < _staging(daemon) <= 2 * (x.nbytes + 4096)
        wait_until(lambda: _staging(daemon) == 0, what="staging back")
    assert daemon.engine().restarts == 2


def test_staging_beyond_the_limit_of_the_session_is_refused(
    start_context: StartContext, tmp_path: Path
) -> None:
    _, context = start_context(session_memory=1 << 19)
    x = stateful.source((512, 512))  # 1 MiB, and 4 KiB with overlapping rows
    total = stateful.named(ops.reduce_sum(x, np.array([1])), "y")
    graph = _compiled(
        context, tmp_path, stateful.model({"y": total}, [], [x], "sum"), NPU_ENABLE_STRIDES_FOR="x"
    )
    queue = context.create_command_queue()
    graph.set_argument_value2(0, context.alloc_host(1 << 16), [1, 1])
    graph.set_argument_value(1, context.alloc_host(4096))
    fence = execute(queue, inference(context, graph))
    error = failure(lambda: fence.host_synchronize(LONG), ZeResult.ERROR_OUT_OF_DEVICE_MEMORY)
    assert f"expected at most {1 << 19} bytes a session" in str(error)
    memory = context.alloc_host(1 << 17).view()
    run(queue, recorded(context, lambda c: c.append_memory_copy(memory[8:], memory, 100_000)))
