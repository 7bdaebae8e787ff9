"""The parts of `softnpu compare` that need no device: figures, tolerances, verdict, search, reduction."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as ops

from softnpu.tools.compare import graph, show
from softnpu.tools.compare.bisect import Bisection, Probe, bisect
from softnpu.tools.compare.comparing import Comparing
from softnpu.tools.compare.dependencies import Dependencies
from softnpu.tools.compare.feeds import Feeds
from softnpu.tools.compare.graph import Layer
from softnpu.tools.compare.opening import Request, Sides
from softnpu.tools.compare.reduce import MOST_OPERATIONS, reduce
from softnpu.tools.compare.references import Step
from softnpu.tools.compare.statistics import measure, ulps
from softnpu.tools.compare.tolerances import Tolerances, parse
from softnpu.tools.compare.verdict import Alone, Role, Row, judge, with_causes
from softnpu.tools.shared.failures import ToolError

pytestmark = pytest.mark.quick

_ONE = np.array([1.0, -2.0, 0.0, 4.0], np.float32)


def _next(value: float, steps: int, dtype: Any) -> Any:
    found = np.array([value], dtype)
    for _ in range(steps):
        found = np.nextafter(found, np.array([np.inf], dtype))
    return found


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("value", [1.0, -1.0, 0.0, 1e-7])
def test_ulps_count_the_representable_numbers_between(dtype: Any, value: float) -> None:
    assert ulps(_next(value, 7, dtype), np.array([value], dtype)) == 7


def test_ulps_cross_zero_and_ignore_non_finite_values() -> None:
    least = np.array([np.finfo(np.float32).smallest_subnormal])
    assert ulps(least, -least) == 2
    assert ulps(np.array([-0.0], np.float32), np.array([0.0], np.float32)) == 0
    assert ulps(np.array([np.nan, np.inf, 1.0]), np.array([1.0, 1.0, 1.0])) == 0
    assert (
        ulps(np.array([-np.finfo(np.float64).max]), np.array([np.finfo(np.float64).max]))
        == 2 * (2047 << 52) - 2
    )
    assert ulps(np.array([1]), np.array([2])) is None


def test_non_finite_values_are_counted_on_both_sides() -> None:
    ours = np.array([np.nan, np.inf, -np.inf, 70000.0, 65504.0], np.float32)
    found = measure(ours, np.array([np.nan, 1.0, -np.inf, 70000.0, 65504.0], np.float32))
    assert (found.ours.nan, found.ours.infinite, found.ours.overflow) == (1, 2, 1)
    assert (found.theirs.nan, found.theirs.infinite, found.theirs.overflow) == (1, 1, 1)
    assert not found.within(Tolerances())
    assert measure(ours, ours).within(Tolerances())


@pytest.mark.parametrize(
    ("value", "reference", "is_within"),
    [
        (_ONE, _ONE * np.float32(1 + 5e-5), True),
        (_ONE, _ONE * np.float32(1 + 5e-4), False),
        (_ONE, _ONE + np.float32(3e-5), True),  # at 0: a tenth of the largest magnitude
        (_ONE * 1e-9, _ONE * 2e-9, True),  # absolute
        (_ONE, np.where(_ONE == 0, np.nan, _ONE), False),
        (_ONE, -_ONE, False),
        (_ONE, _ONE.reshape(2, 2), False),
        (_ONE.astype(np.float16), _ONE * np.float32(1.004), True),  # by the coarser type
        (np.array([1, 2]), np.array([1, 3]), False),
        (np.array([], np.float32), np.array([], np.float32), True),
    ],
)
def test_tolerances(value: Any, reference: Any, is_within: bool) -> None:
    assert measure(value, reference).within(Tolerances()) == is_within


def test_tolerances_by_type_are_set_and_coarser_arithmetic_counts() -> None:
    given = parse(["1e-3", "f16=0.5"], ["i64=0.25"], "f32", "f16")
    assert given.of("f32") == given.of("f16") == (0.5, 1e-2)
    assert given.of("bf16") == (1e-3, 1e-1)
    assert given.of("i64") == (0.0, 0.25)
    for wrong in (["-1"], ["x"], ["1", "2"], ["f32=nan"]):
        with pytest.raises(ToolError):
            parse(wrong, [], "f32")


def test_cosine_survives_any_magnitude() -> None:
    assert measure(_ONE * 2, _ONE).cosine == pytest.approx(1)
    assert measure(-_ONE, _ONE).cosine == pytest.approx(-1)
    huge = np.array([1e300, 1e-300])
    assert measure(huge, huge * 2).cosine == pytest.approx(1)
    assert measure(np.zeros(2), np.ones(2)).cosine == 0


def test_no_cosine_is_claimed_where_only_one_tensor_has_numbers() -> None:
    nothing = np.array([1, 2, math.nan])
    assert math.isnan(measure(nothing, np.array([1.0, 2, 3])).cosine)
    assert math.isnan(measure(nothing * math.nan, nothing * math.nan).cosine)
    assert measure(nothing, nothing * 2).cosine == pytest.approx(1)


# ---------------------------------------------------------------- graphs


def _graph(edges: dict[str, str], outputs: Sequence[str]) -> Dependencies:
    return Dependencies(
        list(edges), {layer: set(read.split()) for layer, read in edges.items()}, [[o] for o in outputs]
    )


def _chain(count: int) -> Dependencies:
    names = [f"l{number}" for number in range(count)]
    return _graph(dict(zip(names, ["", *names], strict=False)), names[-1:])


def _spread(edges: Dependencies, culprits: Collection[str]) -> set[str]:
    bad = set(culprits)
    for layer in edges.order:
        if bad & set(edges.parents[layer]):
            bad.add(layer)
    return bad


_BRANCHES = _graph(
    {"a": "", "b": "a", "c": "a", "d": "b", "e": "c b", "f": "a", "g": "d e", "h": "g f", "side": "f"},
    ["h", "side"],
)


@pytest.mark.parametrize("edges", [_chain(1), _chain(2), _chain(7), _chain(64), _BRANCHES])
def test_bisection_finds_every_layer_in_few_executions(edges: Dependencies) -> None:
    for culprit in edges.order:
        bad = _spread(edges, [culprit])
        searched = edges.leading_to([at for at, output in enumerate(edges.outputs) if bad & set(output)])
        asked: list[Sequence[str]] = []

        def execute(marked: Sequence[str], bad: set[str] = bad, asked: list[Sequence[str]] = asked) -> Probe:
            asked.append(marked)
            return Probe([layer for layer in marked if layer in bad], True)

        found = bisect(searched, execute)
        assert found == Bisection(culprit, len(asked))
        assert 1 + len(asked) <= math.log2(len(searched.order)) + 2


def test_bisection_finds_the_first_of_several_also_at_an_output_in_the_middle() -> None:
    edges = _graph({"a": "", "b": "a", "c": "a", "d": "c", "e": "d", "f": "e"}, ["b", "f"])
    bad = {"b", "f"}
    found = bisect(edges, lambda marked: Probe([layer for layer in marked if layer in bad], True))
    assert found.layer == "b"


def test_bisection_says_when_marking_hides_the_difference() -> None:
    found = bisect(_chain(9), lambda marked: Probe([], "l4" not in marked))
    assert (found.layer, found.hidden_by, found.executions) == ("l4", ("l4",), 1)


@pytest.mark.parametrize(
    ("needed", "expected"),
    [({"e"}, {"e"}), ({"e", "g"}, {"e", "g"}), ({"e", "c"}, {"e", "c"}), ({"e", "g", "h"}, {"e", "g", "h"})],
)
def test_reduction_keeps_the_fewest_layers_that_show_it(needed: set[str], expected: set[str]) -> None:
    assert reduce(_BRANCHES, "e", lambda layers: needed <= layers) == frozenset(expected)


def test_reduction_gives_up_beyond_its_largest_size() -> None:
    tried: list[frozenset[str]] = []

    def shows(layers: frozenset[str]) -> bool:
        tried.append(layers)
        return False

    assert reduce(_chain(30), "l15", shows) is None
    assert max(map(len, tried)) == MOST_OPERATIONS
    assert len(tried) == len(set(tried))


def test_a_layer_causes_what_it_shows_in_isolation_and_inherits_the_rest() -> None:
    good, bad = measure(_ONE, _ONE), measure(_ONE, 2 * _ONE)
    rows = [_row(name, [good, bad]) for name in ("first", "second", "third", "state")] + [
        _row("fine", [good, good])
    ]
    alone = {"first": Alone(bad), "second": Alone(good), "third": Alone(reason="cannot be")}
    found = with_causes(
        rows, {"state"}, lambda bad_rows: {row.name: alone[row.name] for row in bad_rows}, Tolerances()
    )
    assert [row.role for row in found] == [Role.CAUSES, Role.INHERITS, Role.UNKNOWN, Role.CAUSES, Role.EQUAL]
    assert found[2].note == "cannot be"


def _row(name: str, found: list[Any]) -> Row:
    number = next((at for at, each in enumerate(found) if not each.difference.identical), 0)
    return judge(name, "Add", found, number, Tolerances())


def test_a_part_takes_given_values_at_its_boundary() -> None:
    data = ops.parameter([2, 2], np.float32, name="data")
    relu = ops.relu(data, name="relu")
    halves = ops.split(relu, ops.constant(1), 2, name="halves")
    both = ops.add(halves.output(0), halves.output(1), name="both")
    shape = ops.shape_of(data, name="shape")
    model = ov.Model([both, shape], [data], "model")
    layers = {layer.key: layer for layer in graph.layers_of(model)}
    assert list(layers) == ["relu", "halves.0", "halves.1", "both"]
    value, half = np.ones((2, 2), np.float32), np.ones((2, 1), np.float32)
    values = {"data": value, "relu": value, "halves.0": half, "both": half}  # halves.1 has no counterpart

    alone = graph.part_of(model, [layers["both"], layers["relu"]], values, ())
    assert ({*alone.feeds}, alone.keys) == ({"halves.0", "relu/given", "data"}, ("both", "relu"))
    together = graph.part_of(model, [layers["both"]], values, {"halves.0", "both"})
    assert ({*together.feeds}, together.operations) == ({"relu"}, 2)
    with pytest.raises(ValueError, match="'data' has no value"):
        graph.part_of(model, [layers["relu"]], {}, ())

    read = graph.dependencies(model, values.keys() - {"data"})
    assert {key: set(parents) for key, parents in read.parents.items()} == {
        "relu": set(), "halves.0": {"relu"}, "both": {"halves.0", "relu"},
    }  # fmt: skip


# ---------------------------------------------------------------- marks


class _Marked:
    """Both sides at once: marking layers changes the outputs by `change`."""

    name, precision = "a device", "f32"

    def __init__(self, change: float) -> None:
        data = ops.parameter([4], np.float32, name="data")
        self.model = ov.Model([ops.relu(data, name="relu")], [data])
        self._change = change

    def outputs(self) -> list[tuple[str, set[str]]]:
        return [("relu", {"relu"})]

    def knows(self, layers: Sequence[Layer]) -> list[Layer]:
        return list(layers)

    def run(self, feeds: Feeds, layers: Sequence[Layer]) -> Iterator[Step]:
        for (data,) in feeds.steps:
            value = np.maximum(data, 0)
            yield Step(
                [value * np.float32(1 + self._change * bool(layers))], {each.key: value for each in layers}
            )


@pytest.mark.parametrize(
    ("change", "told"), [(0.0, "changed no bit"), (1e-6, "changed the outputs by up to")]
)
def test_marks_that_change_the_outputs_are_reported(change: float, told: str) -> None:
    side: Any = _Marked(change)
    comparing = Comparing(Sides(side, side, Feeds([[_ONE]], "one")), Tolerances())
    found = comparing.layers(comparing.outputs())
    assert found.marking is not None
    assert (found.marking.largest is not None) == bool(change)
    shown = show.Shown("m.xml", Request(Path("m.xml")), comparing.sides, Tolerances(), found, None)
    assert told in "\n".join(shown.notes())
    assert found.ok
