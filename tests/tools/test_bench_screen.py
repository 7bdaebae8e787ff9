"""`softnpu bench`: what people see of a run: its screen, its progress, the conditions it was measured in."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec
import psutil
import pytest
from rich.console import Console

from softnpu.tools.bench import progress, report, targets
from softnpu.tools.bench.conditions import conditions
from softnpu.tools.bench.progress import Progress, Step
from softnpu.tools.bench.result import Conditions, Figures, Measurement, absolute, compared
from softnpu.tools.shared.failures import ToolError
from tests.support.cli import softnpu
from tests.support.waiting import wait_until

_DOCUMENT = Path(__file__).parents[2] / "docs/benchmarks.md"
_CPU = "OpenVINO CPU"
_ROWS = [
    compared("load", "yolov8n, cold: FEIL", "ms", 523.0, _CPU, 202.5),
    compared("load", "yolov8n, cold: compile", "ms", 317.7, _CPU, 185.2),
    compared("load", "yolov8n, driver cache, loaded by another process: FIL", "ms", 64.93, _CPU, 128.4),
    compared("clients", "yolov8n: total throughput, 8 processes", "1/s", 138.1, f"{_CPU}, 1 process", 138.5),
    absolute("load", "yolov8n: outputs that differ", "outputs", 0, exactly=0),
    absolute("recovery", "client killed, memory back", "s", 1.5, at_most=1.0),
]


def _screen(rows: list[Measurement], width: int, *, only_judged: bool = True) -> list[str]:
    """Return the lines of a screen, without the spaces between its columns."""
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(report.screen(rows, Conditions(1, 2, 4), only_judged=only_judged, width=width))
    lines = [line.rstrip() for line in console.export_text().splitlines()]
    assert max(map(len, lines)) <= width
    return [" ".join(line.split()) for line in lines]


def test_a_run_is_one_line_a_figure_in_80_columns() -> None:
    assert _screen(_ROWS, 80) == [
        "2 x: twice the time, rate or memory of the other side",
        "First result of a new process: time, against OpenVINO's CPU device",
        "yolov8n, nothing cached 2.58 x worse than the target of 1.3 x",
        "yolov8n, driver cache, in memory 0.506 x better than the target of 0.6 x",
        "Programs at once: inferences a second, against 1 process of OpenVINO's CPU",
        # not 1 x, which would be met
        "yolov8n, 8 processes 0.997 x worse than the target of 1 x",
        "A death or a hang: time until others go on",
        "client killed, memory back 1.5 s worse than the target of 1 s",
        "Must be zero, and is: outputs that differ, bytes copied (1 check)",
        "2 of 5 targets met, on 1 of 2 cores, beside 4 busy processes",
        "Missed, and the place in docs/benchmarks.md that says why:",
        "load, cold yolov8n, nothing cached",
        "clients, 8 processes yolov8n, 8 processes",
        "not explained recovery: client killed, memory back",
        "1 figure more, without a target: --json or --html FILE",
    ]


def test_a_wide_screen_has_values_and_one_benchmark_all_its_figures() -> None:
    cold = "yolov8n, nothing cached 523 ms 2.58 x worse than the target of 1.3 x"
    assert cold in _screen(_ROWS, 120)
    assert "yolov8n, cold: compile 1.72 x" in _screen(_ROWS, 80, only_judged=False)
    wrong = absolute("load", "yolov8n: outputs that differ", "outputs", 3, exactly=0)
    assert "yolov8n: outputs that differ 3 outputs must be 0" in _screen([wrong], 80)


def test_every_explanation_is_in_the_document() -> None:
    text = _DOCUMENT.read_text()
    section = text[text.index("## What an inference costs") :]
    heads = re.findall(r"^(?:- \*\*|## )([^*(\n]+)", section, re.MULTILINE)
    places = {head.replace("`", "").strip() for head in heads}
    assert {place for _, _, place in targets.EXPLAINED} <= places


def _step(bench: str, seconds: float, *rows: Measurement, native: bool = False, fails: bool = False) -> Step:
    def run() -> Iterator[Measurement]:
        yield from rows
        if fails:
            raise ToolError("compiler", found="none")

    return Step(bench, seconds, run, native)


def test_progress_says_what_runs_how_far_it_is_and_how_long_it_takes() -> None:
    now = 0.0
    shown = Progress([_step("one", 10), _step("two", 20), _step("three", 30)], lambda: now)
    assert str(shown) == "measuring 1 of 3, one; 0 us so far, about 1 min 0 s left"
    now = 20.0  # twice as long as planned
    shown.begin(1)
    shown.note(_ROWS[0])
    now = 30.0
    assert str(shown) == ("measuring 2 of 3, two: yolov8n, cold: FEIL; 30.0 s so far, about 1 min 30 s left")
    assert str(Progress([_step("one", 0)], lambda: now)) == "measuring one; 0 us so far"


def test_steps_of_the_native_driver_may_fail_and_no_other(capsys: pytest.CaptureFixture[str]) -> None:
    steps = [_step("native", 1, native=True, fails=True), _step("lists", 1, _ROWS[0])]
    assert list(progress.run(steps)) == [_ROWS[0]]
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(";")[0] for line in lines] == [
        "measuring 1 of 2, native",
        "not measured: native: compiler: none",
        "measuring 2 of 2, lists",
    ]
    with pytest.raises(ToolError, match="compiler: none"):
        list(progress.run([_step("lists", 1, fails=True)]))


def test_busy_processes_are_busy_and_end_with_the_run() -> None:
    me = psutil.Process()
    before = {child.pid for child in me.children()}
    with conditions(1) as kept:
        assert (kept.cores, kept.of, kept.busy) == (len(os.sched_getaffinity(0)), os.cpu_count(), 1)
        (busy,) = [child for child in me.children() if child.pid not in before]
        begin = busy.cpu_times().user
        wait_until(lambda: busy.cpu_times().user > begin + 0.1)
    assert not busy.is_running()


def test_a_run_says_where_it_was_measured_and_another_place_is_noticed(tmp_path: Path) -> None:
    words = softnpu("bench", "lists", "-n", "5", "--rounds", "3", "--json", "--load", "1").words
    run = msgspec.json.decode(words, type=Figures)
    assert run.conditions is not None
    assert run.conditions.busy == 1
    before, after = tmp_path / "before", tmp_path / "after"
    before.write_text(words)
    for elsewhere, said in ((Conditions(3, 4), "after on 3 of 4 cores\n"), (run.conditions, "")):
        after.write_bytes(msgspec.json.encode(Figures(run.figures, elsewhere)))
        assert softnpu("bench", "compare", before, after).err.endswith(said)
        assert bool(softnpu("bench", "compare", before, after).err) is bool(said)
