"""`softnpu bench`: what it prints, when it says that a target is met, and that it leaves nothing behind.

No test looks at a time: what is fast is what the benchmarks themselves are for.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import openvino as ov
import pytest
from openvino import opset15 as ops
from rich.console import Console
from typer.testing import CliRunner

from softnpu.tools.bench import cli, copies, infer, lists, memory, model, native, recovery, report, submit
from softnpu.tools.bench.requests import Request, run_in_turn
from softnpu.tools.bench.result import Measurement, absolute, compared
from softnpu.tools.bench.rounds import interleave, median, percentile, split
from tests.support.cli import softnpu

_KEYS = ["bench", "metric", "value", "unit", "peer", "peer_value", "ratio", "target", "ok"]
Bench = Callable[..., list[Measurement]]


@pytest.fixture
def bench(private_dir: Path) -> Bench:
    """Runs `softnpu bench ARGUMENTS --json`; its measurements. Its temporary files are all gone by then."""
    folder = private_dir / "tmp"
    folder.mkdir()

    def run(*arguments: str | Path) -> list[Measurement]:
        lines = softnpu("bench", *arguments, "--json", TMPDIR=str(folder)).words.splitlines()
        assert list(folder.iterdir()) == []
        for line in lines:
            assert list(msgspec.json.decode(line)) == _KEYS
        return [msgspec.json.decode(line, type=Measurement) for line in lines]

    return run


# ------------------------------------------------------------ the benchmarks


def test_submit_compares_with_semaphores_and_sockets_and_judges_what_runs_on_two_cores(bench: Bench) -> None:
    found = bench("submit", "-n", "30")
    assert all(row.value > 0 and row.peer_value and row.ratio for row in found)
    asleep = {row.peer for row in found if row.metric == "round trip asleep, one core"}
    assert asleep >= {"semaphore pair", "AF_UNIX SEQPACKET"}
    targets = {row.metric: row.target for row in found if row.peer == "semaphore pair"}
    assert targets.pop("round trip asleep, one core") is None
    if len(os.sched_getaffinity(0)) > 1:
        assert targets == {"round trip asleep, two cores": 1.5, "round trip with spin, two cores": 0.5}


def test_infer_finds_the_numbers_of_the_cpu_device_without_a_copy(bench: Bench, digits: Path) -> None:
    found = {row.metric: row for row in bench("infer", digits, "-n", "30")}
    assert list(found) == [
        "digits: throughput",
        "digits: median latency",
        "digits: p90 latency",
        "digits: throughput, 3 in flight",
        "digits: staged per inference",
        "digits: outputs that differ",
    ]
    assert found["digits: throughput"].target == 0.9
    for metric in ("digits: staged per inference", "digits: outputs that differ"):
        assert (found[metric].value, found[metric].ok) == (0, True)


def test_memory_counts_every_process(bench: Bench, digits: Path) -> None:
    found = {row.metric: row for row in bench("memory", digits, "--processes", "2", "--no-settle")}
    for way in ("driver", "plugin"):
        total = found[f"digits, {way}: total, 2 processes"]
        parts = [found[f"digits, {way}: {part}"] for part in ("supervisor", "engine", "clients")]
        assert total.target == 1.5
        assert all(part.value > 1 for part in parts)
        assert total.value >= sum(part.value for part in parts) * 0.99


def test_without_json_it_prints_a_table(private_dir: Path, digits: Path) -> None:
    words = softnpu("bench", "infer", digits, "-n", "10", TMPDIR=str(private_dir)).words
    assert "digits: outputs that differ" in words
    assert "OpenVINO CPU" in words


def test_a_terminal_of_80_columns_shows_every_number_and_verdict() -> None:
    rows = [
        compared("clients", "YOLOv8n, 8 processes", "1/s", 1054.8, "AF_UNIX SEQPACKET", 49.9, at_least=30),
        compared("native", "round trip asleep, two cores", "us", 54.81, "semaphore pair", 49.89, at_most=1.2),
    ]
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(report.table(rows))
    text = console.export_text()
    for part in ("1054.8 1/s", "49.9", "21.14", "30", "missed", "54.81 us", "49.89", "1.099", "1.2", "met"):
        assert part in text, text


# ------------------------------------------------------------ what cannot be measured


def test_an_unknown_model_is_refused_with_the_names_that_exist() -> None:
    complaint = softnpu("bench", "infer", "resnet").complaint
    assert complaint == "model resnet: no such file; expected a file, or one of magika, minilm, yolov8n"


def test_a_dynamic_model_is_refused_with_the_option_that_helps(private_dir: Path) -> None:
    data = ops.parameter([-1, 4], ov.Type.f32, name="data")
    path = private_dir / "open.xml"
    ov.serialize(ov.Model([ops.relu(data)], [data], "open"), path)
    assert "give --shape" in softnpu("bench", "infer", path).complaint.lower()


def test_a_client_that_fails_tells_why(private_dir: Path) -> None:
    path = private_dir / "broken.xml"
    path.write_text("<net")
    complaint = softnpu("bench", "memory", path, "--no-settle").complaint
    assert complaint.startswith("client through the driver: ")


# ------------------------------------------------------------ verdicts


def _missing_target(*_: object) -> Iterator[Measurement]:
    yield absolute("submit", "met", "us", 1)
    yield compared("submit", "missed", "us", 16, "peer", 10, at_most=1.5)


@pytest.mark.parametrize(("options", "code"), [([], 0), (["--json"], 0), (["--check"], 1)])
def test_only_check_makes_a_missed_target_a_failure(
    monkeypatch: pytest.MonkeyPatch, options: list[str], code: int
) -> None:
    monkeypatch.setattr(submit, "run", _missing_target)
    assert CliRunner().invoke(cli.app, ["submit", *options]).exit_code == code


def test_without_a_command_all_benchmarks_run(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []

    def note(name: str) -> Callable[..., Iterator[Measurement]]:
        def run(*_: Any) -> Iterator[Measurement]:
            ran.append(name)
            yield absolute(name, "nothing", "us", 1)

        return run

    for module in (submit, native, infer, memory, lists, copies, recovery):
        monkeypatch.setattr(module, "run", note(module.BENCH))
    monkeypatch.setattr(model, "find_model", lambda *_: None)
    assert CliRunner().invoke(cli.app, ["--json"]).exit_code == 0
    assert ran == ["submit", "native", "infer", "memory", "lists", "copy", "recovery"]


@pytest.mark.parametrize(
    "arguments",
    [("lists", "-n", "20", "--rounds", "3"), ("copy", "--size", "1MiB"), ("recovery", "--rounds", "1")],
)
def test_lists_copies_and_recovery_are_measured(arguments: tuple[str, ...]) -> None:
    finished = CliRunner().invoke(cli.app, [*arguments, "--json"])
    assert finished.exit_code == 0, finished.output
    assert {row["bench"] for row in map(json.loads, finished.output.splitlines())} == {arguments[0]}


@pytest.mark.parametrize(
    ("value", "bounds", "ok"),
    [
        (15.0, {"at_most": 1.5}, True),
        (15.1, {"at_most": 1.5}, False),
        (9.0, {"at_least": 0.9}, True),
        (8.9, {"at_least": 0.9}, False),
        (99.0, {}, None),
    ],
)
def test_a_bound_holds_for_the_ratio(value: float, bounds: dict[str, float], ok: bool | None) -> None:
    row = compared("b", "m", "us", value, "peer", 10, **bounds)
    assert row.ok is ok
    assert row.target == next(iter(bounds.values()), None)


def test_a_figure_without_a_peer_is_met_by_its_value_alone() -> None:
    assert absolute("b", "m", "B", 0, exactly=0).ok is True
    assert absolute("b", "m", "B", 0.001, exactly=0).ok is False
    assert absolute("b", "m", "B", 5).ok is None


# ------------------------------------------------------------ rounds and requests


def test_every_side_runs_in_every_round_and_the_order_turns() -> None:
    order: list[str] = []

    def side(name: str, figure: float) -> Callable[[], float]:
        def run() -> float:
            order.append(name)
            return figure

        return run

    figures = interleave({"a": side("a", 1), "b": side("b", 2)}, rounds=3, rest_s=0)
    assert order == ["a", "b", "b", "a", "a", "b"]
    assert figures == {"a": [1, 1, 1], "b": [2, 2, 2]}


def test_medians_and_percentiles_are_of_the_sorted_values() -> None:
    assert median([9, 1, 5]) == 5
    assert percentile(list(range(10, 0, -1)), 90) == 9
    assert percentile([7], 90) == 7


@pytest.mark.parametrize(
    ("total", "size", "expected"), [(6000, 100, (60, 100)), (10, 100, (3, 3)), (1, 9, (3, 1))]
)
def test_a_total_is_split_into_rounds(total: int, size: int, expected: tuple[int, int]) -> None:
    assert split(total, size) == expected


class _Recorded(Request):
    """Knows whether it is in flight, and how often it ran."""

    def __init__(self, outputs: list[Any] | None = None) -> None:
        self.outputs = outputs or []
        self.running = False
        self.ended = 0

    def infer(self) -> None:
        self.start()
        self.wait()

    def start(self) -> None:
        assert not self.running
        self.running = True

    def wait(self) -> None:
        assert self.running
        self.running = False
        self.ended += 1


@pytest.mark.parametrize("count", [1, 2, 3, 7])
def test_requests_in_turn_are_all_waited_for_before_they_start_again(count: int) -> None:
    requests = [_Recorded(), _Recorded(), _Recorded()]
    run_in_turn(requests, count)
    assert sum(request.ended for request in requests) == count
    assert not any(request.running for request in requests)


def test_one_bit_in_one_output_is_a_difference() -> None:
    values = np.arange(4, dtype=np.float32)
    other = values.copy()
    other.view(np.uint32)[3] ^= 1
    same = infer.count_differences("m", _Recorded([values, values]), _Recorded([values, values.copy()]))
    assert (same.value, same.ok) == (0, True)
    different = infer.count_differences("m", _Recorded([values, values]), _Recorded([values, other]))
    assert (different.value, different.ok) == (1, False)
