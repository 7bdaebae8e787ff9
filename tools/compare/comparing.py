"""The comparison: outputs, then layers or a search for the first, then the smallest part that differs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy.typing as npt
import openvino as ov

from softnpu.emulator.openvino import errors as openvino_errors
from softnpu.plugin import NpuError
from softnpu.tools.compare import graph
from softnpu.tools.compare.bisect import Bisection, Probe, bisect
from softnpu.tools.compare.candidate import source_of
from softnpu.tools.compare.dependencies import Dependencies
from softnpu.tools.compare.graph import Layer, Part
from softnpu.tools.compare.opening import Sides
from softnpu.tools.compare.reduce import reduce
from softnpu.tools.compare.references import Step
from softnpu.tools.compare.statistics import Statistics, measure, worst
from softnpu.tools.compare.tolerances import Tolerances
from softnpu.tools.compare.verdict import Alone, Role, Row, judge, with_causes
from softnpu.tools.shared.comparison import Difference
from softnpu.tools.shared.failures import ToolError

Array = npt.NDArray[Any]
Values = Mapping[str, Array]

_ALONE_AT_ONCE = 32
"""Layers tried in isolation in one model: one compilation for all, without many megabytes of inputs."""


@dataclass(frozen=True)
class Marking:
    """The effect of marking on the outputs: None if bitwise unchanged, else the largest difference."""

    layers: int
    largest: Difference | None = None


@dataclass(frozen=True)
class Outcome:
    """The result. `unpaired` layers have no counterpart in the reference; `executions` are those of the whole
    model on the NPU, not of parts of it.
    """

    outputs: Sequence[Row]
    layers: Sequence[Row] = ()
    unpaired: int = 0
    marking: Marking | None = None
    bisection: Bisection | None = None
    executions: int = 1
    candidates: int = 0

    @property
    def bad(self) -> list[Row]:
        """The outputs out of tolerance."""
        return [row for row in self.outputs if row.bad]

    @property
    def causes(self) -> list[Row]:
        """The layers out of tolerance by themselves."""
        return [row for row in self.layers if row.role is Role.CAUSES]

    @property
    def first(self) -> Row | None:
        """The first layer out of tolerance in execution order, of the first inference with one."""
        bad = [row for row in self.layers if row.bad]
        return min(bad, key=lambda row: row.step) if bad else None

    @property
    def begins(self) -> Row | None:
        """The first layer that differs in any bit: its inputs are equal, so the difference is its own."""
        differing = [row for row in self.layers if row.role is not Role.EQUAL]
        return min(differing, key=lambda row: row.step) if differing else None

    @property
    def ok(self) -> bool:
        """Whether every output is in tolerance and no layer causes a difference. Rounding may accumulate."""
        return not self.bad and all(row.role not in (Role.CAUSES, Role.UNKNOWN) for row in self.layers)

    @property
    def culprit(self) -> Row | None:
        """The layer to look at: the first that causes a difference, else the first out of tolerance."""
        return min(self.causes, key=lambda row: row.step, default=self.first)


@dataclass
class Comparing:
    """One comparison. Its methods are called in definition order; each executes models."""

    sides: Sides
    tolerances: Tolerances
    progress: Callable[[str], None] = lambda _: None
    values: dict[str, Array] = field(default_factory=dict)
    """The reference's values of the first inference out of tolerance, and its inputs, by layer."""
    _plain: list[Sequence[Array]] = field(default_factory=list)

    def outputs(self) -> Outcome:
        """Compare the outputs, with nothing marked."""
        self.progress("outputs")
        candidate, reference, feeds = self.sides.candidate, self.sides.reference, self.sides.feeds
        by_output: list[list[Statistics]] = [[] for _ in candidate.outputs()]
        steps = zip(candidate.run(feeds, ()), reference.run(feeds, ()), strict=True)
        for ours, theirs in steps:
            self._plain.append(ours.outputs)
            for statistics, value, expected in zip(by_output, ours.outputs, theirs.outputs, strict=True):
                statistics.append(measure(value, expected))
        names = [name for name, _ in candidate.outputs()]
        rows = [self._row(name, "Result", each) for name, each in zip(names, by_output, strict=True)]
        return Outcome(rows)

    def layers(self, outcome: Outcome) -> Outcome:
        """Compare every layer with a counterpart in the reference, and find those that cause a difference."""
        layers, unpaired = self._paired()
        self.progress(f"{len(layers)} layers")
        rows, marking = self._compare_marked(layers)
        states = {layer.key for layer in layers if layer.is_state}
        by_key = {layer.key: layer for layer in layers}

        def try_alone(bad: Sequence[Row]) -> Mapping[str, Alone]:
            return self._compare_alone([by_key[row.name] for row in bad])

        rows = with_causes(rows, states, try_alone, self.tolerances)
        return replace(outcome, layers=rows, unpaired=unpaired, marking=marking, executions=2)

    def bisect(self, outcome: Outcome) -> Outcome:
        """Search for the first layer out of tolerance, marking few at a time."""
        layers, unpaired = self._paired()
        bad = [at for at, row in enumerate(outcome.outputs) if row.bad]
        if not bad:
            return replace(outcome, unpaired=unpaired)
        searched = self._dependencies(layers).leading_to(bad)
        if not searched.order:
            raise ToolError("--bisect", found="no layer has a counterpart in the reference", expected="some")
        by_key = {layer.key: layer for layer in layers}
        last = min(outcome.outputs[at].step for at in bad)
        self._know([by_key[key] for key in searched.order], last)
        probes = _Probes(self, by_key, last, bad)
        ended = bisect(searched, probes)
        statistics = probes.seen.get(ended.layer, outcome.outputs[bad[0]].statistics)
        row = Row(ended.layer, by_key[ended.layer].kind, statistics, Role.CAUSES, last)
        return replace(
            outcome,
            layers=[row],
            unpaired=unpaired,
            marking=probes.marking,
            bisection=ended,
            executions=1 + ended.executions,
            candidates=len(searched.order),
        )

    def smallest_part(self, outcome: Outcome) -> tuple[Part, Values] | None:
        """Return the smallest part that shows the culprit's difference, and its expected results."""
        culprit = outcome.culprit
        layers, _ = self._paired()
        by_key = {layer.key: layer for layer in layers}
        if culprit is None or by_key[culprit.name].is_state:
            return None
        dependencies = self._dependencies(layers)
        parts: dict[frozenset[str], Part] = {}

        def shows(keys: frozenset[str]) -> bool:
            self.progress(f"{len(keys)} of the layers")
            part = self._part(dependencies, [by_key[key] for key in dependencies.order if key in keys])
            if part is None:
                return False
            parts[keys] = part
            return any(
                not measure(value, self.values[key]).within(self.tolerances)
                for key, value in zip(part.keys, self.sides.candidate.run_part(part), strict=True)
            )

        keys = reduce(dependencies, culprit.name, shows)
        if keys is None:
            return None
        part = parts[keys]
        return part, {key: self.values[key] for key in part.keys}

    # ------------------------------------------------------------

    def _row(self, name: str, kind: str, by_step: Sequence[Statistics]) -> Row:
        return judge(name, kind, by_step, worst(by_step, self.tolerances), self.tolerances)

    @property
    def _model(self) -> ov.Model:
        return source_of(self.sides.candidate, f"layers of {self.sides.candidate.name}")

    def _paired(self) -> tuple[list[Layer], int]:
        """Return the layers with a counterpart, and the number without."""
        layers = graph.layers_of(self._model)
        known = self.sides.reference.knows(layers)
        return known, len(layers) - len(known)

    def _dependencies(self, layers: Sequence[Layer]) -> Dependencies:
        return graph.dependencies(self._model, {layer.key for layer in layers})

    def _compare_marked(self, layers: Sequence[Layer]) -> tuple[list[Row], Marking]:
        """Return all layers' rows and the effect of marking. Keep the first bad inference's values."""
        by_layer: dict[str, list[Statistics]] = {layer.key: [] for layer in layers}
        changes: list[Statistics] = []
        feeds, bad = self.sides.feeds, False
        steps = zip(
            self.sides.candidate.run(feeds, layers), self.sides.reference.run(feeds, layers), strict=True
        )
        for number, (ours, theirs) in enumerate(steps):
            changes += self.changes(number, ours)
            for layer in layers:
                by_layer[layer.key].append(measure(ours.layers[layer.key], theirs.layers[layer.key]))
            if not bad:
                self.values = {**theirs.layers, **self._inputs(number)}
                bad = any(not each[-1].within(self.tolerances) for each in by_layer.values())
        rows = [self._row(layer.key, layer.kind, by_layer[layer.key]) for layer in layers]
        return rows, _marking(len(layers), changes)

    def changes(self, number: int, step: Step) -> list[Statistics]:
        """Compare the outputs of an inference with marks to those without."""
        return [measure(value, plain) for value, plain in zip(step.outputs, self._plain[number], strict=True)]

    def _know(self, layers: Sequence[Layer], last: int) -> None:
        self.progress("reference")
        for number, step in enumerate(self.sides.reference.run(self.sides.feeds, layers)):
            if number == last:
                self.values = {**step.layers, **self._inputs(number)}

    def _inputs(self, number: int) -> Values:
        names = [port.get_node().get_friendly_name() for port in self._model.inputs]
        return dict(zip(names, self.sides.feeds.steps[number], strict=True))

    def _compare_alone(self, layers: Sequence[Layer]) -> dict[str, Alone]:
        """Test every layer in isolation on the reference's values: many in one model if possible."""
        results: dict[str, Alone] = {}
        for at in range(0, len(layers), _ALONE_AT_ONCE):
            some = layers[at : at + _ALONE_AT_ONCE]
            self.progress(f"layers alone, {at + len(some)} of {len(layers)}")
            try:
                results.update(self._together(some))
            except (NpuError, RuntimeError, ValueError):
                for layer in some:
                    results[layer.key] = self._single(layer)
        return results

    def _together(self, layers: Sequence[Layer]) -> dict[str, Alone]:
        part = graph.part_of(self._model, layers, self.values, ())
        values = self.sides.candidate.run_part(part)
        return {
            key: Alone(measure(value, self.values[key])) for key, value in zip(part.keys, values, strict=True)
        }

    def _single(self, layer: Layer) -> Alone:
        try:
            return self._together([layer])[layer.key]
        except (NpuError, RuntimeError, ValueError) as error:
            return Alone(reason=f"not alone: {openvino_errors.reason(error)}")

    def _part(self, dependencies: Dependencies, layers: Sequence[Layer]) -> Part | None:
        """Return some layers as a model whose results are read by others; None if they cannot be isolated."""
        keys = {layer.key for layer in layers}
        read = {key for output in dependencies.outputs for key in output}
        read.update(
            parent for key in dependencies.order if key not in keys for parent in dependencies.parents[key]
        )
        wanted = [layer for layer in layers if layer.key in read] or [layers[-1]]
        try:
            return graph.part_of(self._model, wanted, self.values, keys)
        except (RuntimeError, ValueError):
            return None


