"""`test_async_infer_request.py`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import openvino
from openvino import opset13 as ops

from tests.plugin.api.infer_request import TYPES, ArrayLike
from tests.plugin.api.table import IMAGE, Side, absolute, concat, relu

_NEGATIVE = np.array([[-1, 2, 5, -3]])


def _queue(side: Side, jobs: int) -> Any:
    return side.ov.AsyncInferQueue(side.compiled(relu), jobs)


def infer_queue(side: Side) -> Any:
    found = []
    for share in (True, False):
        queue, done = _queue(side, 4), [0.0] * 8

        def callback(request: Any, job: int, done: list[float] = done) -> None:
            done[job] = request.latency

        queue.set_callback(callback)
        found.append(queue.is_ready())
        for job in range(8):
            queue.start_async({"data": IMAGE.copy()}, job, share_inputs=share)
        queue.wait_all()
        found.append(all(latency > 0 for latency in done))
    return found


def infer_queue_iteration(side: Side) -> Any:
    queue = _queue(side, 1)
    requests = list(queue)
    return isinstance(queue, Iterable), [(isinstance(r, side.ov.InferRequest), r.userdata) for r in requests]


def infer_queue_userdata_is_empty(side: Side) -> Any:
    return _queue(side, 1).userdata


def infer_queue_userdata_is_empty_more_jobs(side: Side) -> Any:
    return _queue(side, 5).userdata


def infer_queue_fail_on_cpp_model(side: Side) -> Any:
    queue = _queue(side, 4)
    queue.set_callback(lambda request, _: request.get_tensor("Unknown"))
    queue.start_async({"data": IMAGE})
    queue.wait_all()


def infer_queue_fail_on_py_model(side: Side) -> Any:
    queue = _queue(side, 1)
    queue.set_callback(lambda request, _: request + 21)
    queue.start_async({"data": IMAGE})
    queue.wait_all()


def _unequal() -> openvino.Model:
    data = [ops.parameter(openvino.PartialShape([-1]), np.float32) for _ in range(2)]
    return openvino.Model([ops.add(*data)], data, "unequal")


def infer_queue_fail_in_inference(side: Side) -> Any:
    queue = side.ov.AsyncInferQueue(side.compiled(_unequal), 2)
    queue.start_async([np.ones(2, np.float32), np.ones(3, np.float32)])
    queue.wait_all()


def infer_queue_get_idle_handle(side: Side) -> Any:
    queue, found = _queue(side, 2), []
    for _ in range(2):
        queue.start_async()
    queue.wait_all()
    found += [request.wait_for(0) for request in queue]
    for _ in range(5):
        found.append(queue[queue.get_idle_request_id()].wait_for(0))
        queue.start_async()
    queue.wait_all()
    return found


def results_async_infer(side: Side) -> Any:
    queue = _queue(side, 4)
    for job in range(8):
        queue.start_async({"data": IMAGE}, job)
    queue.wait_all()
    return [list(request.results.values()) for request in queue]


def array_like_input_async_infer_queue(side: Side) -> Any:
    queue, given = side.ov.AsyncInferQueue(side.compiled(absolute), 4), ArrayLike(_NEGATIVE)
    found = []
    for inputs in (given, [given]):
        for _ in range(4):
            queue.start_async(inputs)
        queue.wait_all()
        found.append([request.get_output_tensor().data.tolist() for request in queue])
    return found


def cancel(side: Side) -> Any:
    request = side.request(relu)
    request.cancel()
    return request.infer({0: IMAGE})[0]


def start_async(side: Side) -> Any:
    seen: list[int] = []
    requests = [side.request(relu) for _ in range(3)]
    for request in requests:
        request.set_callback(seen.append, 5)
        request.start_async({0: IMAGE})
    for request in requests:
        request.wait()
    return seen, [request.latency > 0 for request in requests], requests[0].userdata


def async_mixed_values(side: Side) -> Any:
    found = []
    for name in (*TYPES, "u32", "u64", "boolean"):
        kind = getattr(side.ov.Type, name)
        tensor = side.ov.Tensor(kind, [5])
        tensor.data[:] = np.array([6, 7, 8, 9, 0])
        request = side.request(concat, kind)
        request.start_async([tensor, np.array([1, 2, 3, 4, 5]).astype(kind.to_dtype())])
        request.wait()
        found.append(request.output_tensors[0].data.tolist())
    return found


def async_single_input(side: Side) -> Any:
    found = []
    for share in (True, False):
        request, array = side.request(absolute), _NEGATIVE.astype(np.float32)
        for given in (array, side.ov.Tensor(array)):
            request.start_async(given, share_inputs=share)
            request.wait()
            found.append(request.get_output_tensor().data.tolist())
    return found


def array_like_input_async(side: Side) -> Any:
    found, given = [], ArrayLike(_NEGATIVE.tolist())
    for inputs in (given, [given]):
        request = side.request(absolute)
        request.start_async(inputs)
        request.wait()
        found.append(request.get_output_tensor().data.tolist())
    return found


def callback_that_raises(side: Side) -> Any:
    def fail(_: Any) -> None:
        raise ValueError("boom")

    request, raised = side.request(absolute), []
    request.set_callback(fail, None)
    request.start_async()
    for call in (request.wait, request.wait, lambda: request.wait_for(60_000)):
        try:
            call()
        except RuntimeError as error:
            raised.append("ValueError: boom" in str(error))
    request.infer()
    return raised, request.wait()
