"""`softnpu bench`: every line of the table of targets is measured, judged and described; growth; pages."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from softnpu.driver.native_library import ENV_NATIVE_DIR
from softnpu.tools.bench import (
    cli,
    language_model,
    large_model,
    load,
    neighbours,
    page,
    scale,
    scale_clients,
    scale_models,
    scale_objects,
    scale_sessions,
    targets,
    tokens,
    weights,
)
from softnpu.tools.bench.result import Figures, Measurement, absolute, compared
from softnpu.tools.bench.scale_point import Point
from softnpu.tools.shared.failures import ToolError
from tests.support.cli import softnpu

_ROOT = Path(__file__).parents[2]
_CPU = "OpenVINO CPU"
_FIRST = "yolov8n, {}: FIL"
_TABLE = [
    ("load", "yolov8n, cold: FEIL", _CPU, 1.3),
    ("load", _FIRST.format("driver cache"), _CPU, 1.0),
    ("load", _FIRST.format("driver cache, loaded by another process"), _CPU, 0.6),
    ("load", _FIRST.format("import"), _CPU, 1.2),
    ("load", _FIRST.format("import, loaded by another process"), _CPU, 0.7),
    ("load", _FIRST.format("CACHE_DIR"), _CPU, 1.2),
    ("weights", "2.0 GiB, file: compile, cold", _CPU, 1.5),
    ("weights", "2.0 GiB, file: compile, cached", _CPU, 0.8),
    ("weights", "2.0 GiB, file: memory", _CPU, 0.6),
    ("weights", "2.0 GiB, process memory: compile, cold", _CPU, 1.5),
    ("weights", "2.0 GiB, process memory: peak memory", "the weights", 2.0),
    ("start", "digits: softnpu run, with a daemon", _CPU, 1.3),
    ("start", "digits: softnpu run, without", _CPU, 1.4),
    ("start", "digits: plugin, with a daemon", _CPU, 1.1),
    ("start", "digits: plugin, without", _CPU, 1.4),
    ("clients", "yolov8n: total throughput, 8 processes", f"{_CPU}, 1 process", 1.0),
    ("clients", "yolov8n: total throughput, 8 processes", f"{_CPU}, 8 processes", 1.05),
    ("clients", "yolov8n: total throughput, 64 processes", f"{_CPU}, 1 process", 0.97),
    ("clients", "yolov8n: total throughput, 64 processes", f"{_CPU}, 64 processes", 1.3),
    ("clients", "yolov8n: fewest inferences of 64 processes", "mean of all", 0.85),
    ("clients", "digits: total throughput, 8 processes", f"{_CPU}, 8 processes", 1.1),
    ("memory", "minilm, driver: total, 4 processes", "one process", 1.12),
    ("memory", "minilm, plugin: total, 4 processes", "one process", 1.2),
    ("memory", "minilm, driver: private pages of a client", "bare Python", 4.5),
    ("memory", "minilm, plugin: private pages of a client", "a process with openvino", 1.1),
    ("infer", "digits: throughput", _CPU, 0.7),
    ("infer", "digits: throughput, 3 in flight", _CPU, 1.1),
    ("tokens", "12 layers: plugin", _CPU, 0.98),
    ("tokens", "12 layers: unmodified OpenVINO", _CPU, 0.95),
    ("submit", "round trip asleep, two cores", "semaphore pair", 1.15),
    ("native", "round trip asleep, two cores", "semaphore pair", 1.08),
    ("submit", "round trip asleep, one core", "semaphore pair", 2.5),
    ("native", "round trip asleep, one core", "semaphore pair", 1.6),
    ("submit", "round trip with spin, two cores", "semaphore pair", 0.08),
    ("native", "round trip with spin, two cores", "semaphore pair", 0.06),
    ("copy", "256.0 MiB, from host to device memory", "numpy.copyto", 0.95),
    ("farm", "a batch of 32, 2 at once", "without Ray", 1.01),
    ("neighbours", "an inference now and then beside loads and doorbells", "alone", 2.0),
    ("scale", "clients: memory, at the largest", "1, at the smallest", 1.3),
]
"""Every figure with a target, as `softnpu bench` names it."""
_MORE_IS_BETTER = ("clients", "infer", "tokens", "copy")


@pytest.fixture
def _briefly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten benchmarks: times are not checked, so daemons need not settle and a few inferences suffice."""
    for counted in (scale_clients, scale_models):
        monkeypatch.setattr(counted, "_INFERENCES", 20)
    monkeypatch.setattr(scale_objects, "_MOST_ROUNDS", 1)
    for module in (load, weights, scale_clients, scale_sessions):
        monkeypatch.setattr(module, "wait_for_rest", lambda _: None)


