"""Inferences: arguments, snapshots, order."""

from __future__ import annotations

import threading

import pytest

from softnpu.emulator.interface.result import ZeResult
from tests.conformance.api.enumerations import ListFlag
from tests.conformance.api.structures import Handle
from tests.conformance.commands import after, barrier, infer, initialize
from tests.conformance.models import COUNT, FACTOR, SIZE, Model
from tests.conformance.rig import BRIEF, DEADLINE, Rig, ok, packed


@pytest.fixture
def graph(rig: Rig, model: Model) -> Handle:
    """Return the compiled model, without arguments."""
    return rig.graph(model)


def full(value: float) -> list[float]:
    return [value] * COUNT


def bound(rig: Rig, graph: Handle, left: float, right: float) -> int:
    """Set the inputs to these values; return the new output."""
    output = rig.host(SIZE)
    rig.bind(graph, rig.tensor(left), rig.tensor(right), output)
    return output


def test_inference_computes_the_model(rig: Rig, graph: Handle) -> None:
    output = rig.host(SIZE)
    rig.bind(graph, rig.tensor(range(COUNT)), rig.tensor(range(100, 100 + COUNT)), output)
    rig.execute(infer(graph))
    assert rig.values(output) == [at + FACTOR * (100 + at) for at in range(COUNT)]


@pytest.mark.parametrize("kind", ["regular", "mutable", "in-order", "immediate"])
def test_graph_that_was_not_initialized_is_loaded_by_its_execution(rig: Rig, model: Model, kind: str) -> None:
    graph = rig.api.ze_graph_create2(rig.context, rig.device, rig.model_desc(model)).get()
    output = rig.host(SIZE)
    rig.bind(graph, rig.tensor(1), rig.tensor(2), output)
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
    assert rig.values(output) == full(1 + 2 * FACTOR)
    ok(rig.api.ze_graph_initialize(graph))


def test_inference_uses_the_data_of_the_time_when_it_runs(rig: Rig, graph: Handle) -> None:
    left, output, queue = rig.tensor(1), rig.host(SIZE), rig.queue()
    rig.bind(graph, left, rig.tensor(2), output)
    command_list = rig.recorded(infer(graph))
    for value in (5.0, 6.0, 7.0):
        rig.api.write(left, packed(value))
        rig.submit(queue, command_list)
        rig.finish(queue)
        assert rig.values(output) == full(value + 2 * FACTOR)


def test_later_arguments_do_not_change_an_earlier_append(rig: Rig, graph: Handle) -> None:
    command_list, output = rig.command_list(), bound(rig, graph, 1, 2)
    rig.append(command_list, infer(graph))
    other = bound(rig, graph, 10, 20)
    rig.run(command_list)
    assert rig.values(output) == full(1 + 2 * FACTOR)
    assert rig.values(other) == full(0)


def test_later_arguments_are_used_by_later_appends(rig: Rig, graph: Handle) -> None:
    outputs, command_list = [], rig.command_list()
    for at in range(3):
        outputs.append(bound(rig, graph, at, 1))
        rig.append(command_list, infer(graph))
    rig.run(command_list)
    assert [rig.values(output) for output in outputs] == [full(at + FACTOR) for at in range(3)]


def test_one_graph_runs_in_lists_and_threads_with_arguments_of_their_own(rig: Rig, graph: Handle) -> None:
    outputs, lists, failures = [], [], list[object]()
    for at in range(4):
        outputs.append(bound(rig, graph, at, 1))
        lists.append(rig.recorded(infer(graph)))

    def work(command_list: Handle) -> None:
        try:
            queue = rig.queue()
            for _ in range(20):
                rig.submit(queue, command_list)
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
    assert [rig.values(output) for output in outputs] == [full(at + FACTOR) for at in range(4)]


def test_result_of_one_inference_feeds_the_next(rig: Rig, graph: Handle) -> None:
    places, command_list = [rig.tensor(), *(rig.host(SIZE) for _ in range(5))], rig.command_list()
    one = rig.tensor(1)
    for at in range(5):
        rig.bind(graph, places[at], one, places[at + 1])
        rig.append(command_list, infer(graph), barrier())
    rig.run(command_list)
    assert rig.values(places[5]) == full(5 * FACTOR)


