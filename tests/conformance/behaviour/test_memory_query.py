"""The context memory query counts bytes exactly, and idle memory is reclaimed."""

from __future__ import annotations

import threading

from softnpu.emulator.interface.result import ZeResult
from tests.conformance.api.enumerations import MemoryQuery
from tests.conformance.commands import barrier, infer
from tests.conformance.models import COUNT, SIZE, Model
from tests.conformance.rig import DEADLINE, SECOND, Rig, ok
from tests.support.waiting import wait_until


def test_size_is_not_rounded_to_pages(rig: Rig) -> None:
    context, other = rig.new_context(), rig.new_context()
    assert rig.memory_in_use(context) == 0
    rig.host(48 * 1024, context)
    assert rig.memory_in_use(context) == 48 * 1024
    rig.host(20000, context)
    assert rig.memory_in_use(context) == 48 * 1024 + 20000
    assert rig.memory_in_use(other) == 0


def test_command_buffer_of_a_closed_list_counts(rig: Rig) -> None:
    context = rig.new_context()
    rig.host(48 * 1024, context)
    rig.recorded(barrier(), context=context)
    assert rig.memory_in_use(context) > 48 * 1024


def test_total_is_the_memory_of_the_device(rig: Rig) -> None:
    found = rig.api.ze_graph_query_context_memory(rig.context, MemoryQuery.DDR).get()
    limit = rig.api.ze_device_get_properties(rig.device).get().max_mem_alloc_size
    assert found.total == limit
    assert found.allocated < found.total


def test_repeated_inference_does_not_use_more(rig: Rig, model: Model) -> None:
    graph, queue = rig.graph(model), rig.queue()
    rig.bind(graph, *(rig.host(SIZE) for _ in range(3)))
    command_list, fence, used = rig.recorded(infer(graph)), rig.fence(queue), []
    for _ in range(20):
        rig.submit(queue, command_list, fence=fence)
        rig.finish(queue)
        used.append(rig.memory_in_use())
    assert used == [used[0]] * 20


def test_cache_queries_answer_and_unknown_ones_are_invalid_arguments(rig: Rig) -> None:
    ask = rig.api.ze_graph_query_context_memory
    for kind in (MemoryQuery.DRIVER_CACHE, MemoryQuery.PROGRAM_CACHE):
        assert ask(rig.context, kind).get().allocated >= 0
    for unknown in (0, 4, 99):
        assert ask(rig.context, unknown).result == ZeResult.ERROR_INVALID_ARGUMENT


class _Inference:
    """A graph of the model, a command list that runs it, and a queue."""

    def __init__(self, rig: Rig, model: Model) -> None:
        self.rig, self.queue = rig, rig.queue()
        self.inputs = [rig.tensor(float(index)) for index in range(2)]
        self.output = rig.host(SIZE)
        graph = rig.graph(model)
        rig.bind(graph, *self.inputs, self.output)
        self.command_list = rig.recorded(infer(graph))
        self.results = self.run()

    def run(self) -> list[float]:
        rig = self.rig
        rig.api.write(self.output, bytes(SIZE))
        rig.submit(self.queue, self.command_list)
        rig.finish(self.queue)
        return rig.values(self.output)


def test_released_memory_comes_back_with_the_next_inference(rig: Rig, model: Model) -> None:
    inference = _Inference(rig, model)
    assert len(set(inference.results)) <= COUNT
    used = rig.memory_in_use()
    for _ in range(2):
        ok(rig.api.ze_context_release_memory(rig.context))
        assert rig.memory_in_use() < used
        assert inference.run() == inference.results
        assert rig.memory_in_use() == used


def test_memory_is_released_while_other_threads_compute(rig: Rig, model: Model) -> None:
    inference, stop = _Inference(rig, model), threading.Event()
    failed: list[ZeResult] = []

    def release() -> None:
        while not stop.is_set():
            failed.extend({rig.api.ze_context_release_memory(rig.context)} - {ZeResult.SUCCESS})

    thread = threading.Thread(target=release)
    thread.start()
    try:
        for _ in range(20):
            assert inference.run() == inference.results
    finally:
        stop.set()
        thread.join(DEADLINE / SECOND)
    assert failed == []


def test_memory_of_an_idle_context_is_released_unless_it_opts_out(rig: Rig, model: Model) -> None:
    inference, api = _Inference(rig, model), rig.api
    used = rig.memory_in_use()
    ok(api.ze_context_set_properties(rig.context, 0))
    ok(api.zex_context_set_idle_pruning_timeout(rig.context, 1))
    # another context with another image: once that is released the daemon has examined both
    other = rig.new_context()
    ok(api.zex_context_set_idle_pruning_timeout(other, 1))
    for _ in range(2):
        profiled = rig.model_desc(model, build_flags=f'{model.build_flags} --config PERF_COUNT="YES"')
        graph = api.ze_graph_create2(other, rig.device, profiled).get()
        ok(api.ze_graph_initialize(graph))
        wait_until(lambda: rig.memory_in_use(other) == 0, DEADLINE / SECOND)
        assert rig.memory_in_use() == used
        ok(api.ze_graph_destroy(graph))
    ok(api.ze_context_set_properties(rig.context, 1))
    wait_until(lambda: rig.memory_in_use() < used, DEADLINE / SECOND)
    assert inference.run() == inference.results
    wait_until(lambda: rig.memory_in_use() < used, DEADLINE / SECOND)


def test_an_image_stays_for_a_context_that_has_not_released_it(rig: Rig, model: Model) -> None:
    inference = _Inference(rig, model)
    used = rig.memory_in_use()
    other = rig.new_context()
    graph = rig.api.ze_graph_create2(other, rig.device, rig.model_desc(model)).get()
    ok(rig.api.ze_graph_initialize(graph))
    ok(rig.api.ze_context_release_memory(rig.context))
    assert rig.memory_in_use() == used
    ok(rig.api.ze_context_release_memory(other))
    ok(rig.api.ze_context_release_memory(rig.context))
    assert rig.memory_in_use() < used
    assert inference.run() == inference.results
    ok(rig.api.ze_context_release_memory(other))
    assert rig.memory_in_use() == used, "the first context has used it again"
