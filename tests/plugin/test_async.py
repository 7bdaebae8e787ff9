"""Callbacks, queues of requests, cancellation and profiles."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest

from softnpu.driver import Fence
from softnpu.plugin import AsyncInferQueue, CompiledModel, Core, InferCancelled, InferError, InferRequest
from softnpu.plugin.requests import completions
from tests.support.waiting import DEADLINE_S, wait_until
from tests.support.work import waits

LEFT = np.array([[1, 2, 3], [4, 5, 6]], np.float32)


pytestmark = pytest.mark.quick


@pytest.fixture
def compiled(shared_core: Core, two_by_two: ov.Model) -> CompiledModel:
    return shared_core.compile_model(two_by_two)


@pytest.fixture(autouse=True)
def no_thread_is_left(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(completions, "_IDLE_S", 0.05)  # each test waits for the thread to end
    yield
    wait_until(
        lambda: not [thread for thread in threading.enumerate() if thread.name.startswith("callbacks of")],
        what="the end of the callback thread",
    )


def test_callbacks_get_their_userdata_once_results_are_ready(compiled: CompiledModel) -> None:
    request = compiled.create_infer_request()
    seen: list[tuple[object, bool]] = []
    request.set_callback(
        lambda data: seen.append((data, np.array_equal(request.results["total"], LEFT * 2))), "mine"
    )
    request.start_async([LEFT, LEFT])
    request.wait()
    assert seen == [("mine", True)]
    request.start_async([LEFT, LEFT], userdata="yours")
    request.wait()
    assert seen[1] == ("yours", True)


@pytest.mark.parametrize("failure", [ZeroDivisionError, SystemExit, KeyboardInterrupt, GeneratorExit])
def test_a_raising_callback_affects_nothing_else(
    compiled: CompiledModel, caplog: pytest.LogCaptureFixture, failure: type[BaseException]
) -> None:
    def fail(_: object) -> None:
        raise failure

    request, other = compiled.create_infer_request(), compiled.create_infer_request()
    request.set_callback(fail)
    for _ in range(2):
        request.start_async([LEFT, LEFT])
        for _ in range(2):
            with pytest.raises(InferError, match=f"the callback raised {failure.__name__}$") as raised:
                request.wait_for(int(DEADLINE_S * 1000))
            assert isinstance(raised.value.__cause__, failure)
        assert failure.__name__ in caplog.text
        np.testing.assert_array_equal(request.results["total"], LEFT * 2)
    np.testing.assert_array_equal(request.infer([LEFT, LEFT])["total"], LEFT * 2)
    request.wait()
    called: list[object] = []
    other.set_callback(called.append, "after it")
    other.start_async([LEFT, LEFT])
    assert other.wait_for(int(DEADLINE_S * 1000))
    assert called == ["after it"]


def test_a_queue_runs_more_work_than_it_has_requests(compiled: CompiledModel) -> None:
    results: dict[int, bool] = {}

    def check(request: InferRequest, number: int) -> None:
        results[number] = np.array_equal(request.results["total"], LEFT * (number + 1))

    queue = AsyncInferQueue(compiled, 3)
    queue.set_callback(check)
    for number in range(40):
        queue.start_async([LEFT * number, LEFT], number)
    queue.wait_all()
    assert results == dict.fromkeys(range(40), True)
    assert len(queue) == 3
    assert queue.is_ready()
    assert [request.get_tensor("left").shape for request in queue] == [[2, 3]] * 3


def test_waiting_in_a_callback_chain_waits_for_the_callback_of_the_last(compiled: CompiledModel) -> None:
    request = compiled.create_infer_request()
    let_go, entered = threading.Event(), threading.Event()
    ended: list[int] = []

    def callback(_: Any) -> None:
        if not ended:
            ended.append(1)
            request.start_async([LEFT, LEFT])
            return
        entered.set()
        let_go.wait(DEADLINE_S)
        ended.append(2)

    request.set_callback(callback)
    request.start_async([LEFT, LEFT])
    assert entered.wait(DEADLINE_S)
    assert not request.wait_for(50)
    let_go.set()
    request.wait()
    assert ended == [1, 2]


def test_a_late_waiter_does_not_end_the_next_inference(
    compiled: CompiledModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The callback starts the next inference before the waiting thread looks."""
    request, event = compiled.create_infer_request(), compiled.context.create_event()
    seen, begun = threading.Event(), threading.Event()
    totals: list[float] = []

    def again(_: Any) -> None:
        totals.append(float(request.results["total"][0, 0]))
        if len(totals) == 1:
            assert seen.wait(DEADLINE_S)
            request._executable.queue().execute_command_lists([waits(compiled.context, event)])
            request.start_async([LEFT * 2, LEFT])
            begun.set()

    synchronize = Fence.host_synchronize

    def late(fence: Fence, timeout_ns: int) -> bool:
        done = synchronize(fence, timeout_ns)
        if threading.current_thread() is threading.main_thread() and done:
            seen.set()
            assert begun.wait(DEADLINE_S)
        return done

    monkeypatch.setattr(Fence, "host_synchronize", late)
    request.set_callback(again)
    request.start_async([LEFT, LEFT])
    assert not request.wait_for(500)
    with pytest.raises(InferError, match="busy"):
        request.start_async([LEFT, LEFT])
    event.host_signal()
    request.wait()
    assert totals == [2, 3]


