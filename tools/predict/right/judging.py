"""Judge whether a model is right in f16: run it, locate the errors, find a repair."""

from __future__ import annotations

import math
import time
from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

import openvino as ov

from softnpu.emulator.arithmetic import dialect, rounding
from softnpu.emulator.arithmetic import operation_types as types
from softnpu.emulator.arithmetic.settings import HIGHER_PRECISION, INFINITY, SATURATE, Arithmetic
from softnpu.emulator.common.model_bodies import all_bodies, bodies_of
from softnpu.tools.compare.feeds import Feeds
from softnpu.tools.predict.right import causes, constants
from softnpu.tools.predict.right.causes import Findings, Seen
from softnpu.tools.predict.right.measuring import (
    NOTHING,
    SMALLEST_NORMAL,
    Extent,
    error_of,
    extent_of,
    nan_of,
    worse,
)
from softnpu.tools.predict.right.points import Point
from softnpu.tools.predict.right.repairing import Names, Search, to_keep_in_f32
from softnpu.tools.predict.right.result import (
    Error,
    Largest,
    LayerTrouble,
    OutputError,
    Repair,
    Right,
    Rightness,
    Trouble,
)
from softnpu.tools.predict.right.running import LARGEST_PORTION, F16Model, Inference, Runs

_WIDENINGS: Final = 4
_TRIALS: Final = 40
_LONGEST_S: Final = 60.0
"""The time limit of the search for a list."""
_WORTHY: Final = 0.5
"""A list is good if it leaves at most this part of the tolerance."""


@dataclass
class _Seen:
    """The results of one run over all samples."""

    outputs: list[Error] = field(default_factory=list)
    nan: dict[tuple[int, int], tuple[int, int]] = field(default_factory=dict)
    """The elements that are NaN in f32, and all, by sample and output."""
    points: dict[str, Seen] = field(default_factory=dict)
    own: dict[str, Error] = field(default_factory=dict)
    inner: list[LayerTrouble] = field(default_factory=list)


