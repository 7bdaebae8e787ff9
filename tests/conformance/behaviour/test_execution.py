"""Inferences: arguments, snapshots, order (facts 3.5)."""

from __future__ import annotations

import struct
import threading

import pytest

from softnpu.emulator.interface.result import ZeResult
from tests.conformance.api.enumerations import ListFlag
from tests.conformance.api.structures import Handle, Pointer
from tests.conformance.models import COUNT, FACTOR, Model
from tests.conformance.rig import BRIEF, DEADLINE, Rig, ok

SIZE = COUNT * 4


def numbers(rig: Rig, value: float) -> Pointer:
    return rig.data(struct.pack(f"<{COUNT}f", *[value] * COUNT))


def values(rig: Rig, pointer: Pointer) -> set[float]:
    return set(struct.unpack(f"<{COUNT}f", rig.api.read(pointer, SIZE)))


@pytest.fixture
def graph(rig: Rig, model: Model) -> Handle:
    """The model compiled, without arguments."""
    return rig.graph(model)


def executing(rig: Rig, graph: Handle) -> Handle:
    """An open list with one inference."""
    command_list = rig.command_list()
    ok(rig.api.ze_command_list_append_graph_execute(command_list, graph))
    return command_list


def test_inference_computes_the_model(rig: Rig, graph: Handle) -> None:
    left = rig.data(struct.pack(f"<{COUNT}f", *range(COUNT)))
    right = rig.data(struct.pack(f"<{COUNT}f", *range(100, 100 + COUNT)))
    output = rig.host(SIZE)
    rig.bind(graph, left, right, output)
    rig.run(executing(rig, graph))
    expected = [at + FACTOR * (100 + at) for at in range(COUNT)]
    assert list(struct.unpack(f"<{COUNT}f", rig.api.read(output, SIZE))) == expected


@pytest.mark.parametrize("kind", ["regular", "mutable", "in-order", "immediate"])
def test_graph_that_was_not_initialized_is_loaded_by_its_execution(rig: Rig, model: Model, kind: str) -> None:
    graph = rig.api.ze_graph_create2(rig.context, rig.device, rig.model_desc(model)).get()
    output = rig.host(SIZE)
    rig.bind(graph, numbers(rig, 1), numbers(rig, 2), output)
    if kind == "immediate":
        command_list = rig.immediate()
    else:
        flags = ListFlag.IN_ORDER if kind == "in-order" else 0
        command_list = rig.command_list(mutable=kind == "mutable", flags=flags)
    ok(rig.api.ze_command_list_append_graph_execute(command_list, graph))
    if kind == "immediate":
        ok(rig.api.ze_command_list_host_synchronize(command_list, DEADLINE))
    else:
        rig.run(command_list)
    assert values(rig, output) == {1 + 2 * FACTOR}
    ok(rig.api.ze_graph_initialize(graph))


def test_inference_uses_the_data_of_the_time_when_it_runs(rig: Rig, graph: Handle) -> None:
    left, output, queue = numbers(rig, 1), rig.host(SIZE), rig.queue()
    rig.bind(graph, left, numbers(rig, 2), output)
    command_list = executing(rig, graph)
    rig.close(command_list)
    for value in (5.0, 6.0, 7.0):
        rig.api.write(left, struct.pack(f"<{COUNT}f", *[value] * COUNT))
        rig.submit(queue, command_list)
        rig.finish(queue)
        assert values(rig, output) == {value + 2 * FACTOR}


def test_later_arguments_do_not_change_an_earlier_append(rig: Rig, graph: Handle) -> None:
    output, other = rig.host(SIZE), rig.host(SIZE)
    rig.bind(graph, numbers(rig, 1), numbers(rig, 2), output)
    command_list = executing(rig, graph)
    rig.bind(graph, numbers(rig, 10), numbers(rig, 20), other)
    rig.run(command_list)
    assert values(rig, output) == {1 + 2 * FACTOR}
    assert values(rig, other) == {0}


def test_later_arguments_are_used_by_later_appends(rig: Rig, graph: Handle) -> None:
    outputs, command_list = [rig.host(SIZE) for _ in range(3)], rig.command_list()
    for at, output in enumerate(outputs):
        rig.bind(graph, numbers(rig, at), numbers(rig, 1), output)
        ok(rig.api.ze_command_list_append_graph_execute(command_list, graph))
    rig.run(command_list)
    assert [values(rig, output) for output in outputs] == [{FACTOR}, {1 + FACTOR}, {2 + FACTOR}]


