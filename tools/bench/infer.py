"""`bench infer`: a model on the emulated device against OpenVINO's CPU device in this process.

Same model, precision, threads and numbers; both sides take turns, and the waiting side sleeps. With f16,
the arithmetic of the device, the other side computes in f32: the ratio is the cost of f16.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from functools import partial

from softnpu.driver import Driver
from softnpu.tools.bench.model import BenchModel
from softnpu.tools.bench.requests import (
    DeviceRequest,
    HostRequest,
    Request,
    compile_on_host,
    random_inputs,
    read_model,
    run_in_turn,
)
from softnpu.tools.bench.result import Measurement, absolute, compared
from softnpu.tools.bench.rounds import (
    REST_AFTER_OPENVINO_S,
    Round,
    interleave,
    median,
    percentile,
    split,
)
from softnpu.tools.shared.private_daemon import private_session

BENCH = "infer"
TARGET_IN_F16 = 1 / 1.5
IN_FLIGHT = 3
_PEER = "OpenVINO CPU"
_ROUND_S = 0.08
_WARM_UP = 5


def run(model: BenchModel, count: int, threads: int, precision: str) -> Iterator[Measurement]:
    """Yield the figures of about `count` inferences on each side; 0 threads means one for each core."""
    with private_session() as driver:
        device, host = _both_sides(driver, model, threads, precision)
        about = _seconds_of_one(host[0])
        before = _engine(driver)
        target = TARGET_IN_F16 if precision == "f16" else None
        yield from _one_at_a_time(model.name, device[0], host[0], count, about, target)
        yield from _in_flight(model.name, device, host, count, about)
        yield from _copies(model.name, before, _engine(driver))
        if precision != "f16":
            yield count_differences(model.name, device[0], host[0])


def _both_sides(
    driver: Driver, model: BenchModel, threads: int, precision: str
) -> tuple[Sequence[Request], Sequence[Request]]:
    """Return equally many requests on the device and on the host, warmed up."""
    from softnpu.plugin.models import model_source

    read = read_model(model)
    inputs = random_inputs(read.inputs)
    config = {
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_PRECISION_HINT": precision,
        "INFERENCE_NUM_THREADS": str(threads),
        "EXECUTION_MODE_HINT": "ACCURACY",
    }
    context = driver.devices[0].create_context()
    with model_source.from_path(model.path) as source:
        graph = context.create_graph(source, config, model.shapes)
    graph.initialize()
    queue = context.create_command_queue()
    compiled = compile_on_host(read, config)
    device = [DeviceRequest(context, queue, graph, inputs) for _ in range(IN_FLIGHT)]
    host = [HostRequest(compiled, inputs) for _ in range(IN_FLIGHT)]
    run_in_turn(device, _WARM_UP * IN_FLIGHT)
    run_in_turn(host, _WARM_UP * IN_FLIGHT)
    host[0].take_faster_way()
    return device, host


def _one_at_a_time(
    name: str, device: Request, host: Request, count: int, about: float, target: float | None
) -> Iterator[Measurement]:
    rounds, each = split(count, max(1, round(_ROUND_S / about)))
    latencies: dict[str, list[float]] = {"device": [], "host": []}
    sides: dict[str, Round] = {
        "device": partial(_timed_each, device, each, latencies["device"]),
        "host": partial(_timed_each, host, each, latencies["host"]),
    }
    times = interleave(sides, rounds, REST_AFTER_OPENVINO_S)
    mine, peer = (each / median(times[side]) for side in ("device", "host"))
    yield compared(BENCH, f"{name}: throughput", "1/s", mine, _PEER, peer, at_least=target)
    for metric, percent in (("median", 50), ("p90", 90)):
        mine, peer = (percentile(latencies[side], percent) * 1e3 for side in ("device", "host"))
        yield compared(BENCH, f"{name}: {metric} latency", "ms", mine, _PEER, peer)


def _in_flight(
    name: str, device: Sequence[Request], host: Sequence[Request], count: int, about: float
) -> Iterator[Measurement]:
    rounds, each = split(count, max(2 * IN_FLIGHT, round(_ROUND_S / about)))
    sides: dict[str, Round] = {
        "device": partial(_timed_all, device, each),
        "host": partial(_timed_all, host, each),
    }
    times = interleave(sides, rounds, REST_AFTER_OPENVINO_S)
    mine, peer = (each / median(times[side]) for side in ("device", "host"))
    yield compared(BENCH, f"{name}: throughput, {IN_FLIGHT} in flight", "1/s", mine, _PEER, peer)


def _copies(name: str, before: tuple[int, int], after: tuple[int, int]) -> Iterator[Measurement]:
    inferences = after[0] - before[0]
    staged = after[1] - before[1]
    # counted by the engine; this process only hands over device memory
    metric = f"{name}: staged per inference"
    yield absolute(BENCH, metric, "B", staged / inferences, exactly=0)


def count_differences(name: str, device: Request, host: Request) -> Measurement:
    """Count outputs of the device that differ from the host's in any bit."""
    different = sum(
        mine.tobytes() != peer.tobytes() for mine, peer in zip(device.outputs, host.outputs, strict=True)
    )
    return absolute(BENCH, f"{name}: outputs that differ", "outputs", different, exactly=0)


def _timed_each(request: Request, count: int, latencies: list[float]) -> float:
    start = before = time.perf_counter()
    for _ in range(count):
        request.run()
        now = time.perf_counter()
        latencies.append(now - before)
        before = now
    return before - start


def _timed_all(requests: Sequence[Request], count: int) -> float:
    start = time.perf_counter()
    run_in_turn(requests, count)
    return time.perf_counter() - start


def _seconds_of_one(request: Request) -> float:
    return _timed_each(request, _WARM_UP, []) / _WARM_UP


def _engine(driver: Driver) -> tuple[int, int]:
    """Return inferences and staged bytes so far. The engine flushes its counters before it sleeps."""
    time.sleep(0.05)
    status = driver.devices[0].get_status()
    return status.inferences, status.staged_bytes
