"""`softnpu bench`: its output, its verdicts on targets, and that it leaves nothing behind.

No test checks a time: speed is what the benchmarks themselves are for.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import openvino as ov
import pytest
from openvino import opset15 as ops
from typer.testing import CliRunner

from softnpu.driver import native_library
from softnpu.driver.native_library import ENV_NATIVE_DIR
from softnpu.tools.bench import (
    cli,
    clients,
    comparison,
    copies,
    counters,
    infer,
    lists,
    load,
    memory,
    native,
    neighbours,
    recovery,
    scale,
    start,
    submit,
    tokens,
    weights,
    whole,
)
from softnpu.tools.bench.client import ClientAnswer, client
from softnpu.tools.bench.model import BenchModel
from softnpu.tools.bench.requests import run_in_turn
from softnpu.tools.bench.result import Figures, Measurement, absolute, compared
from softnpu.tools.bench.rounds import interleave, percentile, split
from softnpu.tools.bench.worker import Worker
from softnpu.tools.shared.failures import ToolError
from tests.support.cli import in_terminal, softnpu
from tests.support.dynamic import non_zero

_KEYS = ["bench", "metric", "value", "unit", "peer", "peer_value", "ratio", "target", "ok", "size"]
Bench = Callable[..., list[Measurement]]


@pytest.fixture
def bench(private_dir: Path) -> Bench:
    """Run `softnpu bench --json ARGUMENTS`; return its measurements, after its temporary files are gone."""
    folder = private_dir / "tmp"
    folder.mkdir()

    def run(*arguments: str | Path, **environment: str) -> list[Measurement]:
        words = softnpu("bench", "--json", *arguments, TMPDIR=str(folder), **environment).words
        assert list(folder.iterdir()) == []
        assert all(list(row) == _KEYS for row in json.loads(words)["figures"])
        return msgspec.json.decode(words, type=Figures).figures

    return run


# ------------------------------------------------------------ the benchmarks


@pytest.mark.parametrize(
    ("name", "peers", "one_core", "two_cores", "spinning"),
    [
        ("submit", {"semaphore pair", "AF_UNIX SEQPACKET"}, 2.5, 1.15, 0.08),
        ("native", {"semaphore pair"}, 1.6, 1.08, 0.06),
    ],
)
def test_round_trips_of_python_and_cpp_are_compared_with_their_peers(
    bench: Bench,
    native_dir: dict[str, str],
    name: str,
    peers: set[str],
    one_core: float,
    two_cores: float,
    spinning: float,
) -> None:
    every = bench(name, "-n", "30", **native_dir)
    found = [row for row in every if row.peer]
    assert all(row.bench == name and row.value > 0 and row.peer_value and row.ratio for row in found)
    several = len(os.sched_getaffinity(0)) > 1
    assert [row.target for row in every if not row.peer] == [3.0] * (name == "submit" and several)
    asleep = {row.peer for row in found if row.metric == "round trip asleep, one core"}
    assert peers <= asleep <= {*peers, "iceoryx2 event pair"}
    targets = {row.metric: row.target for row in found if row.peer == "semaphore pair"}
    assert targets.pop("round trip asleep, one core") == one_core
    if several:
        assert targets == {
            "round trip asleep, two cores": two_cores,
            "round trip with spin, two cores": spinning,
        }


def test_infer_gets_the_cpu_devices_numbers_without_a_copy(bench: Bench, digits: Path) -> None:
    found = {row.metric: row for row in bench("infer", digits, "-n", "30")}
    assert list(found) == [
        "digits: throughput",
        "digits: median latency",
        "digits: p90 latency",
        "digits: throughput, 3 in flight",
        "digits: staged per inference",
        "digits: outputs that differ",
    ]
    assert found["digits: throughput"].target == 0.7
    assert found["digits: throughput, 3 in flight"].target == 1.1
    for metric in ("digits: staged per inference", "digits: outputs that differ"):
        assert (found[metric].value, found[metric].ok) == (0, True)


def test_memory_counts_every_process(bench: Bench, digits: Path) -> None:
    found = {row.metric: row for row in bench("memory", digits, "--processes", "2", "--no-settle")}
    for way, peer in (("driver", "bare Python"), ("plugin", "a process with openvino")):
        own = found[f"digits, {way}: private pages of a client"]
        assert own.peer == peer
        assert own.value > (own.peer_value or 0) > 1
        total = found[f"digits, {way}: total, 2 processes"]
        parts = [found[f"digits, {way}: {part}"] for part in ("supervisor", "engine", "clients")]
        assert total.target == 1.5
        assert all(part.value > 1 for part in parts)
        assert total.value >= sum(part.value for part in parts) * 0.99


def test_clients_are_compared_with_one_and_with_as_many_processes_of_openvino(
    bench: Bench, digits: Path
) -> None:
    found = bench("clients", digits, "-n", "2", "--rounds", "1", "--seconds", "0.2")
    total = "digits: total throughput, 2 processes"
    assert [(row.metric, row.peer, row.target) for row in found[:2]] == [
        (total, "OpenVINO CPU, 1 process", None),
        (total, "OpenVINO CPU, 2 processes", 1.1),
    ]
    assert all(row.value > 0 and row.peer_value for row in found[:3])
    assert found[0].value == found[1].value
    assert (found[2].metric, found[2].target) == ("digits: fewest inferences of 2 processes", None)
    assert [(row.metric, row.value, row.ok) for row in found[3:]] == [
        ("digits: staged bytes", 0, True),
        ("digits: processes with outputs that differ", 0, True),
    ]


def test_whole_processes_with_and_without_a_daemon_are_compared(
    bench: Bench, native_dir: dict[str, str], private_dir: Path
) -> None:
    found = bench("start", "--rounds", "1", SOFTNPU_AUTOSTART="1", **native_dir)
    targets = {row.metric.removeprefix("digits: "): row.target for row in found[:-1]}
    assert targets == {
        "softnpu run, with a daemon": 1.3,
        "softnpu run, without": 1.4,
        "plugin, with a daemon": 1.1,
        "plugin, without": 1.4,
    }
    assert all(row.value > 0 and row.peer_value for row in found[:-1])
    assert (found[-1].value, found[-1].ok) == (0, True)
    (private_dir / "broken.xml").write_text("<net")
    complaint = softnpu("bench", "start", private_dir / "broken.xml", **native_dir).complaint
    assert complaint.startswith("a small program: ")


def test_ctrl_c_ends_it_silently_and_leaves_nothing(private_dir: Path) -> None:
    text, code = in_terminal("bench", "submit", interrupt_at="measuring", TMPDIR=str(private_dir))
    assert code == 128 + signal.SIGINT
    assert "Traceback" not in text
    assert list(private_dir.iterdir()) == []


# ------------------------------------------------------------ what cannot be measured


def test_a_model_that_cannot_be_measured_is_refused(private_dir: Path) -> None:
    complaint = softnpu("bench", "infer", "resnet").misuse
    assert (
        complaint == "model resnet: no such file; expected a file, or one of "
        "digits, magika, minilm, ppocr-det, romanizer, silero-vad, yolov8n"
    )
    data = ops.parameter([-1, 4], ov.Type.f32, name="data")
    path = private_dir / "open.xml"
    ov.serialize(ov.Model([ops.relu(data)], [data], "open"), path)
    assert "give --shape" in softnpu("bench", "infer", path).complaint.lower()
    ov.serialize(non_zero([4, 4]), path)
    assert "the shape of an output depends on the data" in softnpu("bench", "infer", path).complaint


def test_a_failing_client_reports_why(private_dir: Path) -> None:
    path = private_dir / "broken.xml"
    path.write_text("<net")
    complaint = softnpu("bench", "memory", path, "--no-settle").complaint
    assert complaint.startswith("client through driver: ")
    failing = client("openvino", private_dir / "none.sock", BenchModel("broken", path, {}))
    with failing, pytest.raises(ToolError, match="client through openvino: "):
        failing.wait_until_ready()


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({"PATH": "/nonexistent", "CXX": ""}, "C++ compiler: none of c++, g++, clang++; expected one that"),
        ({"CXX": "nonesuch"}, "C++ compiler: no nonesuch, which CXX names"),
        ({ENV_NATIVE_DIR: "/nonexistent"}, "native driver: no file /nonexistent"),
    ],
)
def test_native_without_compiler_or_library_is_refused(
    native_dir: dict[str, str], variables: dict[str, str], said: str
) -> None:
    assert softnpu("bench", "native", **{**native_dir, **variables}).complaint.startswith(said)


def test_a_program_that_ends_early_reports_why(
    native_dir: dict[str, str], monkeypatch: pytest.MonkeyPatch, private_dir: Path, tmp_path: Path
) -> None:
    monkeypatch.setenv(ENV_NATIVE_DIR, native_dir[ENV_NATIVE_DIR])
    library = native_library.find()
    program = native.build(library, native.find_compiler(), tmp_path)
    with (
        native.RoundTrips(library, program, private_dir / "none.sock", 0) as trips,
        pytest.raises(ToolError, match=r"^round_trip: it ended with code 1: .*no socket there"),
    ):
        trips.round(1)


# ------------------------------------------------------------ verdicts


def _missing_target(*_: object) -> Iterator[Measurement]:
    yield compared("submit", "round trip asleep, one core", "us", 25, "semaphore pair", 10)
    yield compared("submit", "round trip asleep, two cores", "us", 16, "semaphore pair", 10)


def test_only_check_fails_on_a_missed_target_and_flags_may_precede_the_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(submit, "run", _missing_target)

    missed = "missed: submit: round trip asleep, two cores: 1.6 of semaphore pair; target 1.15\n"

    def code(*arguments: str) -> int:
        finished = CliRunner().invoke(cli.app, arguments)
        if "--json" in arguments:
            assert [row["ok"] for row in json.loads(finished.stdout)["figures"]] == [True, False]
        else:
            assert "worse than the target of 1.15 x" in finished.stdout
        assert finished.stderr.endswith(missed) is ("--check" in arguments)
        return finished.exit_code

    assert code("submit") == code("submit", "--json") == code("--json", "submit") == 0
    assert code("submit", "--check") == code("--check", "submit") == code("--check", "--json", "submit") == 1


def test_completed_measurements_are_shown_when_others_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(_: int) -> Iterator[Measurement]:
        yield absolute("submit", "first", "us", 1)
        raise ToolError("second", found="no result")

    monkeypatch.setattr(submit, "run", run)
    finished = CliRunner().invoke(cli.app, ["submit", "--json"])
    assert isinstance(finished.exception, ToolError)
    assert [row["metric"] for row in json.loads(finished.stdout)["figures"]] == ["first"]


def test_without_a_command_all_benchmarks_run_even_if_native_cannot(monkeypatch: pytest.MonkeyPatch) -> None:
    def note(name: str) -> Callable[..., Iterator[Measurement]]:
        def run(*_: Any) -> Iterator[Measurement]:
            if name == "native":
                raise ToolError("C++ compiler", found="none")
            yield absolute(name, "nothing", "us", 1)

        return run

    modules = (submit, native, start, tokens, infer, clients, load, memory, lists, copies, recovery, weights)
    for module in (*modules, neighbours, scale, counters):
        monkeypatch.setattr(module, "run", note(module.BENCH))
    monkeypatch.setattr(whole, "find_model", lambda *_: None)

    def ran(*arguments: str) -> list[str]:
        finished = CliRunner().invoke(cli.app, [*arguments, "--json"])
        assert finished.exit_code == 0
        if "--counters" not in arguments:
            assert "not measured: native: C++ compiler: none" in finished.stderr
            assert "measuring 1 of 1" in finished.stderr
        return [row["bench"] for row in json.loads(finished.stdout)["figures"]]

    shortly = [
        *("submit", "start", "tokens", "infer", "infer", "clients", "clients"),
        *("load", "memory", "lists", "copy", "recovery"),
    ]
    assert ran() == shortly
    assert ran("--big") == [*shortly, "weights", "clients", "neighbours", "scale"]
    assert ran("--counters") == ["counters"]
    assert "--big: before lists; expected no command" in softnpu("bench", "--big", "lists").misuse


@pytest.mark.parametrize(
    "arguments",
    [("lists", "-n", "20", "--rounds", "3"), ("copy", "--size", "1MiB"), ("recovery", "--rounds", "1")],
)
def test_lists_copies_and_recovery_are_measured(arguments: tuple[str, ...]) -> None:
    finished = CliRunner().invoke(cli.app, [*arguments, "--json"])
    assert finished.exit_code == 0, finished.output
    assert {row["bench"] for row in json.loads(finished.output)["figures"]} == {arguments[0]}


def test_a_bound_applies_to_the_ratio_or_without_a_peer_to_the_value() -> None:
    asleep, copied = ("native", "round trip asleep, one core", "us"), ("copy", "256 MiB", "GiB/s")
    for figure, value, peer, target, ok in (
        (asleep, 16.0, "semaphore pair", 1.6, True),
        (asleep, 16.1, "semaphore pair", 1.6, False),
        (asleep, 99.0, "socket", None, None),
        (copied, 9.5, "numpy.copyto", 0.95, True),
        (copied, 9.4, "numpy.copyto", 0.95, False),
    ):
        row = compared(*figure, value, peer, 10)
        assert (row.ok, row.target) == (ok, target)
    assert absolute("b", "m", "B", 0, exactly=0).ok is True
    assert absolute("b", "m", "B", 0.001, exactly=0).ok is False
    assert absolute("b", "m", "B", 5).ok is None


def test_two_saved_runs_are_compared_by_their_ratios(tmp_path: Path) -> None:
    def run(name: str, latency: float, peer: float, throughput: float, *more: Measurement) -> Path:
        rows = [
            compared("infer", "latency", "ms", latency, "CPU", peer),
            compared("infer", "throughput", "1/s", throughput, "CPU", 10),
            absolute("infer", "outputs that differ", "outputs", 0, exactly=0),
            *more,
        ]
        (tmp_path / name).write_bytes(msgspec.json.encode(Figures(rows)))
        return tmp_path / name

    before = run("before", 10, 10, 10, absolute("copy", "gone", "ms", 1))

    def compare(after: Path, *flags: str) -> tuple[int, dict[str, tuple[float | None, bool]]]:
        finished = CliRunner().invoke(cli.app, ["compare", str(before), str(after), "--json", *flags])
        found = msgspec.json.decode(finished.stdout, type=comparison.Comparison)
        assert found.missing == ("copy: gone",)
        return finished.exit_code, {row.metric: (row.factor, row.slower) for row in found.changes}

    slow_machine = run("slow machine", 30, 30, 10)
    assert compare(slow_machine, "--check")[0] == 0
    slower = run("slower", 12, 10, 8)
    code, found = compare(slower, "--check")
    assert (code, compare(slower)[0], compare(slower, "--check", "--tolerance", "1.3")[0]) == (1, 0, 0)
    assert found == {
        "latency": (pytest.approx(1.2), True),
        "throughput": (pytest.approx(1.25), True),
        "outputs that differ": (None, False),
    }
    wrong = run("wrong", 10, 10, 10, absolute("copy", "new", "ms", 1))
    wrong.write_text(wrong.read_text().replace('"value":0.0', '"value":3.0'))
    code, found = compare(wrong, "--check")
    assert code == 1
    assert [metric for metric, (_, slower) in found.items() if slower] == ["outputs that differ"]
    shown = CliRunner().invoke(cli.app, ["compare", str(before), str(slower)]).stdout
    assert "slower" in shown
    assert "3 figures compared, 2 slower" in shown
    (tmp_path / "text").write_text("no run")
    assert "figures of benchmarks" in softnpu("bench", "compare", before, tmp_path / "text").complaint


# ------------------------------------------------------------ rounds and requests


def test_every_side_runs_in_every_round_and_the_order_rotates() -> None:
    order: list[str] = []

    def side(name: str, figure: float) -> Callable[[], float]:
        def run() -> float:
            order.append(name)
            return figure

        return run

    figures = interleave({"a": side("a", 1), "b": side("b", 2)}, rounds=3, rest_s=0)
    assert order == ["a", "b", "b", "a", "a", "b"]
    assert figures == {"a": [1, 1, 1], "b": [2, 2, 2]}


def test_percentiles_are_of_the_sorted_values_and_a_total_is_split_into_rounds() -> None:
    assert percentile(list(range(10, 0, -1)), 90) == 9
    assert percentile([7], 90) == 7
    assert [split(*total) for total in ((6000, 100), (10, 100), (1, 9))] == [(60, 100), (3, 3), (3, 1)]


class _Scripted(Worker):
    """A process of `bench clients` with scripted answers."""

    def __init__(self, count: int, seconds: float) -> None:
        self._answer = ClientAnswer(count, seconds, 0, "same")
        self.turns: list[float] = []

    def begin(self, amount: float = 0) -> None:
        self.turns.append(amount)

    def answer(self, _kind: Any, deadline_s: float) -> Any:
        assert self.turns[-1] < deadline_s
        return self._answer


def test_the_total_counts_all_inferences_and_the_share_all_rounds() -> None:
    turns: list[list[ClientAnswer]] = []
    assert clients._turn([_Scripted(10, 1.0), _Scripted(30, 2.0)], 1.0, turns) == 20
    assert clients._turn([_Scripted(30, 1.0), _Scripted(30, 1.0)], 1.0, turns) == 60
    share = clients._fairness("m", turns)
    assert (share.value, share.peer_value, share.ratio) == (40, 50, 0.8)


class _Recorded:
    """Tracks whether it is in flight, and how often it ran."""

    def __init__(self, outputs: list[Any] | None = None) -> None:
        self.outputs: list[Any] = outputs or []
        self.running = False
        self.ended = 0

    def run(self) -> None:
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