def test_one_graph_is_in_several_lists_at_once(rig: Rig, graph: Handle) -> None:
    outputs, lists, queues = [], [], []
    for at in range(4):
        output = rig.host(SIZE)
        rig.bind(graph, numbers(rig, at), numbers(rig, 1), output)
        outputs.append(output)
        lists.append(executing(rig, graph))
        queues.append(rig.queue())
    rig.close(*lists)
    for _ in range(5):
        for queue, command_list in zip(queues, lists, strict=True):
            rig.submit(queue, command_list)
    for queue in queues:
        rig.finish(queue)
    assert [values(rig, output) for output in outputs] == [{at + FACTOR} for at in range(4)]


def test_result_of_one_inference_feeds_the_next(rig: Rig, graph: Handle) -> None:
    places, command_list = [numbers(rig, 0), *(rig.host(SIZE) for _ in range(5))], rig.command_list()
    one = numbers(rig, 1)
    for at in range(5):
        rig.bind(graph, places[at], one, places[at + 1])
        ok(rig.api.ze_command_list_append_graph_execute(command_list, graph))
        ok(rig.api.ze_command_list_append_barrier(command_list))
    rig.run(command_list)
    assert values(rig, places[5]) == {5 * FACTOR}


def test_arguments_may_be_interior_pointers(rig: Rig, graph: Handle) -> None:
    block = rig.host(SIZE * 6)
    rig.api.write(block + SIZE, struct.pack(f"<{COUNT}f", *[3.0] * COUNT))
    rig.api.write(block + 3 * SIZE, struct.pack(f"<{COUNT}f", *[4.0] * COUNT))
    rig.bind(graph, block + SIZE, block + 3 * SIZE, block + 5 * SIZE)
    rig.run(executing(rig, graph))
    assert values(rig, block + 5 * SIZE) == {3 + 4 * FACTOR}
    assert values(rig, block + 4 * SIZE) == {0}


@pytest.mark.parametrize("kind", ["host", "device", "shared"])
def test_arguments_may_be_memory_of_every_kind(rig: Rig, graph: Handle, kind: str) -> None:
    pointers = [rig.of_kind(kind, SIZE) for _ in range(3)]
    for pointer in pointers[:2]:
        rig.api.write(pointer, struct.pack(f"<{COUNT}f", *[1.0] * COUNT))
    rig.bind(graph, *pointers)
    rig.run(executing(rig, graph))
    assert values(rig, pointers[2]) == {1 + FACTOR}


def test_one_memory_serves_as_two_inputs(rig: Rig, graph: Handle) -> None:
    both, output = numbers(rig, 3), rig.host(SIZE)
    rig.bind(graph, both, both, output)
    rig.run(executing(rig, graph))
    assert values(rig, output) == {3 + 3 * FACTOR}


@pytest.mark.parametrize("missing", [0, 1, 2])
def test_unset_argument_is_uninitialized(rig: Rig, graph: Handle, missing: int) -> None:
    for index in {0, 1, 2} - {missing}:
        ok(rig.api.ze_graph_set_argument_value(graph, index, rig.host(SIZE)))
    result = rig.api.ze_command_list_append_graph_execute(rig.command_list(), graph)
    assert result == ZeResult.ERROR_UNINITIALIZED


def test_null_graph_is_refused(rig: Rig) -> None:
    api, command_list = rig.api, rig.command_list()
    execute = api.ze_command_list_append_graph_execute(command_list, None)
    assert execute == ZeResult.ERROR_INVALID_NULL_HANDLE
    initialize = api.ze_command_list_append_graph_initialize(command_list, None)
    assert initialize == ZeResult.ERROR_UNINITIALIZED


def test_append_after_close_is_not_available(rig: Rig, graph: Handle) -> None:
    command_list = rig.command_list()
    rig.bind(graph, *(rig.host(SIZE) for _ in range(3)))
    rig.close(command_list)
    not_available = ZeResult.ERROR_NOT_AVAILABLE
    assert rig.api.ze_command_list_append_graph_execute(command_list, graph) == not_available
    assert rig.api.ze_command_list_append_graph_initialize(command_list, graph) == not_available


