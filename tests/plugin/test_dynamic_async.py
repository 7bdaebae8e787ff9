"""Dynamic shapes with several inferences in flight, and results that outgrow their memory."""

from __future__ import annotations

import gc
import threading
import weakref

import numpy as np
import pytest

from softnpu.plugin import AsyncInferQueue, Core, InferCancelled, InferRequest
from softnpu.plugin.requests.dynamic_tensors import FIRST_BYTES
from tests.support.daemon import Daemon
from tests.support.dynamic import by_compiler, data_dependent, non_zero, pair
from tests.support.waiting import wait_until


@pytest.fixture
def core(shared_core: Core) -> Core:
    return shared_core


def test_requests_in_flight_have_shapes_of_their_own(core: Core) -> None:
    compiled, cpu = pair(core, data_dependent())
    random = np.random.default_rng(4)
    requests = [compiled.create_infer_request() for _ in range(6)]
    for _ in range(4):
        inputs = [random.integers(0, 3, (n + 1, 8 - n)).astype(np.float32) for n in range(len(requests))]
        for request, x in zip(requests, inputs, strict=True):
            request.start_async(x)
        for request, x in zip(requests, inputs, strict=True):
            request.wait()
            expected = cpu.infer([x])
            for index in range(5):
                np.testing.assert_array_equal(request.results[index], expected[index])


def test_a_queue_of_requests_takes_any_shapes(core: Core) -> None:
    compiled = by_compiler(core, non_zero("[?]"))
    found: dict[int, tuple[int, ...]] = {}
    queue = AsyncInferQueue(compiled, 3)
    queue.set_callback(lambda request, count: found.update({count: request.results[0].shape}))
    counts = [1, FIRST_BYTES // 4, 3, FIRST_BYTES // 2, 5, 0, FIRST_BYTES // 4]
    for count in counts:
        queue.start_async(np.ones(count, np.float32), userdata=count)
    queue.wait_all()
    assert found == {count: (1, count) for count in counts}


def test_a_callback_runs_once_when_the_result_had_to_grow(core: Core) -> None:
    request = by_compiler(core, non_zero("[?]")).create_infer_request()
    seen: list[tuple[int, ...]] = []
    request.set_callback(lambda _: seen.append(request.results[0].shape))
    size = FIRST_BYTES // 2
    request.start_async(np.ones(size, np.float32))
    threads = [threading.Thread(target=request.wait) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    assert seen == [(1, size)]
    assert request.failure is None


def test_many_threads_wait_for_a_growing_result(core: Core) -> None:
    """Every waiter sees the end of the second attempt, never the failure or the end of the first."""
    compiled = by_compiler(core, non_zero("[?]"))
    for size in (FIRST_BYTES // 2, FIRST_BYTES):
        request = compiled.create_infer_request()
        ends: list[object] = []

        def wait(request: InferRequest = request, ends: list[object] = ends) -> None:
            try:
                while not request.wait_for(1):
                    pass
                ends.append(request.results[0].shape)
            except RuntimeError as error:
                ends.append(error)

        threads = [threading.Thread(target=wait) for _ in range(6)]
        request.start_async(np.ones(size, np.float32))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert ends == [(1, size)] * 6


def test_a_request_that_grew_is_freed_without_the_cycle_collector(core: Core, shared_daemon: Daemon) -> None:
    """A rerun leaves no exception behind that keeps the request and its memory alive."""
    compiled = by_compiler(core, non_zero("[?]"))
    context = compiled.context
    request = compiled.create_infer_request()
    before = shared_daemon.memory_used()
    gc.disable()
    try:
        for size in (10, FIRST_BYTES, 10):
            request.infer(np.ones(size, np.float32))
        gone = weakref.ref(request)
        del request
        assert gone() is None
        del compiled  # its graph keeps the arguments recorded last
        context._memory.flush()
        assert shared_daemon.memory_used() < before
    finally:
        gc.enable()


def test_a_cancelled_inference_is_not_rerun_for_a_larger_result(core: Core, shared_daemon: Daemon) -> None:
    request = by_compiler(core, non_zero("[?]")).create_infer_request()
    before = shared_daemon.engine().submissions
    request.start_async(np.ones(FIRST_BYTES, np.float32))
    wait_until(lambda: shared_daemon.engine().submissions == before + 1, what="the first attempt")
    request.cancel()
    with pytest.raises(InferCancelled):
        request.wait()
    assert request.infer(np.ones(4, np.float32))[0].shape == (1, 4)
    wait_until(lambda: shared_daemon.engine().submissions == before + 2, what="the inference after it")
