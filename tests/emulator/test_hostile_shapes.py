"""Shape tensors are client memory: whatever they contain, only the client's own execution is refused."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import NoReturn

import numpy as np
import numpy.typing as npt
import pytest

from softnpu.driver import Context, Graph, ZeError, ZeResult
from softnpu.emulator.common import linux
from tests.support.daemon import Daemon
from tests.support.dynamic import SHAPE, Execution, graph_of, non_zero, on_cpu, relu, sampled, total
from tests.support.waiting import wait_until
from tests.support.work import LONG, execute, failure, inference

_MOST = 2**31 - 1


@pytest.fixture
def daemon(shared_daemon: Daemon) -> Daemon:
    return shared_daemon


@pytest.fixture
def graph(context: Context, tmp_path: Path) -> Graph:
    """Return x [2..8, 16] f32 -> y of the same shape."""
    return graph_of(context, tmp_path, relu("[2..8,16]"))


def refused(run: Execution, result: ZeResult = ZeResult.ERROR_INVALID_ARGUMENT) -> str:
    return str(failure(run.run, result))


def execution_error(context: Context, graph: Graph, result: ZeResult) -> str:
    """Execute the graph with the memory that was set; return the reason for its refusal."""
    fence = execute(context.create_command_queue(), inference(context, graph))
    return str(failure(lambda: fence.host_synchronize(LONG), result))


def test_a_shape_outside_the_bounds_is_refused_and_writes_nothing(context: Context, graph: Graph) -> None:
    run = Execution(context, graph)
    for shape in [
        (1, 16), (9, 16), (0, 16), (3, 15), (3, 17), (-1, 16), (8, -16), (-2, -16), (_MOST, 16), (3, _MOST),
        (_MOST, _MOST), (-_MOST - 1, -_MOST - 1), (0, 0),
    ]:  # fmt: skip
        run.tell("x", shape)
        text = refused(run)
        assert all(part in text for part in ("input 'x'", str(list(shape)), "[2..8,16]")), text
        assert set(run.memory["y"].view(np.uint8)) == {0xAA}
        assert set(run.memory[f"{SHAPE}y"].view(np.uint8)) == {0xAA}
    x = np.random.default_rng(1).standard_normal((3, 16), np.float32)
    run.put("x", x)
    run.run()
    np.testing.assert_array_equal(run.output("y"), np.maximum(x, 0))


def test_a_shape_that_is_negative_or_needs_more_than_the_memory_is_refused(
    context: Context, tmp_path: Path
) -> None:
    run = Execution(context, graph_of(context, tmp_path, relu("[?,?]")), {"x": 4 * 127, "y": 4096})
    for shape in [(8, 16), (_MOST, _MOST), (1, 129), (129, 1), (2**16, 2**16), (2**30, 4)]:
        run.tell("x", shape)
        assert "at most the 508 bytes" in refused(run)
    for shape in [(-1, 5), (-1, -5), (5, -1)]:
        run.tell("x", shape)
        assert str(list(shape)) in refused(run)
    run.put("x", np.ones((127, 1), np.float32))
    run.run()
    assert run.told("y") == [127, 1]


def test_memory_at_the_end_of_an_allocation_is_no_memory(context: Context, tmp_path: Path) -> None:
    graph = graph_of(context, tmp_path, relu("[?]"))
    run = Execution(context, graph, {"x": 64, "y": 64})
    graph.set_argument_value(0, run.memory["x"].view(np.uint8)[63:])  # not a multiple of an element
    run.tell("x", (0,))
    assert execution_error(context, graph, ZeResult.ERROR_UNSUPPORTED_ALIGNMENT)


def test_nothing_behind_the_memory_is_read_or_written(context: Context, tmp_path: Path) -> None:
    """One allocation: x, y and their shape tensors side by side, y with less room than x requires."""
    graph = graph_of(context, tmp_path, relu("[?]"))
    view = context.alloc_host(64).view(np.uint8)
    for index, offset in {0: 16, 1: 0, 2: 48, 3: 4}.items():
        graph.set_argument_value(index, view[offset:])  # y is the last 16 bytes
    view[:] = 0xAA
    view[:4].view(np.int32)[:] = 8
    view[16:48].view(np.float32)[:] = 5
    assert "32 bytes for shape" in execution_error(context, graph, ZeResult.ERROR_INVALID_SIZE)
    assert view[4:8].view(np.int32)[0] == 8
    assert set(view[8:16]) == {0xAA}
    assert (view[16:48].view(np.float32) == 5).all()


def test_an_output_over_its_own_shape_tensor_is_refused(context: Context, graph: Graph) -> None:
    memory = context.alloc_host(512)
    for index in range(4):
        graph.set_argument_value(index, memory)
    memory.view(np.int32)[:2] = [16, 4]
    before = bytes(memory.view())
    text = execution_error(context, graph, ZeResult.ERROR_INVALID_ARGUMENT)
    assert "outputs 'y' and 'vpux_ie_shape_y'" in text
    assert bytes(memory.view()) == before


def test_a_shape_that_changes_all_the_time_is_right_or_refused(
    context: Context, tmp_path: Path, daemon: Daemon
) -> None:
    """A process writes valid and too large shapes into the tensor while the engine reads it."""
    run = Execution(context, graph_of(context, tmp_path, relu("[?,?]")), {"x": 4096, "y": 4096})
    run.put("x", np.ones((4, 8), np.float32))
    faults = daemon.engine().faults
    ended, results = {True: 0, False: 0}, set()
    words = run.memory[f"{SHAPE}x"].view(np.int64, (1,))  # both dimensions in one store
    flipper = os.fork()
    if not flipper:
        _flip(words)
    try:
        while min(ended.values()) < 100:
            try:
                run.run()
            except ZeError as error:
                results.add(error.result)
                ended[False] += 1
            else:
                assert run.told("y") in ([4, 8], [16, 2])
                ended[True] += 1
    finally:
        os.kill(flipper, signal.SIGKILL)
        os.waitpid(flipper, 0)
    assert results == {ZeResult.ERROR_INVALID_ARGUMENT}
    wait_until(lambda: daemon.engine().faults == faults + ended[False], what="all faults counted")


def _flip(words: npt.NDArray[np.int64]) -> NoReturn:
    """Run in a separate process: a thread would stall while the other one waits for the end."""
    try:
        linux.die_with_parent(os.getppid())
        shapes = [[64, 64], [8, 4], [64, 64], [2, 16]]
        values = [int(np.array(shape, np.int32).view(np.int64)[0]) for shape in shapes]
        while True:
            for value in values:
                words[0] = value
    finally:
        os._exit(1)  # nothing of the test may continue here


def test_a_result_that_never_fits_costs_nobody_else_anything(context: Context, tmp_path: Path) -> None:
    graph = graph_of(context, tmp_path, non_zero("[?]"))
    poor = Execution(context, graph, {"x": 4096, "places": 1})
    rich = Execution(context, graph, {"x": 4096, "places": 16384})
    for run in (poor, rich):
        run.put("x", np.ones(1024, np.float32))
    for _ in range(3):
        assert "8192 bytes for shape [1, 1024]" in refused(poor, ZeResult.ERROR_INVALID_SIZE)
        assert poor.told("places") == [1, 1024]
        rich.run()
        np.testing.assert_array_equal(rich.output("places"), np.arange(1024).reshape(1, 1024))


def test_shapes_that_fail_do_not_spoil_the_image_for_others(context: Context, tmp_path: Path) -> None:
    run = Execution(context, graph_of(context, tmp_path, total("[?,?]")), {"x": 1024, "y": 1024, "sum": 1024})
    for rows in range(1, 9):
        run.put("x", np.full((rows, 4), 1, np.float32))
        run.put("y", np.full((rows + 1, 3), 1, np.float32))
        refused(run)  # they do not match each other
        run.put("y", np.full((rows, 4), 2, np.float32))
        run.run()
        assert (run.output("sum") == 3).all()
    # after refusing wrong shapes, OpenVINO's compiled model refuses right ones for good
    model = sampled(8)
    graph = graph_of(context, tmp_path, model)
    mine, theirs = Execution(context, graph), Execution(context, graph_of(context, tmp_path, model))
    right = np.random.default_rng(1).random((8, 1, 4, 4), dtype=np.float32)
    for run in (mine, theirs):
        run.put("x", right)
        run.run()
    mine.put("x", right[:3])
    refused(mine)
    (expected,) = on_cpu(model, [right])
    for run in (theirs, mine):
        run.put("x", right)
        run.run()
        assert np.array_equal(run.output("y"), expected)