# ------------------------------------------------------------ the table


@pytest.mark.parametrize(("bench", "metric", "peer", "bound"), _TABLE)
def test_every_figure_is_judged_by_its_target(bench: str, metric: str, peer: str, bound: float) -> None:
    better, worse = (bound + 0.001, bound - 0.001)
    if bench not in _MORE_IS_BETTER:
        better, worse = worse, better
    for ratio, ok in ((bound, True), (better, True), (worse, False)):
        row = compared(bench, metric, "", ratio, peer, 1)
        assert (row.target, row.ok) == (bound, ok)


def test_every_target_has_a_figure() -> None:
    used = {targets.find(bench, metric, peer) for bench, metric, peer, _ in _TABLE}
    for_any_model = {
        targets.find("infer", "magika: throughput", _CPU),
        targets.find("memory", "yolov8n, plugin: total, 8 processes", "one process"),
        targets.find("clients", "digits: total throughput, 8 processes", f"{_CPU}, 1 process"),
        targets.find("neighbours", "an inference back to back beside computation", "alone"),
    }
    assert used | for_any_model == set(targets.TARGETS)


def test_the_document_has_every_target() -> None:
    text = (_ROOT / "docs/benchmarks.md").read_text()
    rows = [[cell.strip(" `") for cell in re.split(r"(?<!\\)\|", line)] for line in text.splitlines()]
    described = {(row[1], row[2], row[3], row[4]) for row in rows if len(row) > 5}
    for target in targets.TARGETS:
        if target.bound is not None:
            bound = f"{'at least' if target.at_least else 'at most'} {target.bound:g}"
            assert (target.bench, target.metric, target.peer, bound) in described


# ------------------------------------------------------------ weights, tokens, growth


def _judged(rows: list[Measurement]) -> set[tuple[str, str]]:
    return {(row.metric, row.peer or "") for row in rows if row.target is not None and row.peer}


@pytest.mark.usefixtures("_briefly")
def test_weights_in_a_file_and_in_process_memory_are_compiled_and_counted() -> None:
    size = 1 << 20
    found = list(weights.run(size, 1))
    assert _judged(found) == {
        (metric.replace("2.0 GiB", "1.0 MiB"), peer)
        for bench, metric, peer, _ in _TABLE
        if bench == "weights"
    }
    assert (found[-1].metric, found[-1].value) == ("1.0 MiB: outputs that differ", 0)
    assert all(row.value > 0 and row.peer_value for row in found[:-1])
    assert 0.9 * size < large_model.weights_of(size) <= size


def test_tokens_of_all_sides_are_the_same(
    native_dir: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ENV_NATIVE_DIR, native_dir[ENV_NATIVE_DIR])
    found = list(tokens.run(2, 16, 5, 2))
    assert [(row.metric, row.target) for row in found[:2]] == [
        ("2 layers: plugin", 0.98),
        ("2 layers: unmodified OpenVINO", 0.95),
    ]
    assert (found[2].value, found[2].ok) == (0, True)
    variables = language_model.build(2, 16).get_variables()
    assert len(variables) == 4


@pytest.mark.usefixtures("_briefly")
@pytest.mark.parametrize("axis", scale.AXES, ids=lambda axis: axis.name)
def test_growth_is_measured_at_every_size(axis: scale.Axis) -> None:
    sizes = (1 << 16,) if axis.name == "model size" else (1, 3)
    found = list(scale.curves(axis.name, axis.measure(sizes)))
    curves = {row.metric for row in found if row.size is not None}
    assert curves
    for curve in curves:
        points = [row for row in found if row.metric == curve]
        assert [row.size for row in points] == list(sizes)
    if len(sizes) == 1:
        return
    verdicts = [row for row in found if row.target is not None]
    assert {row.metric.removesuffix(", at the largest") for row in verdicts} == {
        curve for curve in curves if "OpenVINO CPU" not in curve
    }
    assert all((row.peer, row.target) == (f"{sizes[0]}, at the smallest", 1.3) for row in verdicts)