def test_arguments_may_be_interior_pointers(rig: Rig, graph: Handle) -> None:
    block = rig.host(SIZE * 6)
    rig.api.write(block + SIZE, packed(3))
    rig.api.write(block + 3 * SIZE, packed(4))
    rig.bind(graph, block + SIZE, block + 3 * SIZE, block + 5 * SIZE)
    rig.execute(infer(graph))
    assert rig.values(block + 5 * SIZE) == full(3 + 4 * FACTOR)
    assert rig.values(block + 4 * SIZE) == full(0)


def test_arguments_may_be_memory_of_every_kind(rig: Rig, graph: Handle) -> None:
    for kind in ("host", "device", "shared"):
        pointers = [rig.of_kind(kind, SIZE) for _ in range(3)]
        for pointer in pointers[:2]:
            rig.api.write(pointer, packed(1))
        rig.bind(graph, *pointers)
        rig.execute(infer(graph))
        assert rig.values(pointers[2]) == full(1 + FACTOR)


def test_one_memory_serves_as_two_inputs(rig: Rig, graph: Handle) -> None:
    both, output = rig.tensor(3), rig.host(SIZE)
    rig.bind(graph, both, both, output)
    rig.execute(infer(graph))
    assert rig.values(output) == full(3 + 3 * FACTOR)


@pytest.mark.parametrize("missing", [0, 1, 2])
def test_unset_argument_is_uninitialized(rig: Rig, graph: Handle, missing: int) -> None:
    for index in {0, 1, 2} - {missing}:
        ok(rig.api.ze_graph_set_argument_value(graph, index, rig.host(SIZE)))
    assert infer(graph)(rig.api, rig.command_list()) == ZeResult.ERROR_UNINITIALIZED


def test_append_after_close_is_not_available(rig: Rig, graph: Handle) -> None:
    bound(rig, graph, 1, 2)
    closed = rig.recorded()
    for command in (infer(graph), initialize(graph)):
        assert command(rig.api, closed) == ZeResult.ERROR_NOT_AVAILABLE


def test_initialize_in_a_list_may_be_repeated(rig: Rig, graph: Handle) -> None:
    output = bound(rig, graph, 1, 2)
    rig.execute(initialize(graph), initialize(graph), infer(graph))
    assert rig.values(output) == full(1 + 2 * FACTOR)


def test_inference_waits_for_and_signals_its_events(rig: Rig, graph: Handle) -> None:
    gate, done, output, queue = rig.event(), rig.event(), bound(rig, graph, 1, 2), rig.queue()
    rig.submit(queue, rig.recorded(infer(graph, None, *after(gate, signal=done))))
    assert rig.api.ze_event_host_synchronize(done, BRIEF) == ZeResult.NOT_READY
    assert rig.values(output) == full(0)
    rig.signal(gate)
    ok(rig.api.ze_event_host_synchronize(done, DEADLINE))
    assert rig.values(output) == full(1 + 2 * FACTOR)
    rig.finish(queue)


def test_inference_on_an_immediate_list(rig: Rig, graph: Handle) -> None:
    output, immediate = bound(rig, graph, 1, 2), rig.immediate()
    rig.append(immediate, infer(graph))
    ok(rig.api.ze_command_list_host_synchronize(immediate, DEADLINE))
    assert rig.values(output) == full(1 + 2 * FACTOR)


def test_graph_may_be_destroyed_while_it_runs(rig: Rig, graph: Handle) -> None:
    gate, output, queue = rig.event(), bound(rig, graph, 1, 2), rig.queue()
    rig.submit(queue, rig.recorded(infer(graph, None, *after(gate))))
    ok(rig.api.ze_graph_destroy(graph))
    rig.signal(gate)
    rig.finish(queue)
    assert rig.values(output) == full(1 + 2 * FACTOR)


def test_wrong_arguments_are_refused(rig: Rig, graph: Handle) -> None:
    assert rig.api.ze_graph_set_argument_value(graph, 3, rig.host(SIZE)) == ZeResult.ERROR_INVALID_ARGUMENT
    outside = rig.api.ze_graph_set_argument_value(graph, 0, 0x1000)
    assert outside not in (ZeResult.SUCCESS, ZeResult.NOT_READY)
    bound(rig, graph, 1, 2)
    assert initialize(None)(rig.api, rig.command_list()) == ZeResult.ERROR_UNINITIALIZED
    no_array = infer(graph, None, None, 1, None)(rig.api, rig.command_list())
    assert no_array == ZeResult.ERROR_INVALID_SIZE