class _Probes:
    """The executions of a search; `seen` has the measurements of each layer that was out of tolerance."""

    def __init__(
        self, comparing: Comparing, layers: Mapping[str, Layer], last: int, bad: Sequence[int]
    ) -> None:
        self._comparing, self._layers, self._last, self._bad = comparing, layers, last, bad
        self.seen: dict[str, Statistics] = {}
        self.marking: Marking | None = None

    def __call__(self, keys: Sequence[str]) -> Probe:
        comparing = self._comparing
        comparing.progress(f"{len(keys)} layers marked")
        marked = [self._layers[key] for key in keys]
        feeds = replace(comparing.sides.feeds, steps=comparing.sides.feeds.steps[: self._last + 1])
        *_, step = comparing.sides.candidate.run(feeds, marked)
        changes = comparing.changes(self._last, step)
        marking = _marking(len(keys), changes)
        if self.marking is None or marking.largest is not None:
            self.marking = marking
        bad = []
        for key in keys:
            statistics = measure(step.layers[key], comparing.values[key])
            if not statistics.within(comparing.tolerances):
                bad.append(key)
                self.seen[key] = statistics
        # an output changed by marking beyond tolerance is no longer the one that was bad
        still = [changes[at].within(comparing.tolerances) for at in self._bad]
        return Probe(bad, any(still))


def _marking(layers: int, changes: Sequence[Statistics]) -> Marking:
    changed = [each.difference for each in changes if not each.difference.identical]
    return Marking(layers, max(changed, key=lambda each: each.relative, default=None))
