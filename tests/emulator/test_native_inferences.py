"""Small models on a real device: an engine runs prepared inferences in C++."""

from __future__ import annotations

import functools
from pathlib import Path

import numpy as np
import openvino as ov
import pytest

from softnpu.driver import CommandQueue, Context, GraphSource, ZeResult, faults
from softnpu.driver.graph_creation import compile_source
from softnpu.emulator.engine import native_library
from tests.conftest import StartContext
from tests.support import stateful
from tests.support.daemon import Daemon
from tests.support.models import Array, image, on_cpu, write_scale
from tests.support.waiting import wait_until
from tests.support.work import LONG, Loaded, execute, failure, lost, recorded, run, same

_HAS_C_MODEL = "has a C model"
_SEEDS = range(1, 9)


@pytest.fixture
def ready(start_context: StartContext, digits: Path) -> tuple[Daemon, Context, CommandQueue, Loaded]:
    """Return a daemon whose engine has a C model of the model, and has used it."""
    if native_library.library() is None:
        pytest.skip("the part of the engine in C++ is not built")
    daemon, context = start_context()
    loaded, queue = Loaded(context, digits), context.create_command_queue()
    _warm_up(daemon, loaded, queue, 1)
    return daemon, context, queue, loaded


def _warm_up(daemon: Daemon, loaded: Loaded, queue: CommandQueue, c_models: int) -> None:
    def has_c_models() -> bool:
        loaded.infer(queue, image())
        return daemon.log.count(_HAS_C_MODEL) == c_models

    wait_until(has_c_models, what="a C model")
    for seed in _SEEDS:
        loaded.infer(queue, image(seed))


@functools.cache
def _expected(xml: Path, seed: int) -> list[Array]:
    return on_cpu(xml, image(seed))


def _check(loaded: Loaded, queue: CommandQueue, digits: Path) -> None:
    for seed in [*_SEEDS, *_SEEDS]:
        assert same(loaded.infer(queue, image(seed)), _expected(digits, seed)), seed


def test_every_result_is_that_of_the_cpu_device(
    ready: tuple[Daemon, Context, CommandQueue, Loaded], digits: Path
) -> None:
    daemon, context, queue, loaded = ready
    submissions, inferences = daemon.counts("submissions", "inferences")

    _check(loaded, queue, digits)

    done = 2 * len(_SEEDS)
    assert daemon.counts("submissions", "inferences") == (submissions + done, inferences + done)
    other = Loaded(context, digits)  # the same image in other memory
    _check(other, queue, digits)
    _check(loaded, queue, digits)


def test_one_list_with_many_fences_computes_what_it_is_given(
    ready: tuple[Daemon, Context, CommandQueue, Loaded], digits: Path
) -> None:
    """All are prepared, and run, and share the request of the inference."""
    _, context, queue, loaded = ready
    other = Loaded(context, digits)  # the same image in other memory
    fences = [queue.create_fence() for _ in range(100)]
    for number in range(8 * len(fences)):  # in the fifth and later rounds in C++
        fence, seed = fences[number % len(fences)], number % 8 + 1
        one = (loaded, other)[number // len(fences) % 2]
        one.feed(image(seed))
        queue.execute_command_lists([one.commands], fence)
        assert fence.host_synchronize(LONG)
        assert same(one.outputs, _expected(digits, seed)), number
        fence.reset()


def test_after_the_death_of_an_engine_no_result_is_an_old_one(
    ready: tuple[Daemon, Context, CommandQueue, Loaded], digits: Path
) -> None:
    daemon, _, queue, loaded = ready
    for deaths in range(1, 4):
        daemon.kill_engine()
        _check(loaded, queue, digits)  # during and after its reload
        daemon.wait_restarted(deaths)
        _warm_up(daemon, loaded, queue, deaths + 1)
        _check(loaded, queue, digits)


def test_an_injected_failure_is_not_passed_over(
    ready: tuple[Daemon, Context, CommandQueue, Loaded], digits: Path
) -> None:
    _, _, queue, loaded = ready
    faults.inject("fail", value="ERROR_UNKNOWN", after=2)
    run(queue, loaded.commands)
    run(queue, loaded.commands)
    fence = execute(queue, loaded.commands)
    error = failure(lambda: fence.host_synchronize(LONG), ZeResult.ERROR_UNKNOWN)
    assert "injected fault" in error.info.found
    _check(loaded, queue, digits)


def test_a_graph_that_replaces_another_in_its_memory_computes_for_itself(
    ready: tuple[Daemon, Context, CommandQueue, Loaded], private_dir: Path
) -> None:
    _, context, queue, _ = ready
    for factor in (2.0, 3.0):
        xml = write_scale(private_dir, factor, count=64, name=f"scale{factor:.0f}")
        graph = Loaded(context, xml)
        data = image().reshape(-1)
        expected = on_cpu(xml, data)
        assert all(same(graph.infer(queue, data), expected) for _ in range(30))
        del graph


def test_a_queue_that_is_lost_runs_nothing_that_is_known(
    ready: tuple[Daemon, Context, CommandQueue, Loaded],
) -> None:
    daemon, _, queue, loaded = ready
    faults.inject("lost")
    lost(execute(queue, loaded.commands))
    before = daemon.counts("inferences")
    lost(execute(queue, loaded.commands))
    assert daemon.counts("inferences") == before


def test_a_short_one_without_a_c_model_has_the_same_results_in_python_and_called(
    start_context: StartContext, digits: Path
) -> None:
    daemon, context = start_context()
    loaded = Loaded(context, digits, config={"INFERENCE_PRECISION_HINT": "f16"})
    queue = context.create_command_queue()
    in_python = [loaded.infer(queue, image(seed)) for seed in (1, 2)]
    for deaths in (1, 2):
        for _ in range(12):
            for seed, expected in zip((1, 2), in_python, strict=True):
                assert same(loaded.infer(queue, image(seed)), expected)
        daemon.kill_engine()
        assert same(loaded.infer(queue, image(1)), in_python[0])
        daemon.wait_restarted(deaths)
    assert not daemon.log.count(_HAS_C_MODEL)


def test_a_state_in_place_advances_once_whatever_runs_it(start_context: StartContext, tmp_path: Path) -> None:
    daemon, context = start_context()
    xml = tmp_path / "sum.xml"
    ov.serialize(stateful.running_sum((1 << 20,)), xml)  # too long for a C model
    with GraphSource.from_ir(xml) as source:
        graph = compile_source(context, source)
    graph.initialize()
    (state,) = graph.meta.states
    memory = [context.alloc_host(argument.byte_size) for argument in graph.meta.arguments]
    memory[state.output] = memory[state.input]
    for index, place in enumerate(memory):
        graph.set_argument_value(index, place)
        place.view(np.float32)[:] = index == 0
    queue = context.create_command_queue()
    commands = recorded(context, lambda it: it.append_graph_execute(graph))
    done = 0
    for deaths in (1, 2):
        for _ in range(12):  # more than Python runs before it leaves them to C++
            run(queue, commands)
        fences = [execute(queue, commands) for _ in range(12)]
        daemon.kill_engine()
        assert all(fence.host_synchronize(LONG) for fence in fences)
        done += 24
        assert np.all(memory[state.input].view(np.float32) == done)
        daemon.wait_restarted(deaths)