class Judge:
    """Judges one model with given samples. Each operation of `source` has a unique name.

    `bounded`: only the first sample, if the values of all layers do not fit into memory at once. `known` are
    the names of the user's model: a constant of another name is one of OpenVINO's passes.
    """

    def __init__(
        self,
        source: ov.Model,
        feeds: Feeds,
        arithmetic: Arithmetic,
        *,
        bounded: bool = False,
        known: Container[str],
    ) -> None:
        self._source = source
        self._feeds = feeds
        self._arithmetic = arithmetic
        self._runs = Runs(source, feeds.steps, arithmetic)
        self._names = Names.of(source, self._runs.base)
        self._constants = constants.saturated(source, arithmetic, known)
        self._order = {node.friendly_name: at for at, node in enumerate(source.get_ordered_ops())}
        self._holders = {
            inner.friendly_name: node.friendly_name
            for node in self._runs.base.get_ordered_ops()
            for body in bodies_of(node)
            for each in (body, *all_bodies(body))
            for inner in each.get_ordered_ops()
        }
        """The If, Loop or TensorIterator of the model around each operation of a body."""
        self._kinds = {node.friendly_name: node.get_type_name() for node in self._runs.base.get_ordered_ops()}
        self._end = math.inf
        self._bounded = bounded

    def judge(self) -> Right:
        """Observe every rounding, and if an output is wrong search for a repair."""
        f16 = self._runs.rewrite(self._arithmetic)
        parts = self._runs.parts(f16)
        count = 1 if self._bounded and parts > 1 else len(self._feeds.steps)
        self._runs.samples = self._feeds.steps[:count]
        seen = self._observe(f16)
        wrong = {number for number, error in enumerate(seen.outputs) if not self._holds(number, error)}
        numbers = {number for (_, number), (nan, size) in seen.nan.items() if nan < size or not size}
        lacking = [each.name for at, each in enumerate(self._outputs(seen.outputs)) if at not in numbers]
        if lacking and not wrong:
            obstacle = f"output '{lacking[0]}' is NaN in f32 with these inputs; give others with --inputs"
            return Right(verdict=Rightness.UNKNOWN, obstacle=obstacle, inputs=self._feeds.origin)
        findings = self._findings(f16, seen, wrong)
        blamed = {key: self._constants_of(f16, key) for key in findings.causes}
        holders = {self._holders[each.layer] for each in seen.inner if each.layer in self._holders}
        lost = {
            key for key in findings.reaching if blamed.get(key) or holders & {*f16.points.points[key].group}
        }
        layers = [
            self._describe(f16, seen, key, Trouble.INHERITS if _is_of(key, lost, trouble) else trouble)
            for key, trouble in findings.reaching.items()
        ]
        named = dict.fromkeys(each for constants in blamed.values() for each in constants)
        first = [*named, *(each for each in layers if each.trouble is not Trouble.INHERITS)]
        without = [self._describe(f16, seen, key, each) for key, each in findings.without_effect.items()]
        repair, later = self._repair(f16, seen, findings) if wrong else (None, [])
        return Right(
            verdict=Rightness.WRONG if wrong else Rightness.RIGHT,
            overflow=SATURATE if self._arithmetic.saturates else INFINITY,
            inputs=self._feeds.origin,
            samples=count,
            points=len(seen.points),
            outputs=self._outputs(seen.outputs),
            causes=self._in_order([*first, *(seen.inner if wrong else ()), *later]),
            inherits=tuple(each for each in layers if each.trouble is Trouble.INHERITS),
            without_effect=(*without, *(() if wrong else seen.inner)),
            largest=_largest(f16, seen),
            repair=repair,
            runs=self._runs.count,
            nan=sum(nan for nan, _ in seen.nan.values()),
            notes=_notes(parts, len(self._feeds.steps) - count, f16),
        )

    # ------------------------------------------------------------ observation

    def _observe(self, f16: F16Model) -> _Seen:
        seen = _Seen()
        for each in f16.inner:
            rounding.take_count(each.counter)
        for inference in self._runs.compare_points(f16):
            _add_outputs(seen, inference, f16)
            for number, (_, reference) in enumerate(inference.outputs):
                seen.nan[inference.sample, number] = nan_of(reference), reference.size
            for key, (value, reference) in inference.values.items():
                error = error_of(value, reference, _floor(f16, [key]))
                seen.points[key] = _joined(
                    seen.points.get(key), Seen(extent_of(reference), inference.sample, error)
                )
        for each in f16.inner:
            count = rounding.take_count(each.counter)
            if count.overflows:
                seen.inner.append(
                    LayerTrouble(
                        layer=each.layer,
                        type=each.kind,
                        trouble=Trouble.OVERFLOWS,
                        largest=count.largest,
                        beyond=count.overflows,
                        inside=True,
                    )
                )
        return seen

    def _findings(self, f16: F16Model, seen: _Seen, wrong: set[int]) -> Findings:
        suspects = self._affordable(f16, seen, causes.suspects(f16.points, seen.points, wrong))
        if suspects:
            for inference in self._runs.compare_alone(f16, suspects):
                for key, (value, reference) in inference.values.items():
                    error = error_of(value, reference, _floor(f16, [key]))
                    seen.own[key] = worse(seen.own.get(key, NOTHING), error)
        return causes.findings(f16.points, seen.points, seen.own, wrong)

    def _constants_of(self, f16: F16Model, key: str) -> list[LayerTrouble]:
        """Return the constants read at a point that f16 cannot hold."""
        group = set(f16.points.points[key].group)
        return [trouble for trouble, readers in self._constants if readers & group]

    def _in_order(self, causes: Sequence[LayerTrouble]) -> tuple[LayerTrouble, ...]:
        """Return them in the order of execution: where blame is shared, the earlier layer comes first."""

        def place(each: LayerTrouble) -> int:
            return self._order.get(self._holders.get(each.layer, each.layer), len(self._order))

        return tuple(sorted(causes, key=place))

    def _affordable(self, f16: F16Model, seen: _Seen, suspects: Sequence[str]) -> list[str]:
        """Return the first of these points, as many as fit into memory with their inputs' values."""
        chosen: dict[str, None] = {}
        kept: list[str] = []
        for key in suspects:
            chosen.update(dict.fromkeys([key, *f16.points.points[key].reads]))
            held = sum(seen.points[each].extent.elements for each in chosen if each in seen.points)
            if kept and 4 * held > LARGEST_PORTION:
                break
            kept.append(key)
        return kept

    def _describe(
        self, f16: F16Model, seen: _Seen, key: str, trouble: Trouble, found: int = 0
    ) -> LayerTrouble:
        point, each = f16.points.points[key], seen.points[key]
        layer, kind = self._names.owners.get(point.layer, (point.layer, point.type))
        step = "" if layer == point.layer else point.layer.removeprefix(f"{layer}/")
        # A product with its bias and activation goes by the product's name, a sum with its Relu by the sum's.
        if layer == point.layer:
            layer, kind = self._names.owners.get(self._head(point), (layer, kind))
        return LayerTrouble(
            layer=layer,
            type=kind,
            trouble=trouble,
            step=step,
            largest=each.extent.largest,
            index=each.extent.index,
            sample=each.sample,
            beyond=each.extent.beyond,
            elements=each.extent.elements,
            error=each.error,
            own=seen.own.get(key),
            reads=tuple(self._names.owners.get(read, (read, ""))[0] for read in point.reads),
            found=found,
        )

    def _head(self, point: Point) -> str:
        """Return the operation that begins a point's fused group; the rounded one if that is alone."""
        products = [name for name in point.group if self._kinds.get(name) in types.MULTIPLIERS]
        if products or point.type != "Relu":
            return (products or [point.layer])[-1]
        computing = [name for name in point.group if self._kinds.get(name) not in types.MOVING]
        return (computing or [point.layer])[-1]

    # ------------------------------------------------------------ repair

    def _repair(
        self, f16: F16Model, seen: _Seen, findings: Findings
    ) -> tuple[Repair | None, list[LayerTrouble]]:
        """Return the smallest repairing list, and causes that only showed after others were repaired."""
        self._end = time.monotonic() + _LONGEST_S
        later: list[LayerTrouble] = []
        known = set(findings.causes)
        names: frozenset[str] = frozenset()
        for turn in range(1, _WIDENINGS + 1):
            wider = names | self._closure(f16, findings)
            if wider == names:
                wider = names | self._closure(f16, findings, wide=True)
            if wider == names or time.monotonic() > self._end:
                break
            names = wider
            f16 = self._rewrite(names)
            seen = self._observe(f16)
            wrong = {number for number, error in enumerate(seen.outputs) if not self._holds(number, error)}
            if not wrong and self._is_worthy(seen.outputs):
                return self._shortest(names), later
            findings = self._findings(f16, seen, wrong or set(range(len(seen.outputs))))
            later += [
                self._describe(f16, seen, key, findings.reaching[key], turn)
                for key in findings.causes
                if key not in known
            ]
            known |= set(findings.causes)
        everything = frozenset(self._names.kept)
        return (self._shortest(everything) if self._is_right(everything) else None), later

    def _closure(self, f16: F16Model, findings: Findings, wide: bool = False) -> frozenset[str]:
        causing = {key: findings.reaching[key] for key in findings.causes} or findings.reaching

        def moving(layer: str) -> bool:
            return self._kinds.get(layer) in types.MOVING

        return self._names.of_layers(to_keep_in_f32(f16.points, causing, moving, wide))

    def _shortest(self, names: frozenset[str]) -> Repair:
        search = Search(self._names, self._is_right, _TRIALS)
        layers = search.smallest(names)
        kept = sorted(layers | self._arithmetic.kept)
        words = dialect.words(kept)
        return Repair(
            layers=words,
            setting=f"{HIGHER_PRECISION}={','.join(words)}",
            kept=self._names.count(kept),
            operations=sum(kind not in {"Parameter", "Constant", "Result"} for kind in self._kinds.values()),
            outputs=self._outputs(self._errors(layers)),
            smallest=not search.ended,
        )

    def _is_right(self, names: frozenset[str]) -> bool:
        return time.monotonic() < self._end and self._is_worthy(self._errors(names))

    def _errors(self, names: frozenset[str]) -> list[Error]:
        seen, f16 = _Seen(), self._rewrite(names)
        for inference in self._runs.outputs(f16):
            _add_outputs(seen, inference, f16)
        return seen.outputs

    def _rewrite(self, names: frozenset[str]) -> F16Model:
        return self._runs.rewrite(Arithmetic(self._arithmetic.saturates, self._arithmetic.kept | names))

    # ------------------------------------------------------------ outputs

    def _is_worthy(self, errors: Iterable[Error]) -> bool:
        return all(self._holds(number, error, _WORTHY) for number, error in enumerate(errors))

    def _holds(self, number: int, error: Error, part: float = 1.0) -> bool:
        if not self._source.outputs[number].get_element_type().is_real():
            return error.worst <= causes.DIFFERING
        return not causes.is_wrong(Error(error.mean / part, error.peak / part))

    def _outputs(self, errors: Sequence[Error]) -> tuple[OutputError, ...]:
        names = [
            min(port.names, default=port.node.input_value(0).get_node().friendly_name)
            for port in self._source.outputs
        ]
        return tuple(
            OutputError(name, error, self._holds(number, error))
            for number, (name, error) in enumerate(zip(names, errors, strict=True))
        )


