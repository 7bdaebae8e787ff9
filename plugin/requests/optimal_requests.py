"""Measures how many infer requests keep the device busy: throughput with 1, 2, 4 and 8 in flight."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from softnpu.plugin.errors import NpuError
from softnpu.plugin.requests.infer_request import InferRequest

COUNTS = (1, 2, 4, 8)
ENOUGH = 0.95
_SLICE_S = 0.25
_LIMIT_S = 2.0


def measure(create: Callable[[], InferRequest]) -> dict[int, float]:
    """Return inferences per second by the number of requests in flight.

    Each number is measured for a quarter of a second. Numbers that would exceed 2 s in total, or device
    memory, are skipped, except 1.
    Raises `NpuError` for a failed inference.
    """
    end = time.monotonic() + _LIMIT_S
    requests = [_ready(create)]
    requests[0].infer()  # the first inference of a model takes longer
    throughput: dict[int, float] = {}
    for count in COUNTS:
        if throughput and time.monotonic() + max(_SLICE_S, count / throughput[1]) > end:
            break
        try:
            requests += [_ready(create) for _ in range(count - len(requests))]
        except NpuError:
            break
        throughput[count] = _rate(requests)
    return throughput


def fewest(throughput: Mapping[int, float]) -> int:
    """Return the smallest number of requests with at least 95 % of the best throughput."""
    best = max(throughput.values())
    return min(count for count, rate in throughput.items() if rate >= ENOUGH * best)


def _ready(create: Callable[[], InferRequest]) -> InferRequest:
    """Return a request whose dynamic inputs have their smallest shape: one sample of a dynamic batch."""
    request = create()
    for port, tensor in zip(request.model_inputs, request.input_tensors, strict=True):
        partial = port.partial_shape
        if partial.is_dynamic and partial.rank.is_static:
            tensor.shape = [max(1, dim.get_min_length()) for dim in partial]
    return request


def _rate(requests: list[InferRequest]) -> float:
    """Return inferences per second, restarting each request as soon as it has ended."""
    begin = time.monotonic()
    for request in requests:
        request.start_async()
    done = 0
    while time.monotonic() < begin + _SLICE_S:
        request = requests[done % len(requests)]
        request.wait()
        request.start_async()
        done += 1
    for request in requests:
        request.wait()
    return (done + len(requests)) / (time.monotonic() - begin)
