"""Arguments of a graph: memory, strides, and what an append takes of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import openvino as ov
import pytest
from openvino import opset15 as ops

from softnpu.driver import Context, Graph, GraphSource, ZeError, ZeResult
from softnpu.driver.graph_creation import compile_source

CALL = "pfnAppendGraphExecute"


@pytest.fixture
def graph(context: Context, tmp_path: Path) -> Graph:
    """x [2, 3] f32 -> y [2, 3] f32, both take strides; plain [2] does not, nor does its output."""
    return compiled(context, tmp_path, 0)


def compiled(context: Context, folder: Path, flags: int) -> Graph:
    x = ops.parameter([2, 3], np.float32, name="x")
    plain = ops.parameter([2], np.float32, name="plain")
    y = ops.relu(x, name="y")
    y.output(0).set_names({"y"})
    path = folder / "strided.xml"
    ov.serialize(ov.Model([y, ops.relu(plain)], [x, plain], "strided"), path)
    with GraphSource.from_ir(path) as source:
        line = '--config NPU_ENABLE_STRIDES_FOR="x,y"'
        return compile_source(context, source, build_flags=line, flags=flags)


def refused(call: object, *arguments: object) -> int:
    with pytest.raises(ZeError) as error:
        call(*arguments)  # type: ignore[operator]
    return error.value.result


def test_a_value_is_a_place_in_memory(context: Context, graph: Graph) -> None:
    memory = context.alloc_host(256)
    for place, offset in ((memory, 0), (memory.address + 100, 100), (memory.view(np.float32)[4:], 16)):
        graph.set_argument_value(0, place)
        graph.set_argument_value(1, memory)
        graph.set_argument_value(2, memory)
        graph.set_argument_value(3, memory)
        bound = graph._bound_arguments(CALL)[0]
        assert (bound.block, bound.offset, bound.strides) == (memory.block, offset, None)


def test_an_argument_that_is_not_set_is_refused_by_name(context: Context, graph: Graph) -> None:
    graph.set_argument_value(0, context.alloc_host(64))
    with pytest.raises(ZeError, match="'plain'") as error:
        graph._bound_arguments(CALL)
    assert error.value.result == ZeResult.ERROR_UNINITIALIZED


def test_memory_that_is_too_small_or_foreign_is_refused(context: Context, graph: Graph) -> None:
    small = context.alloc_host(23)
    assert refused(graph.set_argument_value, 0, small) == ZeResult.ERROR_INVALID_ARGUMENT
    assert refused(graph.set_argument_value, 0, 4096) == ZeResult.ERROR_INVALID_ARGUMENT
    assert refused(graph.set_argument_value, 0, None) == ZeResult.ERROR_INVALID_NULL_POINTER
    other = context.device.create_context()
    assert refused(graph.set_argument_value, 0, other.alloc_host(64)) == ZeResult.ERROR_INVALID_ARGUMENT
    other.destroy()


def test_strides_need_an_argument_that_was_compiled_for_them(context: Context, graph: Graph) -> None:
    memory = context.alloc_host(1024)
    graph.set_argument_value2(0, memory, [2, 10])
    assert refused(graph.set_argument_value2, 1, memory, [1]) == ZeResult.ERROR_INVALID_ARGUMENT


@pytest.mark.parametrize("strides", [[], [1], [0, 3], [1, 0], [-1, 3], [1, 2**32], [1] * 6])
def test_strides_that_cannot_be_are_refused(context: Context, graph: Graph, strides: list[int]) -> None:
    memory = context.alloc_host(1024)
    assert refused(graph.set_argument_value2, 0, memory, strides) == ZeResult.ERROR_INVALID_ARGUMENT


def test_five_strides_as_in_the_c_structure_are_cut_to_the_dimensions(context: Context, graph: Graph) -> None:
    graph.set_argument_value2(0, context.alloc_host(1024), [1, 7, 0, 0, 0])
    assert graph._arguments[0].strides == (1, 7)


def test_strides_want_more_memory(context: Context, graph: Graph) -> None:
    # the last of 2 x 3 elements with strides 2 and 10 is element 1 * 10 + 2 * 2
    graph.set_argument_value2(0, context.alloc_host(60), [2, 10])
    assert refused(graph.set_argument_value2, 0, context.alloc_host(59), [2, 10]) == (
        ZeResult.ERROR_INVALID_ARGUMENT
    )


def test_strides_alone_are_those_of_the_memory_that_is_set(context: Context, graph: Graph) -> None:
    assert refused(graph.set_argument_value2, 0, None, [1, 3]) == ZeResult.ERROR_UNINITIALIZED
    assert refused(graph.set_argument_value2, 0) == ZeResult.ERROR_INVALID_ARGUMENT
    memory = context.alloc_host(64)
    graph.set_argument_value(0, memory)
    graph.set_argument_value2(0, None, [1, 4])
    assert graph._arguments[0] == (memory.block, 0, (1, 4))
    assert refused(graph.set_argument_value2, 0, None, [8, 8]) == ZeResult.ERROR_INVALID_ARGUMENT


def test_a_value_without_strides_is_dense_again(context: Context, graph: Graph, tmp_path: Path) -> None:
    memory = context.alloc_host(1024)
    for dense in (graph.set_argument_value, graph.set_argument_value2):
        graph.set_argument_value2(0, memory, [2, 10])
        dense(0, memory)
        assert graph._arguments[0].strides is None
    keeping = compiled(context, tmp_path, flags=16)
    keeping.set_argument_value2(0, memory, [2, 10])
    keeping.set_argument_value2(0, memory)
    assert keeping._arguments[0].strides == (2, 10)
    keeping.set_argument_value(0, memory)
    assert keeping._arguments[0].strides is None


def test_an_append_takes_the_arguments_of_its_moment(context: Context, graph: Graph) -> None:
    graph.initialize()
    places = [context.alloc_host(64) for _ in range(5)]
    places[0].view(np.float32)[:6] = np.arange(6)
    for index in range(4):
        graph.set_argument_value(index, places[index])
    commands = context.create_command_list()
    commands.append_graph_execute(graph)
    graph.set_argument_value(2, places[4])
    commands.close()
    queue = context.create_command_queue()
    queue.execute_command_lists([commands])
    assert queue.synchronize(30_000_000_000)
    assert places[2].view(np.float32)[:6].tolist() == [0, 1, 2, 3, 4, 5]
    assert not places[4].view(np.float32).any()


def test_a_strided_inference_reads_and_writes_where_the_strides_say(context: Context, graph: Graph) -> None:
    graph.initialize()
    memory = [context.alloc_host(256) for _ in range(4)]
    x, y = memory[0].view(np.float32), memory[2].view(np.float32)
    x[:] = -1
    for row in range(2):
        for column in range(3):
            x[row * 10 + column * 2] = row * 3 + column + 1
    graph.set_argument_value2(0, memory[0], [2, 10])
    graph.set_argument_value(1, memory[1])
    graph.set_argument_value2(2, memory[2], [1, 5])
    graph.set_argument_value(3, memory[3])
    commands = context.create_command_list()
    commands.append_graph_execute(graph)
    commands.close()
    queue = context.create_command_queue()
    queue.execute_command_lists([commands])
    assert queue.synchronize(30_000_000_000)
    assert y[:8].tolist() == [1, 2, 3, 0, 0, 4, 5, 6]