def _floor(f16: F16Model, keys: Sequence[str]) -> float:
    """Return the lower bound for the magnitudes at these points: smaller shares are negligible."""
    return SMALLEST_NORMAL if keys and all(f16.points.points[key].is_share for key in keys) else 0.0


def _is_of(key: str, lost: set[str], trouble: Trouble) -> bool:
    """Return whether a point's trouble is that of a constant or body before it: f16 holds its result."""
    return key in lost and trouble is not Trouble.OVERFLOWS


def _add_outputs(seen: _Seen, inference: Inference, f16: F16Model) -> None:
    floors = [_floor(f16, keys) for keys in f16.points.outputs]
    errors = [error_of(*pair, floor) for pair, floor in zip(inference.outputs, floors, strict=True)]
    known = seen.outputs or [NOTHING] * len(errors)
    seen.outputs = [worse(one, other) for one, other in zip(known, errors, strict=True)]


def _joined(before: Seen | None, now: Seen) -> Seen:
    if before is None:
        return now
    larger = now if now.extent.largest > before.extent.largest else before
    beyond = max(before.extent.beyond, now.extent.beyond)
    extent = Extent(larger.extent.largest, larger.extent.index, beyond, larger.extent.elements)
    return Seen(extent, larger.sample, worse(before.error, now.error))


def _notes(parts: int, left_out: int, f16: F16Model) -> tuple[str, ...]:
    notes = []
    if parts > 1:
        only = ", and with one sample only" if left_out else ""
        notes.append(f"its layers were read in {parts} parts, for memory{only}")
    if f16.inner:
        notes.append(f"of {len(f16.inner)} roundings in bodies only overflows are counted")
    return tuple(notes)


def _largest(f16: F16Model, seen: _Seen) -> Largest | None:
    if not seen.points:
        return None
    key = max(seen.points, key=lambda each: seen.points[each].extent.largest)
    extent = seen.points[key].extent
    return Largest(f16.points.points[key].layer, extent.largest, extent.index)
