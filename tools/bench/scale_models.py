"""`bench scale`: the number of loaded models, and the size of one."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import openvino as ov

from softnpu.driver import Driver
from softnpu.driver.cache_options import ENV_CACHE_DIR
from softnpu.tools.bench import large_model
from softnpu.tools.bench.load import variable, wait_for_rest
from softnpu.tools.bench.memory import total
from softnpu.tools.bench.requests import HostRequest, Request, compile_on_host, random_inputs
from softnpu.tools.bench.rounds import REST_AFTER_OPENVINO_S, interleave, median
from softnpu.tools.bench.scale_client import prepare
from softnpu.tools.bench.scale_point import Point
from softnpu.tools.bench.weights import Compilations, Kind
from softnpu.tools.shared.private_daemon import PrivateDaemon, private_daemon

_WEIGHTS: Final = 1 << 16
_INFERENCES: Final = 400
_TURNS: Final = 5
_WARM_UPS: Final = 8


def measure_count(sizes: Sequence[int]) -> Iterator[Point]:
    """Yield the cost of compiling and loading one more 64 KiB model, of a prepared inference, and memory.

    Each size continues from the previous one: the cost of a model is that of the last ones.
    """
    with tempfile.TemporaryDirectory(prefix="softnpu-bench-") as folder:
        paths = []
        for number in range(max(sizes)):
            paths.append(Path(folder) / f"{number}.xml")
            ov.serialize(large_model.build(_WEIGHTS, seed=number), paths[-1])
        with (
            variable(ENV_CACHE_DIR, ""),
            private_daemon() as daemon,
            Driver.open(daemon.socket, autostart=False) as driver,
        ):
            yield from _loaded(daemon, driver, paths, sizes)


def _loaded(
    daemon: PrivateDaemon, driver: Driver, paths: Sequence[Path], sizes: Sequence[int]
) -> Iterator[Point]:
    context = driver.devices[0].create_context()
    queue = context.create_command_queue()
    loaded: list[Request] = []
    host: list[Request] = []
    before = total(driver.daemon_pid, ())
    for size in sizes:
        new = size - len(loaded)
        begin = time.perf_counter()
        while len(loaded) < size:
            loaded.append(prepare(context, queue, paths[len(loaded)]))
        yield Point("compiled and loaded", size, (time.perf_counter() - begin) / new * 1e3, "ms")
        while len(host) < size:
            host.append(_on_host(paths[len(host)]))
        _warm_up(loaded)
        wait_for_rest(daemon)  # C models are made meanwhile
        _warm_up(loaded)
        _warm_up(host)
        sides = {"device": partial(_in_turn, loaded), "host": partial(_in_turn, host)}
        times = interleave(sides, _TURNS, REST_AFTER_OPENVINO_S)
        yield Point("inference", size, median(times["device"]) * 1e6, "us")
        yield Point("inference, OpenVINO CPU", size, median(times["host"]) * 1e6, "us", judged=False)
        yield Point("memory", size, (total(driver.daemon_pid, ()) - before) / size / (1 << 20), "MiB")


def _on_host(path: Path) -> Request:
    model = ov.Core().read_model(path)
    config = {"INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY"}
    return HostRequest(compile_on_host(model, config), random_inputs(model.inputs))


def _warm_up(requests: Sequence[Request]) -> None:
    for _ in range(_WARM_UPS):
        for request in requests:
            request.run()


def _in_turn(loaded: Sequence[Request]) -> float:
    """Return seconds per inference when all models take turns."""
    begin = time.perf_counter()
    for number in range(_INFERENCES):
        loaded[number % len(loaded)].run()
    return (time.perf_counter() - begin) / _INFERENCES


def measure_size(sizes: Sequence[int]) -> Iterator[Point]:
    """Yield time to compile, first inference and memory of a model from a file, per MiB of weights."""
    for size in sizes:
        with tempfile.TemporaryDirectory(prefix="softnpu-bench-") as folder:
            compilations = Compilations(size, Path(folder))
            compilations.prepare()
            mib = large_model.weights_of(size) / (1 << 20)
            for cost, cached in (("compiled", False), ("compiled, cached", True)):
                answer, _ = compilations.on_npu(Kind("file", cached))
                yield Point(cost, size, answer.loaded_s / mib * 1e3, "ms")
            answer, memory = compilations.on_npu(Kind("file", True), watched=True)
            yield Point("first inference", size, answer.infer_s / mib * 1e3, "ms")
            yield Point("memory", size, memory.peak / (1 << 20) / mib, "MiB")
