"""`bench counters`: what one inference costs the kernel, against the least that any design needs.

The least: one wake-up each way, of the engine by the client and of the client by the engine, if neither is
awake. For that the client makes two system calls (it writes the doorbell, it sleeps), and so does the engine
(it wakes the client, it sleeps). While both poll (`with spin`) nothing is needed. The supervisor is never
part of it; no page faults, no byte copied. What OpenVINO adds is counted in a process of its CPU device.

Wake-ups, switches, page faults and CPU time are read before and after, which disturbs nothing and needs no
right. System calls are counted in a second turn: by tracepoints for root, else by ptrace (`system_calls`). An
engine hides from its user's debuggers, so its calls are counted for root only, and the output says so.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import openvino as ov

from softnpu.driver import Driver, native_library
from softnpu.driver.errors import ZeError
from softnpu.emulator.interface.environment import DEFAULT_SPIN_US
from softnpu.tools.bench import counted, kernel_counts, language_model, native, perf_calls, system_calls
from softnpu.tools.bench.counted import CountedAnswer, CountedStart
from softnpu.tools.bench.counter_names import (
    BENCH,
    CALLS,
    CLIENT,
    COPIED,
    COUNTS,
    CPU,
    ENGINE,
    FAULTS,
    PROCESSES,
    SUPERVISOR,
    WOKEN,
)
from softnpu.tools.bench.kernel_counts import KernelCounts
from softnpu.tools.bench.model import DIGITS, find_model
from softnpu.tools.bench.result import Measurement, absolute, compared
from softnpu.tools.bench.worker import Worker
from softnpu.tools.shared.console import err, print_line
from softnpu.tools.shared.failures import ToolError, UsageError, describe
from softnpu.tools.shared.private_daemon import private_daemon

_PEER: Final = "OpenVINO CPU"
_SLACK: Final = 0.1
"""What a turn itself, and the daemon's watch twice a second, add to an inference."""
_RARE: Final = 0.05
_DEADLINE_S: Final = 120.0


class Least(NamedTuple):
    """The least of each process: wake-ups and system calls."""

    woken: int
    calls: int


_ASLEEP: Final = {CLIENT: Least(1, 2), ENGINE: Least(1, 2), SUPERVISOR: Least(0, 0)}
_AWAKE: Final = dict.fromkeys(PROCESSES, Least(0, 0))


class Side(NamedTuple):
    """A running client: its process, and a function that submits so many times."""

    pid: int
    turn: Callable[[int], object]


class Case(NamedTuple):
    """What is counted: `part` of the inferences asked for, since models take longer than commands.

    `start` starts the client of a daemon whose device polls `spin_us`; `alone` one of OpenVINO's CPU device.
    `cores`: of client and engine; they cannot poll for each other on one.
    """

    name: str
    spin_us: int
    least: Mapping[str, Least]
    start: Callable[[ExitStack, Path], Side]
    alone: Callable[[ExitStack], Side] | None = None
    part: float = 1.0
    cores: Sequence[int] = ()


def run(names: Sequence[str], count: int) -> Iterator[Measurement]:
    """Yield the figures of about `count` inferences of these benchmarks, by default of all."""
    for name in names or _CASES:
        if name not in _CASES:
            raise UsageError(f"counters of {name}", found="none", expected=f"one of {', '.join(_CASES)}")
    if not perf_calls.is_available():
        print_line("no tracepoints: system calls are counted with ptrace, about, and not judged", console=err)
    for name in names or _CASES:
        with ExitStack() as stack:
            try:
                cases = _CASES[name](stack)
            except (ToolError, ZeError) as error:
                if names:
                    raise
                print_line(f"not counted: {name}: {describe(error)}", console=err)
                continue
            for case in cases:
                yield from _counted(case, max(2, round(count * case.part)))


