"""`softnpu bench counters`: what the kernel counts is what processes did, and the least is judged."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec
import pytest
from rich.console import Console

from softnpu.tools.bench import counter_tables, counters, kernel_counts, perf_calls, system_calls
from softnpu.tools.bench.counter_names import CALLS, CLIENT, COUNTS, ENGINE, PROCESSES, SUPERVISOR, WOKEN
from softnpu.tools.bench.kernel_counts import KernelCounts
from softnpu.tools.bench.result import Figures
from softnpu.tools.shared.failures import ToolError
from tests.support.cli import softnpu
from tests.support.waiting import wait_asleep

_PROGRAM = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(0x59616D61, ctypes.c_ulong(-1), 0, 0, 0)
nothing = os.open(os.devnull, os.O_WRONLY)
print(flush=True)
for line in sys.stdin:
    for _ in range(int(line)):
        os.write(nothing, b"")
    print(flush=True)
"""


@contextmanager
def _program() -> Iterator[subprocess.Popen[bytes]]:
    """Yield a program that sleeps until it is told how often to write nothing."""
    with subprocess.Popen(
        [sys.executable, "-c", _PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield process
        finally:
            process.kill()


def _ask(process: subprocess.Popen[bytes], count: int) -> None:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(b"%d\n" % count)
    process.stdout.readline()


_MAY_COUNT = perf_calls.is_available()


@pytest.fixture
def _without_tracepoints(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(perf_calls, "_PLACES", ())


@pytest.mark.parametrize(
    "traced", [True] + [False] * _MAY_COUNT, ids=["ptrace", "tracepoints"][: 1 + _MAY_COUNT]
)
def test_every_system_call_is_counted_by_process_and_name(
    traced: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if traced:
        monkeypatch.setattr(perf_calls, "_PLACES", ())
    with _program() as one, _program() as other:
        with system_calls.counted([one.pid, other.pid]) as called:
            _ask(one, 123)
            wait_asleep(one.pid)  # in its next read
        assert called.calls[one.pid]["write"] == 124
        # a tracer may see the one that it has interrupted begin again
        assert called.calls[one.pid]["read"] in (1, 1 + traced)
        assert "write" not in called.calls[other.pid]
        assert not called.refused
        _ask(one, 1)  # it is not traced any longer, and lives


@pytest.mark.usefixtures("_without_tracepoints")
def test_a_refused_process_is_named_and_the_others_are_counted() -> None:
    with _program() as one:
        gone = subprocess.Popen([sys.executable, "-c", ""])
        gone.wait()
        with system_calls.counted([gone.pid, one.pid]) as called:
            _ask(one, 5)
    assert called.refused == {gone.pid: os.strerror(errno.ENOENT)}
    assert called.calls[one.pid]["write"] == 6


def test_wake_ups_and_cpu_time_of_a_process_are_counted() -> None:
    with _program() as process:
        before = kernel_counts.read(process.pid)
        for _ in range(10):
            wait_asleep(process.pid)
            _ask(process, 1000)
        counts = kernel_counts.read(process.pid).since(before)
    assert 0 < counts.woken <= 20, counts
    assert counts.cpu_us > 0
    assert kernel_counts.read(os.getpid()).faults > 0
    assert KernelCounts(5, 4, 3, 2.0).since(KernelCounts(1, 2, 3, 0.5)) == KernelCounts(4, 2, 0, 1.5)


def test_an_empty_command_is_counted_in_all_processes_and_shown_against_the_least() -> None:
    finished = softnpu("bench", "counters", "submit", "-n", "50", "--json")
    rows = msgspec.json.decode(finished.words, type=Figures).figures
    found = {row.metric: row for row in rows}
    for case in ("submit, asleep", "submit, with spin"):
        for process in PROCESSES:
            for what in COUNTS:
                assert found[f"{case}: {process}: {what}"].value >= 0
        assert (found[f"{case}: device: bytes copied"].value, found[f"{case}: device: bytes copied"].ok) == (
            0,
            True,
        )
    least = {
        (process, what): found[f"submit, asleep: {process}: {what}"].target
        for process in PROCESSES
        for what in (WOKEN, CALLS)
    }
    assert [least[process, WOKEN] for process in PROCESSES] == [1, 1, 0]
    assert [least[process, CALLS] for process in PROCESSES] == ([2, 2, 0] if _MAY_COUNT else [None] * 3)
    assert {found[f"submit, with spin: {process}: {WOKEN}"].target for process in PROCESSES} == {0}
    # polling replaces sleeping, or not on a busy machine; an engine that sleeps waits for its doorbell
    assert found[f"submit, asleep: {ENGINE}: {CALLS}: epoll_wait"].value > 0.1
    assert found[f"submit, asleep: {CLIENT}: {CALLS}"].value > 0


def test_more_than_the_least_is_named_in_the_table() -> None:
    values = {CLIENT: 1.02, ENGINE: 3.0, SUPERVISOR: 0.0}
    case = counters.Case("submit, asleep", 0, counters._ASLEEP, lambda *_: counters.Side(0, print))
    rows = [
        row
        for process, value in values.items()
        for row in counters._figures(case, process, {WOKEN: value}, {}, True)
    ]
    assert [row.ok for row in rows] == [True, False, True]
    rows += counters._figures(case, ENGINE, {CALLS: 2.5}, {CALLS: 1.25}, True)
    (about,) = counters._figures(case, CLIENT, {CALLS: 9.0}, {}, False)
    assert about.ok is None
    console = Console(width=80, record=True)
    console.print(*counter_tables.tables(rows))
    lines = [" ".join(line.split()) for line in console.export_text().splitlines()]
    assert "wake-ups 1.02 3.00 0.00 1, 1, 0 more: engine" in lines
    assert "system calls ? 2.50 ? ?, OpenVINO 1.25, ?" in lines


def test_unknown_counters_are_refused() -> None:
    with pytest.raises(
        ToolError, match="counters of lists: none; expected one of submit, native, infer, tokens"
    ):
        list(counters.run(["lists"], 1))
