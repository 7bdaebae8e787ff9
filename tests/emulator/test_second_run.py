"""Commands that one engine begins and the next one finishes: results are right, effects happen once."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import openvino as ov
import pytest
from openvino import opset6
from openvino import opset13 as ops

from softnpu.driver import Allocation, CommandList, Context, Driver, Graph, GraphSource, ZeResult
from softnpu.driver.graph_creation import compile_source
from softnpu.driver.region import CopyRegion
from tests.conftest import StartDaemon
from tests.support import stateful
from tests.support.daemon import Daemon
from tests.support.dynamic import graph_of, relu
from tests.support.models import Array, on_cpu
from tests.support.waiting import wait_until
from tests.support.work import LONG, check_works, execute, failure, recorded, run

_LARGE = 20 << 20  # three parts
_SHAPE = (4, 1024)


def _cases(full: Sequence[object], soak: Sequence[object]) -> list[Any]:
    """Return cases of which the later ones run on request only."""
    each = [case if isinstance(case, tuple) else (case,) for case in soak]
    return [*full, *(pytest.param(*case, marks=pytest.mark.soak) for case in each)]


class _Device(NamedTuple):
    """A daemon whose engine dies at some point, and a context of it."""

    daemon: Daemon
    context: Context

    def staging(self) -> int:
        """Bytes that the staging of the engine takes."""
        folder = Path(f"/proc/{self.daemon.pid}/fd")
        for entry in folder.iterdir():
            if "softnpu-staging" in os.readlink(entry):
                return entry.stat().st_blocks * 512
        raise AssertionError(f"{folder} has no staging file")


Dying = Callable[[str], AbstractContextManager[_Device]]


@pytest.fixture
def dying(start_daemon: StartDaemon) -> Dying:
    """Opens a device whose engine dies by these fail-points."""

    @contextmanager
    def opened(failpoints: str) -> Iterator[_Device]:
        daemon = start_daemon(failpoints=failpoints)
        with Driver.open(daemon.socket) as driver:
            yield _Device(daemon, driver.devices[0].create_context())

    return opened


def _compiled(context: Context, folder: Path, model: ov.Model, **config: str) -> Graph:
    path = folder / f"{model.get_friendly_name()}.xml"
    ov.serialize(model, path)
    with GraphSource.from_ir(path) as source:
        graph = compile_source(context, source, config=config)
    graph.initialize()
    return graph


def _bind(context: Context, graph: Graph, shared: dict[str, str]) -> dict[str, Allocation]:
    """Memory for all arguments by name; those in `shared` lie where the other one does."""
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


def _random(shape: tuple[int, ...]) -> Array:
    return np.random.default_rng(5).random(shape, np.float32)


# ---------------------------------------------------------------- inferences


@pytest.mark.parametrize(
    ("point", "after"),
    _cases(
        [("staged", 1), ("copied", 3), ("completing", 1), ("signal", 3)],
        [("staged", 3), ("copied", 1), ("completing", 3), ("signal", 1)],
    ),
)
def test_a_state_in_place_advances_once(dying: Dying, tmp_path: Path, point: str, after: int) -> None:
    with dying(f"engine.{point}=kill:1:{after}") as device:
        context = device.context
        graph = _compiled(context, tmp_path, stateful.running_sum((4096,)))
        (state,) = graph.meta.states
        names = [argument.name for argument in graph.meta.arguments]
        memory = _bind(context, graph, {names[state.output]: names[state.input]})
        kept = memory[names[state.input]].view(np.float32)
        kept[:] = 0
        memory["x"].view(np.float32)[:] = 1
        queue = context.create_command_queue()
        once = recorded(context, lambda c: c.append_graph_execute(graph))
        three = recorded(context, *[lambda c: c.append_graph_execute(graph)] * 3)
        for number, commands in ((1, once), (2, once), (5, three), (6, once), (9, three)):
            run(queue, commands)
            assert np.all(kept == number)
        device.daemon.wait_restarted(1)


@pytest.mark.parametrize(
    ("point", "output", "mapped"),
    _cases(
        [("staged", "a", "once"), ("copied", "b", "twice"), ("completing", "a", "twice")],
        [("staged", "b", "twice"), ("copied", "a", "once"), ("completing", "b", "once")],
    ),
)
def test_an_output_in_place_of_an_input_is_right(
    dying: Dying, tmp_path: Path, point: str, output: str, mapped: str
) -> None:
    with dying(f"engine.{point}=kill") as device:
        context = device.context
        graph = _compiled(context, tmp_path, _two_results())
        memory = _bind(context, graph, {})
        shared = context.alloc_host(graph.meta.arguments[0].byte_size, export=True)
        memory["x"] = shared
        memory[output] = shared if mapped == "once" else _mapped_again(context, shared)
        for index, argument in enumerate(graph.meta.arguments):
            graph.set_argument_value(index, memory[argument.name])
        x = _random(_SHAPE)
        memory["x"].view(np.float32)[: x.size] = x.ravel()

        run(context.create_command_queue(), recorded(context, lambda c: c.append_graph_execute(graph)))

        for name, expected in zip(("a", "b"), on_cpu(tmp_path / "two.xml", x), strict=True):
            np.testing.assert_array_equal(memory[name].view(np.float32)[: x.size], expected.ravel())
        device.daemon.wait_restarted(1)


def _mapped_again(context: Context, memory: Allocation) -> Allocation:
    fd = context.export_memory(memory)
    try:
        return context.import_memory(fd)
    finally:
        os.close(fd)


@pytest.mark.parametrize("point", _cases(["staged"], ["copied"]))
def test_a_dynamic_output_in_place_of_its_input_is_right(dying: Dying, tmp_path: Path, point: str) -> None:
    with dying(f"engine.{point}=kill") as device:
        context = device.context
        graph = graph_of(context, tmp_path, relu("[?,1..64]"))
        x, shape = context.alloc_host(1 << 16), context.alloc_host(64)
        for index, argument in enumerate(graph.meta.arguments):
            graph.set_argument_value(index, shape if argument.shape_of >= 0 else x)
        data = np.random.default_rng(3).standard_normal((40, 50), np.float32)
        x.view(np.float32)[: data.size] = data.ravel()
        x.view(np.float32)[data.size :] = -1
        shape.view(np.int32)[:2] = [50, 40]

        run(context.create_command_queue(), recorded(context, lambda c: c.append_graph_execute(graph)))

        np.testing.assert_array_equal(x.view(np.float32)[: data.size], np.maximum(data, 0).ravel())
        assert np.all(x.view(np.float32)[data.size :] == -1)
        device.daemon.wait_restarted(1)


@pytest.mark.parametrize("point", _cases(["copied"], ["staged"]))
def test_a_strided_output_over_its_input_is_right(dying: Dying, tmp_path: Path, point: str) -> None:
    with dying(f"engine.{point}=kill") as device:
        context = device.context
        x = stateful.source((8, 16))
        model = stateful.model({"y": stateful.named(ops.add(x, np.float32(1)), "y")}, [], [x], "step")
        graph = _compiled(context, tmp_path, model, NPU_ENABLE_STRIDES_FOR="y")
        memory = context.alloc_host(8 * 24 * 4)
        memory.view(np.float32)[:] = np.arange(8 * 24)
        graph.set_argument_value(0, memory)
        graph.set_argument_value2(1, memory, [1, 24])
        expected = np.arange(8 * 24, dtype=np.float32).reshape(8, 24)
        expected[:, :16] = np.arange(8 * 16).reshape(8, 16) + 1

        run(context.create_command_queue(), recorded(context, lambda c: c.append_graph_execute(graph)))

        np.testing.assert_array_equal(memory.view(np.float32, (8, 24)), expected)
        device.daemon.wait_restarted(1)


def test_outputs_that_overlap_are_refused_by_name(context: Context, tmp_path: Path) -> None:
    graph = _compiled(context, tmp_path, _two_results())
    memory = context.alloc_host(4 * graph.meta.arguments[0].byte_size).view()
    for index, start in enumerate((0, 40_000, 40_064)):
        graph.set_argument_value(index, memory[start:])
    fence = execute(
        context.create_command_queue(), recorded(context, lambda c: c.append_graph_execute(graph))
    )
    error = failure(lambda: fence.host_synchronize(LONG), ZeResult.ERROR_INVALID_ARGUMENT)
    assert "outputs 'a' and 'b'" in str(error)


# ---------------------------------------------------------------- inferences that are cut off


@pytest.fixture
def long_model() -> ov.Model:
    """x [512, 512] -> y: a few seconds of products; the state, of the same shape, goes up by one."""
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


@pytest.mark.parametrize(
    ("point", "after", "distance", "mapped"),
    _cases(
        [("staged", 1, 64, "twice"), ("staged", 2, -4096, "once"), ("copied", 1, 9 << 20, "once")],
        [("staged", 0, 64, "once"), ("copied", 0, -1, "twice"), ("copied", 2, 64, "once")],
    ),
)
def test_a_long_copy_onto_itself_is_right(
    dying: Dying, point: str, after: int, distance: int, mapped: str
) -> None:
    with dying(f"engine.{point}=kill:1:{after}") as device:
        context = device.context
        source = context.alloc_host(_LARGE, export=True)
        target = source if mapped == "once" else _mapped_again(context, source)
        data = np.random.default_rng(1).integers(0, 255, _LARGE, np.uint8)
        source.view()[:] = data
        size = _LARGE - abs(distance)
        to, start = max(0, distance), max(0, -distance)

        run(
            context.create_command_queue(),
            recorded(
                context, lambda c: c.append_memory_copy(target.view()[to:], source.view()[start:], size)
            ),
        )

        expected = data.copy()
        expected[to : to + size] = data[start : start + size]
        assert np.array_equal(source.view(), expected)
        device.daemon.wait_restarted(1)


@pytest.mark.parametrize(
    ("point", "rows", "shift"),
    _cases(
        [("staged", 64, (1, 8)), ("staged", 4096, (0, 4)), ("copied", 4096, (1, 0))],
        [("copied", 64, (-1, 0)), ("completing", 4096, (-1, 4))],
    ),
)
def test_rows_copied_onto_each_other_are_right(
    dying: Dying, point: str, rows: int, shift: tuple[int, int]
) -> None:
    with dying(f"engine.{point}=kill") as device:
        context = device.context
        width, pitch = 4000, 4096
        memory = context.alloc_host((rows + 2) * pitch)
        data = np.random.default_rng(1).integers(0, 255, memory.size, np.uint8)
        memory.view()[:] = data
        start = pitch
        to = start + shift[0] * pitch + shift[1]
        expected = data.copy()
        for row in range(rows):
            at = row * pitch
            expected[to + at : to + at + width] = data[start + at : start + at + width]

        region = CopyRegion(0, 0, 0, width, rows)

        def shifted(commands: CommandList) -> None:
            views = memory.view()[to:], memory.view()[start:]
            commands.append_memory_copy_region(views[0], region, pitch, views[1], region, pitch)

        run(context.create_command_queue(), recorded(context, shifted))

        assert np.array_equal(memory.view(), expected)
        device.daemon.wait_restarted(1)


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
    with dying("engine.completing=kill") as device:
        context = device.context
        blocks = [context.alloc_host(4096) for _ in range(4)]
        numbers = [1, 2, 3, 4]
        for number, memory in zip(numbers, blocks, strict=True):
            memory.view()[:] = number

        def record(commands: CommandList) -> None:
            # behind the first command, after which the engine notes anyway
            commands.append_memory_fill(context.alloc_host(64), b"\1", 64)
            for target, source in copies:
                commands.append_memory_copy(blocks[target], blocks[source], 4096)

        run(context.create_command_queue(), recorded(context, record))

        for target, source in copies:
            numbers[target] = numbers[source]
        assert [memory.view()[0] for memory in blocks] == numbers
        device.daemon.wait_restarted(1)


# ---------------------------------------------------------------- what it costs


def test_staging_does_not_grow_with_contexts_graphs_and_dead_engines(dying: Dying, tmp_path: Path) -> None:
    with dying("engine.staged=kill:3:2") as device:
        with device.context as context:
            check_works(context)
        driver_device = device.context.device
        assert device.staging() == 0
        for number in range(8):
            with driver_device.create_context() as context:
                graph = _compiled(context, tmp_path, _two_results())
                memory = _bind(context, graph, {"a": "x"})
                x = _random(_SHAPE)
                commands = recorded(context, partial(CommandList.append_graph_execute, graph=graph))
                queue = context.create_command_queue()
                for _ in range(2):
                    memory["x"].view(np.float32)[: x.size] = x.ravel()
                    run(queue, commands)
                assert np.array_equal(memory["a"].view(np.float32)[: x.size], (x + 1).ravel()), number
                assert 0 < device.staging() <= 2 * (x.nbytes + 4096)
            wait_until(lambda: device.staging() == 0, what="staging back")
        assert device.daemon.engine().restarts == 3
