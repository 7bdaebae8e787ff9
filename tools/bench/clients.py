"""`bench clients`: a model in several processes at once, on one device, against OpenVINO's CPU device.

Every client is a process with one in-place request, which starts the next inference when the last has ended.
The peers do the same with OpenVINO itself: one process with the machine to itself, and as many at once as
there are clients. All of them exist from the start; the sides take turns while the others sleep.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import cycle

from softnpu.tools.bench.client import ClientAnswer, client
from softnpu.tools.bench.model import BenchModel
from softnpu.tools.bench.result import Measurement, absolute, compared
from softnpu.tools.bench.rounds import interleave, median
from softnpu.tools.bench.worker import Worker
from softnpu.tools.shared.private_daemon import private_daemon

BENCH = "clients"
_PEER = "OpenVINO CPU"
_LATE_S = 60.0
_REST_S = 0.3
"""Before each turn: threads of OpenVINO look for work for a while after an inference."""


def run(
    model: BenchModel, clients: int, rounds: int, seconds: float, precision: str
) -> Iterator[Measurement]:
    """Yield inferences a second of all clients together, and of the peers; medians of `rounds` turns."""
    with ExitStack() as stack:
        socket = stack.enter_context(private_daemon()).socket

        def start(way: str) -> Worker:
            return stack.enter_context(client(way, socket, model, precision))

        ours, peers = ([start(way) for _ in range(clients)] for way in ("plugin", "openvino"))
        for runner in (*ours, *peers):
            runner.wait_until_ready()
        alone = cycle(peers)  # processes of OpenVINO differ by some percent
        turns: dict[str, list[list[ClientAnswer]]] = {"ours": [], "one": [], "several": []}
        sides: dict[str, Callable[[], float]] = {
            "ours": partial(_turn, ours, seconds, turns["ours"]),
            "one": lambda: _turn([next(alone)], seconds, turns["one"]),
            "several": partial(_turn, peers, seconds, turns["several"]),
        }
        rates_of = {name: median(rates) for name, rates in interleave(sides, rounds, _REST_S).items()}
        expected, *digests = _digests([*peers[:1], *ours])
    metric = f"{model.name}: total throughput, {clients} processes"
    for peer, name in ((f"{_PEER}, 1 process", "one"), (f"{_PEER}, {clients} processes", "several")):
        yield compared(BENCH, metric, "1/s", rates_of["ours"], peer, rates_of[name])
    yield _fairness(model.name, turns["ours"])
    last = turns["ours"][-1]
    yield absolute(
        BENCH, f"{model.name}: staged bytes", "B", sum(answer.staged for answer in last), exactly=0
    )
    different = sum(digest != expected for digest in digests)
    yield absolute(
        BENCH, f"{model.name}: processes with outputs that differ", "processes", different, exactly=0
    )


def _turn(runners: Sequence[Worker], seconds: float, turns: list[list[ClientAnswer]]) -> float:
    """Return inferences a second of all `runners` together in a turn. Append their answers to `turns`."""
    first = len(turns) % len(runners)  # which infers alone until the others begin
    for runner in (*runners[first:], *runners[:first]):
        runner.begin(seconds)
    answers = [runner.answer(ClientAnswer, seconds + _LATE_S) for runner in runners]
    turns.append(answers)
    return sum(answer.count for answer in answers) / max(answer.seconds for answer in answers)


def _digests(runners: Sequence[Worker]) -> list[str]:
    """Return the digests of the outputs that `runners` have now."""
    for runner in runners:
        runner.begin(0)
    return [runner.answer(ClientAnswer, _LATE_S).digest for runner in runners]


def _fairness(name: str, turns: Sequence[Sequence[ClientAnswer]]) -> Measurement:
    """Return the smallest share of a process over all turns, relative to the mean."""
    counts = [sum(answer.count for answer in answers) for answers in zip(*turns, strict=True)]
    metric = f"{name}: fewest inferences of {len(counts)} processes"
    return compared(BENCH, metric, "1", min(counts), "mean of all", sum(counts) / len(counts))
