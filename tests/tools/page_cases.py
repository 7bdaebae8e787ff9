"""Pages for `test_pages.py`, rendered in their own process: matplotlib keeps fonts open, a session memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import openvino as ov
from openvino import opset13 as ops

from softnpu.tools.bench import page as bench_page
from softnpu.tools.bench.result import Measurement
from softnpu.tools.check import page as check_page
from softnpu.tools.check.findings import Finding, Findings, Kind, Place
from softnpu.tools.compare import page as compare_page
from softnpu.tools.compare.comparing import Comparing
from softnpu.tools.compare.opening import Request, open_sides
from softnpu.tools.compare.show import Shown
from softnpu.tools.compare.tolerances import parse
from softnpu.tools.compare.verdict import Role
from softnpu.tools.predict import page as predict_page
from softnpu.tools.predict.prediction import predict
from softnpu.tools.predict.section import Samples
from softnpu.tools.report import page as report_page
from softnpu.tools.report.gathering import gather
from tests.prediction import models
from tests.prediction.overflowing import absorbed, in_a_body
from tests.support.defects import seed_defect
from tests.support.templates import noting


def _saved(model: ov.Model, path: Path) -> Path:
    ov.save_model(model, path, compress_to_fp16=False)
    return path


def _dense(layers: int = 1, *, state: bool = False) -> ov.Model:
    """Matrix products followed by a softmax; the first one is `dense`."""
    data = ops.parameter([1, 4, 6], ov.Type.f32, name="data")
    value = ops.matmul(data, ops.constant(np.eye(6, dtype=np.float32) * 3e4), False, False)
    value.set_friendly_name("dense")
    for _ in range(layers - 1):
        value = ops.softmax(value, 2)
    sinks = []
    if state:
        memory = ops.read_value(ops.constant(np.zeros((1, 4, 6), np.float32)), "memory")
        value = ops.add(value, memory)
        sinks.append(ops.assign(value, "memory"))
    return ov.Model([ops.result(ops.softmax(value, 2))], sinks, [data], "model")


def _shown(request: Request, *, layers: bool = False) -> Shown:
    sides = open_sides(request)
    tolerances = parse([], [], sides.candidate.precision, sides.reference.precision)
    comparing = Comparing(sides, tolerances)
    outcome = comparing.outputs()
    return Shown(
        str(request.model), request, sides, tolerances, comparing.layers(outcome) if layers else outcome, None
    )


def comparison(page: Path) -> None:
    """Equal, wrong in the second inference, and wrong in a layer."""
    good = _saved(_dense(), page.with_name("good.xml"))
    bad = _saved(seed_defect(_dense(), "constant", "dense"), page.with_name("bad.xml"))

    compare_page.write_page(_shown(Request(good), layers=True), page)
    assert "every number equals, bit by bit" in page.read_text()
    compare_page.write_page(_shown(Request(bad, against=str(good), steps=2), layers=True), page)
    text = page.read_text()
    assert 'class="bad">causes<' in text
    assert "first out of tolerance: dense" in text.partition("<details")[0]
    assert "above 65504, the largest of f16" in text
    shown = _shown(Request(good, steps=2))
    row = replace(shown.outcome.outputs[0], step=1, note="shape [2] against [3]")
    compare_page.write_page(replace(shown, outcome=replace(shown.outcome, outputs=[row])), page)
    assert "inference 2" in page.read_text()


def report(page: Path) -> None:
    """A small model and one too large for boxes, with and without sharing and caching."""
    for model, config in ((_dense(), {}), (_dense(100), {"PERFORMANCE_HINT": "LATENCY"})):
        request = Request(_saved(model, page.with_name("model.xml")), config=config)
        gathered = gather(request, 2, lambda _: None)
        report_page.write_page(gathered, request, page)
        for part in ("Model", "Memory", "Compile and load", "Time by kind", "Time by layer", "Roofline"):
            assert f"<h2>{part}" in page.read_text()
    other = gathered.compilations[0]
    compilations = [replace(other, load_s=0.0, cached=True), replace(other, load_s=0.1)]
    wrong = [replace(row, role=Role.OUT_OF_TOLERANCE) for row in gathered.outcome.outputs]
    gathered = replace(
        gathered,
        compilations=compilations,
        parameters={"f32": (1, 4)},
        outcome=replace(gathered.outcome, outputs=wrong),
    )
    report_page.write_page(gathered, request, page)
    assert "<dt>load</dt><dd>shared</dd>" in page.read_text()
    assert page.read_text().count('<details class="part" open>') == 1, "the comparison, which is wrong"


def prediction(page: Path) -> None:
    """Refused, wrong in f16, also by infinity, without shapes, layers or hints, with a body, each alone."""
    case = absorbed()
    given = Samples(arrays={"x": case.given[0]})
    for prediction in (
        predict(case.model, samples=given),
        predict(models.with_unsupported(), ["3720"]),
        predict(_dense(), ["3720"]),
        predict(models.unary(ops.relu, 1, -1), ["4000"]),
        predict(models.unary(lambda x: x, 1, 4), ["4000"], only=["speed"]),
        predict(in_a_body().model, ["3720"], only=["right"]),
        predict(models.with_unsupported(), ["3720"], only=["compile"]),
        predict(models.beyond_f16(), ["3720"], config={"NPU_F16_OVERFLOW": "INFINITY"}, only=["right"]),
        predict(_dense(), ["3720"], only=["right"]),
    ):
        predict_page.write_page(prediction, page)
        assert prediction.model in page.read_text()
    predict_page.write_page(predict(_dense(), ["4000"], only=["speed"]), page)
    assert ">how fast</span>" in page.read_text().partition("<details")[0]


def _row(bench: str = "start", **given: Any) -> Measurement:
    return Measurement(bench=bench, metric="plugin, without", value=2.5, unit="ms", **given)


def benchmarks(page: Path) -> None:
    """No target, one that is met, missed ones with and without a peer and an explanation, a curve."""
    bench_page.write([_row()], "2 cores", page)
    assert "0 of 0 targets met" in page.read_text()
    against: dict[str, Any] = {"peer": "OpenVINO CPU", "peer_value": 1.0, "ratio": 2.5}
    curve = [_row(size=size) for size in (1, 10)]
    missed = [_row(**against, target=2.0, ok=False), _row("recovery", target=2.0, ok=False)]
    bench_page.write([_row(**against, target=3.0, ok=True), *missed, *curve], "2 cores", page)
    assert "1 of 3 targets met" in page.read_text()


def checked(page: Path) -> None:
    """Nothing found, one finding, and several, with what was not seen."""
    check_page.write_page(page, Findings(submissions=1), 0, "app.py")
    assert "nothing found" in page.read_text()
    places = (Place("writes <bytes>", "app.py (17)", ("/app.py:1 main",)), Place("made", "app.py (17)"))
    race, unused = Finding(Kind.RACE, "two queues", places, "wait"), Kind.UNUSED_MEMORY
    check_page.write_page(page, Findings({race.key: race}), 0, "app.py")
    more = Findings({race.key: replace(race, count=2), (1,): replace(race, kind=unused)}, ["session 3"], 7)
    check_page.write_page(page, more, 3, "app.py")
    text = page.read_text()
    assert "writes &lt;bytes&gt;" in text
    assert "2 findings" in text
    assert "3 suppressed" in text


CASES: Final[dict[str, Callable[[Path], None]]] = {
    "check.html": checked,
    "compare.html": comparison,
    "report.html": report,
    "prediction.html": prediction,
    "bench.html": benchmarks,
}
"""For each template, the function that renders its page in every branch."""


def left_out(template: str, page: Path) -> list[str]:
    """Render a page in all its cases; return the branches that were never taken."""
    with noting() as branches:
        CASES[template](page)
    return branches.left_out