def test_initialize_in_a_list_may_be_repeated(rig: Rig, graph: Handle) -> None:
    output, command_list = rig.host(SIZE), rig.command_list()
    rig.bind(graph, numbers(rig, 1), numbers(rig, 2), output)
    ok(rig.api.ze_command_list_append_graph_initialize(command_list, graph))
    ok(rig.api.ze_command_list_append_graph_initialize(command_list, graph))
    ok(rig.api.ze_command_list_append_graph_execute(command_list, graph))
    rig.run(command_list)
    assert values(rig, output) == {1 + 2 * FACTOR}


def test_inference_waits_for_and_signals_its_events(rig: Rig, graph: Handle) -> None:
    gate, done, output, queue = rig.event(), rig.event(), rig.host(SIZE), rig.queue()
    rig.bind(graph, numbers(rig, 1), numbers(rig, 2), output)
    command_list = rig.command_list()
    ok(rig.api.ze_command_list_append_graph_execute(command_list, graph, None, done, 1, [gate]))
    rig.close(command_list)
    rig.submit(queue, command_list)
    assert rig.api.ze_event_host_synchronize(done, BRIEF) == ZeResult.NOT_READY
    assert values(rig, output) == {0}
    ok(rig.api.ze_event_host_signal(gate))
    ok(rig.api.ze_event_host_synchronize(done, DEADLINE))
    assert values(rig, output) == {1 + 2 * FACTOR}
    rig.finish(queue)


def test_inference_on_an_immediate_list(rig: Rig, graph: Handle) -> None:
    output, immediate = rig.host(SIZE), rig.immediate()
    rig.bind(graph, numbers(rig, 1), numbers(rig, 2), output)
    ok(rig.api.ze_command_list_append_graph_execute(immediate, graph))
    ok(rig.api.ze_command_list_host_synchronize(immediate, DEADLINE))
    assert values(rig, output) == {1 + 2 * FACTOR}


def test_graph_may_be_destroyed_while_it_runs(rig: Rig, graph: Handle) -> None:
    gate, output, queue, command_list = rig.event(), rig.host(SIZE), rig.queue(), rig.command_list()
    rig.bind(graph, numbers(rig, 1), numbers(rig, 2), output)
    ok(rig.api.ze_command_list_append_graph_execute(command_list, graph, None, None, 1, [gate]))
    rig.close(command_list)
    rig.submit(queue, command_list)
    ok(rig.api.ze_graph_destroy(graph))
    ok(rig.api.ze_event_host_signal(gate))
    rig.finish(queue)
    assert values(rig, output) == {1 + 2 * FACTOR}


def test_threads_run_one_graph_with_arguments_of_their_own(rig: Rig, graph: Handle) -> None:
    outputs, lists = [rig.host(SIZE) for _ in range(4)], []
    for at, output in enumerate(outputs):
        rig.bind(graph, numbers(rig, at), numbers(rig, 1), output)
        lists.append(executing(rig, graph))
    rig.close(*lists)
    failures: list[object] = []

    def work(command_list: Handle) -> None:
        try:
            queue = rig.queue()
            for _ in range(20):
                rig.submit(queue, command_list)
                rig.finish(queue)
        except AssertionError as failure:
            failures.append(failure)

    threads = [threading.Thread(target=work, args=(command_list,)) for command_list in lists]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert failures == []
    assert [values(rig, output) for output in outputs] == [{at + FACTOR} for at in range(4)]


def test_unknown_argument_is_an_invalid_argument(rig: Rig, graph: Handle) -> None:
    result = rig.api.ze_graph_set_argument_value(graph, 3, rig.host(SIZE))
    assert result == ZeResult.ERROR_INVALID_ARGUMENT


def test_argument_outside_of_any_allocation_is_refused(rig: Rig, graph: Handle) -> None:
    result = rig.api.ze_graph_set_argument_value(graph, 0, 0x1000)
    assert result not in (ZeResult.SUCCESS, ZeResult.NOT_READY)


def test_null_argument_or_graph_is_refused(rig: Rig, graph: Handle) -> None:
    api = rig.api
    assert api.ze_graph_set_argument_value(graph, 0, 0) == ZeResult.ERROR_INVALID_NULL_POINTER
    assert api.ze_graph_set_argument_value(None, 0, rig.host(SIZE)) == ZeResult.ERROR_INVALID_NULL_HANDLE


def test_waits_without_an_array_are_an_invalid_size(rig: Rig, graph: Handle) -> None:
    rig.bind(graph, *(rig.host(SIZE) for _ in range(3)))
    result = rig.api.ze_command_list_append_graph_execute(rig.command_list(), graph, None, None, 1, None)
    assert result == ZeResult.ERROR_INVALID_SIZE