def test_waiting_does_not_end_an_inference_that_is_still_starting(compiled: CompiledModel) -> None:
    request, event = compiled.create_infer_request(), compiled.context.create_event()
    entered, go = threading.Event(), threading.Event()

    class Slow:
        def __array__(self, *_: Any, **__: Any) -> Any:
            entered.set()
            assert go.wait(DEADLINE_S)
            return LEFT * 4

    request.infer([LEFT, LEFT])
    thread = threading.Thread(target=request.start_async, args=([Slow(), LEFT],))
    thread.start()
    assert entered.wait(DEADLINE_S)
    request.wait()  # the previous one, which has ended
    request._executable.queue().execute_command_lists([waits(compiled.context, event)])
    go.set()
    thread.join(DEADLINE_S)
    assert not request.wait_for(50)
    event.host_signal()
    request.wait()
    np.testing.assert_array_equal(request.results["total"], LEFT * 5)


def test_a_queue_reports_what_a_callback_raised(compiled: CompiledModel) -> None:
    queue = AsyncInferQueue(compiled, 2)
    queue.set_callback(lambda _, data: 1 / data)
    queue.start_async([LEFT, LEFT], 0)
    with pytest.raises(ZeroDivisionError):
        queue.wait_all()
    queue.start_async([LEFT, LEFT], 1)
    queue.wait_all()


def test_a_cancelled_request_says_so_and_can_be_used_again(compiled: CompiledModel) -> None:
    event = compiled.context.create_event()
    gate = compiled.context.create_command_list()
    gate.append_wait_on_events([event])
    gate.close()
    request = compiled.create_infer_request()
    request.infer([LEFT, LEFT])
    request._executable.queue().execute_command_lists([gate])
    request.start_async([LEFT, LEFT])
    request.cancel()
    assert not request.wait_for(0)
    event.host_signal()
    with pytest.raises(InferCancelled):
        request.wait()
    np.testing.assert_array_equal(request.infer([LEFT, LEFT])["total"], LEFT * 2)
    request.cancel()
    request.wait()


class _Interrupted:
    """A lock behind whose first use a signal handler raises."""

    def __init__(self) -> None:
        self._lock, self._raised = threading.Lock(), False

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()
        if not self._raised:
            self._raised = True
            raise KeyboardInterrupt


def test_a_request_can_be_used_after_a_signal_handler_has_raised(
    compiled: CompiledModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = compiled.create_infer_request()
    with monkeypatch.context() as patch:
        patch.setattr(request, "_lock", _Interrupted())
        with pytest.raises(KeyboardInterrupt):
            request.infer([LEFT, LEFT])
    assert np.array_equal(request.infer([LEFT, LEFT])["total"], LEFT * 2)


def test_a_profile_has_times_for_every_layer_that_ran(
    shared_core: Core, compiled: CompiledModel, digits: Path
) -> None:
    with pytest.raises(InferError, match="PERF_COUNT"):
        compiled.create_infer_request().get_profiling_info()
    profiled = shared_core.compile_model(digits, "NPU", {"PERF_COUNT": "YES"})
    request = profiled.create_infer_request()
    with pytest.raises(InferError, match="no inference"):
        request.get_profiling_info()
    request.infer(np.ones((1, 1, 8, 8), np.float32))
    infos = request.profiling_info
    ran = [info for info in infos if info.status == ov.ProfilingInfo.Status.EXECUTED]
    assert any(info.node_type == "Convolution" and info.exec_type == "DPU" for info in ran)
    assert sum(info.real_time.total_seconds() for info in ran) > 0
    assert len({info.node_name for info in infos}) == len(infos)