def test_a_growing_cost_misses_even_if_the_smallest_is_not_cheapest() -> None:
    def verdicts(*values: float) -> list[tuple[str | None, float | None, bool | None]]:
        points = [Point("time", 10**at, value, "us") for at, value in enumerate(values)]
        found = list(scale.curves("things", iter(points)))
        assert [row.value for row in found[: len(values)]] == list(values)
        return [(row.peer, row.ratio, row.ok) for row in found[len(values) :]]

    assert verdicts(10, 11, 13) == [("1, at the smallest", 1.3, True), ("at the cheapest", 1.3, None)]
    assert verdicts(10, 5, 14) == [("1, at the smallest", 1.4, False), ("at the cheapest", 2.8, None)]


def test_an_inference_beside_each_flood_is_compared_with_one_alone() -> None:
    found = list(neighbours.run(1, 0.05))
    judged = {row.metric for row in found if row.target == 2.0 and row.peer == "alone"}
    assert len(judged) == 2 * sum("computation" not in each.name for each in neighbours.NEIGHBOURS)
    assert len(found) == 3 * len(neighbours.NEIGHBOURS)
    assert all(row.value > 0 for row in found)


def test_an_unknown_axis_is_refused() -> None:
    with pytest.raises(ToolError, match="axis clouds: no such axis; expected one of clients, models, "):
        list(scale.run(["clouds"], 0))


# ------------------------------------------------------------ pages and comparisons

_MET = compared("submit", "round trip asleep, one core", "us", 20, "semaphore pair", 10)
_MISSED = compared("submit", "round trip asleep, two cores", "us", 30, "semaphore pair", 10)


def test_a_page_shows_every_figure_its_verdict_and_the_curves(tmp_path: Path) -> None:
    points = [absolute("scale", "clients: inference", "us", value, size=value) for value in (4, 64)]
    runs = [tmp_path / "round trips", tmp_path / "growth"]
    for path, rows in zip(runs, ([_MET, _MISSED], points), strict=True):
        path.write_bytes(msgspec.json.encode(Figures(rows)))
    page_file = tmp_path / "page.html"
    softnpu("bench", "page", *runs, "-o", page_file).words  # noqa: B018 - it must go well
    text = page_file.read_text()
    assert "1 of 2 targets met" in text
    said = "Python, asleep, two cores: 3 x, worse than the target of 1.15 x (docs/benchmarks.md: submit)"
    assert said in text
    assert text.count("<svg") == 4
    assert "clients: inference" in text
    assert text.count(">missed</span>") == text.count(">met</span>") == 1


def test_a_benchmark_writes_its_page_beside_its_document(tmp_path: Path) -> None:
    page_file = tmp_path / "page.html"
    short = ("lists", "-n", "5", "--rounds", "3")
    finished = softnpu("bench", *short, "--json", "--html", page_file)
    rows = msgspec.json.decode(finished.words, type=Figures).figures
    assert all(row.metric in page_file.read_text() for row in rows)
    complaint = softnpu("bench", "--html", tmp_path / "none" / "page.html", *short).misuse
    assert "no such directory" in complaint


def test_the_bar_of_a_missed_target_ends_right_of_it() -> None:
    assert page.cost_of_target(_MET) == pytest.approx(0.8)
    assert page.cost_of_target(_MISSED) == pytest.approx(3 / 1.15, rel=1e-3)
    slow = compared("copy", "1 MiB", "GiB/s", 4.75, "numpy.copyto", 10)
    fast = compared("copy", "1 MiB", "GiB/s", 19, "numpy.copyto", 10)
    assert (page.cost_of_target(slow), page.cost_of_target(fast)) == (2, 0.5)
    assert page.cost_of_target(absolute("copy", "bytes", "B", 1, exactly=0)) is None


def test_a_comparison_names_the_slowed_figure_and_size(tmp_path: Path) -> None:
    def run(name: str, *values: float) -> str:
        rows = [
            _MET,
            *(
                absolute("scale", "clients: inference", "us", value, size=4**at)
                for at, value in enumerate(values)
            ),
            compared("clients", "m: fewest inferences of 64 processes", "1", values[0], "mean of all", 10),
        ]
        (tmp_path / name).write_bytes(msgspec.json.encode(Figures(rows)))
        return str(tmp_path / name)

    before, after = run("before", 10, 10, 10), run("after", 8, 10, 20)
    finished = CliRunner().invoke(cli.app, ["compare", before, after, "--check"])
    assert finished.exit_code == 1
    assert finished.stderr.splitlines() == [
        "slower: scale: clients: inference, 16: 10 before, 20 after, worse by 2.00",
        "slower: clients: m: fewest inferences of 64 processes, against mean of all: 1 before, 0.8 after, "
        "worse by 1.25",
    ]
