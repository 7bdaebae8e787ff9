"""`bench clients`: a model in several processes at once, on one device, against OpenVINO's CPU device.

Every client is a process with one request in place, that starts the next inference when the last has ended.
The peers do the same with OpenVINO itself: one process that has the machine to itself, and as many at once
as there are clients. All of them are there from the beginning; the sides take turns, the others sleep.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial

from softnpu.tools.bench.clients_process import Answer, Runner
from softnpu.tools.bench.model import BenchModel
from softnpu.tools.bench.result import Measurement, absolute, compared
from softnpu.tools.bench.rounds import interleave, median
from softnpu.tools.private_daemon import private_daemon

BENCH = "clients"
TARGET = 0.95
_PEER = "OpenVINO CPU"


def run(
    model: BenchModel, clients: int, rounds: int, seconds: float, precision: str
) -> Iterator[Measurement]:
    """Inferences a second of all clients together, and of the peers; medians of `rounds` turns."""
    with ExitStack() as stack:
        socket = stack.enter_context(private_daemon()).socket

        def start(way: str) -> Runner:
            return stack.enter_context(Runner(way, model, precision, socket))

        ours, peers = ([start(way) for _ in range(clients)] for way in ("plugin", "openvino"))
        for runner in (*ours, *peers):
            runner.wait_until_ready()
        last: dict[str, list[Answer]] = {}
        sides = {"ours": ours, "one": peers[:1], "several": peers}
        turns: dict[str, Callable[[], float]] = {
            name: partial(_turn, name, runners, seconds, last) for name, runners in sides.items()
        }
        found = {name: median(rates) for name, rates in interleave(turns, rounds).items()}
    metric = f"{model.name}: total throughput, {clients} processes"
    yield compared(BENCH, metric, "1/s", found["ours"], f"{_PEER}, 1 process", found["one"], at_least=TARGET)
    yield compared(BENCH, metric, "1/s", found["ours"], f"{_PEER}, {clients} processes", found["several"])
    yield from _fairness(model.name, last["ours"])
    yield absolute(
        BENCH, f"{model.name}: staged bytes", "B", sum(answer.staged for answer in last["ours"]), exactly=0
    )
    expected = last["one"][0].digest
    different = sum(answer.digest != expected for answer in last["ours"])
    yield absolute(
        BENCH, f"{model.name}: processes with outputs that differ", "processes", different, exactly=0
    )


def _turn(name: str, runners: Sequence[Runner], seconds: float, last: dict[str, list[Answer]]) -> float:
    """Inferences a second of all `runners` together, who run for so long."""
    for runner in runners:
        runner.go(seconds)
    answers = last[name] = [runner.answer(seconds) for runner in runners]
    return sum(answer.count for answer in answers) / max(answer.seconds for answer in answers)


def _fairness(name: str, answers: Sequence[Answer]) -> Iterator[Measurement]:
    """What the process that got least got of the mean."""
    counts = [answer.count for answer in answers]
    yield compared(
        BENCH,
        f"{name}: inferences of the process with the fewest",
        "1/turn",
        min(counts),
        "mean of all",
        sum(counts) / len(counts),
    )
