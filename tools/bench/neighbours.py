"""`bench neighbours`: the latency of a small inference while other processes flood the daemon.

Every flood is as fast as one process can make it, on the same device or on another one. Processes that only
compute are measured in the same way: they take a share of the cores, which no daemon can give back.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import openvino as ov

from softnpu.driver import Driver
from softnpu.driver.cache_options import ENV_CACHE_DIR
from softnpu.emulator.platforms import DEFAULT_PLATFORM
from softnpu.tools.bench import large_model
from softnpu.tools.bench.neighbour_client import Flood, FloodStart, Turn
from softnpu.tools.bench.result import Measurement, absolute, compared
from softnpu.tools.bench.rounds import interleave, median
from softnpu.tools.bench.scale_client import prepare
from softnpu.tools.bench.worker import Worker
from softnpu.tools.demo.digits import model_path
from softnpu.tools.shared.private_daemon import private_daemon

BENCH: Final = "neighbours"
_WEIGHTS: Final = 1 << 16
_ALONE: Final = "alone"
_LATE_S: Final = 60.0
_SAME, _OTHER = 0, 1
_PAUSES: Final = {"back to back": 0.0, "now and then": 0.002}
"""Seconds between two inferences: then everybody has to wake up first."""


class Neighbours(NamedTuple):
    """Processes at the same time, a flood each, with this device."""

    name: str
    floods: tuple[Flood, ...]
    device: int = _SAME


NEIGHBOURS: Final = (
    Neighbours("doorbells", (Flood.DOORBELLS,)),
    Neighbours("status", (Flood.STATUS,)),
    Neighbours("loads", (Flood.LOADS,)),
    Neighbours("loads and doorbells", (Flood.LOADS, Flood.DOORBELLS)),
    Neighbours("loads and doorbells of another device", (Flood.LOADS, Flood.DOORBELLS), _OTHER),
    Neighbours("compilations", (Flood.COMPILATIONS,)),
    Neighbours("computation", (Flood.COMPUTATION,)),
    Neighbours("computation in two processes", (Flood.COMPUTATION,) * 2),
)


def run(rounds: int, seconds: float) -> Iterator[Measurement]:
    """Yield medians of the latency of an inference beside each flood, against the same alone."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="softnpu-bench-")))
        model = folder / "other.xml"
        ov.serialize(large_model.build(_WEIGHTS), model)
        daemon = stack.enter_context(private_daemon(devices=(DEFAULT_PLATFORM,) * 2))
        driver = stack.enter_context(Driver.open(daemon.socket, autostart=False))
        context = driver.devices[_SAME].create_context()
        infer = prepare(context, context.create_command_queue(), model_path()).run
        sides: dict[tuple[str, str], Callable[[], float]] = {}
        counts: dict[str, list[float]] = {}
        for each in (Neighbours(_ALONE, ()), *NEIGHBOURS):
            workers = []
            for number, flood in enumerate(each.floods):
                start = FloodStart(str(daemon.socket), each.device, flood, str(model))
                cache = str(folder / f"{each.name} {number}") if flood.cached else ""
                worker = Worker(
                    each.name, "neighbour_client:function", start, {**os.environ, ENV_CACHE_DIR: cache}
                )
                workers.append(stack.enter_context(worker))
                worker.wait_until_ready()
            counts[each.name] = []
            for way, pause_s in _PAUSES.items():
                turn = partial(_turn, workers, counts[each.name], infer, seconds, pause_s)
                sides[each.name, way] = turn
        times = {side: median(found) * 1e6 for side, found in interleave(sides, rounds).items()}
    for each in NEIGHBOURS:
        for way in _PAUSES:
            metric = f"an inference {way} beside {each.name}"
            yield compared(BENCH, metric, "us", times[each.name, way], _ALONE, times[_ALONE, way])
        yield absolute(BENCH, f"{each.name}: how often", "1/s", median(counts[each.name]))


def _turn(
    workers: Sequence[Worker], counts: list[float], infer: Callable[[], None], seconds: float, pause_s: float
) -> float:
    """Return an inference's latency in one turn: the mean back to back, else the median."""
    for worker in workers:
        worker.begin(seconds)
    clock = time.perf_counter
    latencies: list[float] = []
    end = clock() + seconds
    while (begun := clock()) < end or not latencies:
        infer()
        latencies.append(clock() - begun)
        if pause_s:
            time.sleep(pause_s)
    answers = [worker.answer(Turn, seconds + _LATE_S) for worker in workers]
    if answers:
        counts.append(answers[0].count / answers[0].seconds)
    return median(latencies) if pause_s else sum(latencies) / len(latencies)