def _counted(case: Case, count: int) -> Iterator[Measurement]:
    with ExitStack() as stack:
        alone: dict[str, float | None] = {}
        if case.alone is not None:
            side = case.alone(stack)
            (counts,) = _kernel({_PEER: side.pid}, side, count).values()
            calls = _system_calls(case.name, {_PEER: side.pid}, side, count)
            alone = dict(
                zip(COUNTS, (*(each / count for each in counts), _sum(calls.of.get(_PEER))), strict=True)
            )
    with ExitStack() as stack:
        daemon = stack.enter_context(private_daemon(spin_us=case.spin_us))
        observer = stack.enter_context(Driver.open(daemon.socket, autostart=False))
        side = case.start(stack, daemon.socket)
        pids = {CLIENT: side.pid, ENGINE: observer.status().engines[0].engine_pid, SUPERVISOR: daemon.pid}
        for process, core in zip((CLIENT, ENGINE), case.cores, strict=False):
            os.sched_setaffinity(pids[process], {core})
        side.turn(count)  # then everything is prepared, and every page was touched
        before = observer.devices[0].get_status()
        kernel = _kernel(pids, side, count)
        after = observer.devices[0].get_status()
        calls = _system_calls(case.name, pids, side, max(2, count // 2))
    for process, counts in kernel.items():
        of_process = calls.of.get(process)
        values = dict(zip(COUNTS, (*(each / count for each in counts), _sum(of_process)), strict=True))
        yield from _figures(case, process, values, alone, calls.exact)
        for name, value in sorted((of_process or {}).items(), key=lambda call: -call[1]):
            if value >= _RARE:
                yield absolute(BENCH, f"{case.name}: {process}: {CALLS}: {name}", "1/inference", value)
    copied = (after.staged_bytes - before.staged_bytes) / count
    yield absolute(BENCH, f"{case.name}: {COPIED}", "B", copied, exactly=0)


def _kernel(pids: Mapping[str, int], side: Side, count: int) -> dict[str, KernelCounts]:
    before = {process: kernel_counts.read(pid) for process, pid in pids.items()}
    side.turn(count)
    return {process: kernel_counts.read(pid).since(before[process]) for process, pid in pids.items()}


def _figures(
    case: Case,
    process: str,
    values: Mapping[str, float | None],
    alone: Mapping[str, float | None],
    exact: bool,
) -> Iterator[Measurement]:
    """Yield the counts of a process; beside those of an engine stand OpenVINO's alone.

    System calls are judged only if they are `exact`.
    """
    least = {WOKEN: case.least[process].woken, FAULTS: 0}
    if exact:
        least[CALLS] = case.least[process].calls
    for what, value in values.items():
        metric, unit = f"{case.name}: {process}: {what}", "us" if what == CPU else "1/inference"
        peer = alone.get(what) if process == ENGINE else None
        if value is None:
            continue
        if peer is not None:
            yield compared(BENCH, metric, unit, value, _PEER, peer)
        elif what in least and not (alone and process == ENGINE):
            yield absolute(BENCH, metric, unit, value, at_most=least[what], slack=_SLACK)
        else:
            yield absolute(BENCH, metric, unit, value)


def _sum(calls: Mapping[str, float] | None) -> float | None:
    return None if calls is None else sum(calls.values())


class Calls(NamedTuple):
    """System calls for each inference by process and name; none of a process that may not be traced."""

    of: dict[str, dict[str, float]]
    exact: bool


def _system_calls(name: str, pids: Mapping[str, int], side: Side, count: int) -> Calls:
    """Count in a turn; say on stderr what the kernel refuses."""
    with system_calls.counted([*pids.values()]) as called:
        side.turn(count)
    counts: dict[str, dict[str, float]] = {}
    for process, pid in pids.items():
        if pid in called.refused:
            reason = called.refused[pid]
            print_line(
                f"{name}: system calls of the {process} are not counted: {reason}; root may", console=err
            )
        else:
            counts[process] = {call: times / count for call, times in called.calls[pid].items()}
    return Calls(counts, called.exact)


def _submit(_: ExitStack) -> list[Case]:
    return [
        Case(
            f"submit, {words}",
            spin_us,
            least,
            partial(_client, kind=counted.SUBMIT, spin_us=spin_us),
            cores=cores,
        )
        for words, spin_us, least, cores in _spins()
    ]


def _native(stack: ExitStack) -> list[Case]:
    library, compiler = native_library.find(), native.find_compiler()
    folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="softnpu-bench-"))
    program = native.build(library, compiler, Path(folder))

    def start(stack: ExitStack, socket: Path, spin_us: int) -> Side:
        trips = stack.enter_context(native.RoundTrips(library, program, socket, spin_us))
        return Side(trips.pid, trips.round)

    return [
        Case(f"native, {words}", spin_us, least, partial(start, spin_us=spin_us), cores=cores)
        for words, spin_us, least, cores in _spins()
    ]


def _infer(_: ExitStack) -> list[Case]:
    return [
        _of_model("infer, digits", DIGITS, 1.0),
        _of_model("infer, yolov8n", "yolov8n", 0.2),
    ]


def _of_model(name: str, model: str, part: float) -> Case:
    found = find_model(model, ())
    client = partial(
        _client,
        kind=counted.INFER,
        model=str(found.path),
        shapes={key: tuple(shape) for key, shape in found.shapes.items()},
    )
    alone = partial(client, socket=Path(), way="openvino")
    return Case(name, DEFAULT_SPIN_US, _ASLEEP, client, alone, part)


def _tokens(stack: ExitStack) -> list[Case]:
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="softnpu-bench-")))
    model = folder / "language_model.xml"
    ov.serialize(language_model.build(), model)
    client = partial(_client, kind=counted.TOKENS, model=str(model))
    alone = partial(client, socket=Path(), way="openvino")
    return [Case("tokens", DEFAULT_SPIN_US, _ASLEEP, client, alone, 0.25)]


def _client(stack: ExitStack, socket: Path, way: str = "plugin", **start: Any) -> Side:
    worker = stack.enter_context(
        Worker(f"client through {way}", "counted:prepare", CountedStart(socket=str(socket), way=way, **start))
    )
    worker.wait_until_ready()

    def turn(count: int) -> None:
        worker.begin(count)
        worker.answer(CountedAnswer, _DEADLINE_S)

    return Side(worker.pid, turn)


def _spins() -> list[tuple[str, int, Mapping[str, Least], Sequence[int]]]:
    """Return how long both sides poll, in words and microseconds, the least for it, and their cores."""
    cores = sorted(os.sched_getaffinity(0))[:2]
    polling = [("with spin", DEFAULT_SPIN_US, _AWAKE, cores)] if len(cores) > 1 else []
    return [("asleep", 0, _ASLEEP, cores), *polling]


_CASES: Final[dict[str, Callable[[ExitStack], list[Case]]]] = {
    "submit": _submit,
    "native": _native,
    "infer": _infer,
    "tokens": _tokens,
}
