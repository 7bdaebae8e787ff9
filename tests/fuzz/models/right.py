"""The accepted answers: the CPU device's own in the forms that match a way."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set

from tests.fuzz.models.compare import Verdict, judge, verdict_of
from tests.fuzz.models.records import Answer, Died, Way
from tests.fuzz.models.traits import Traits

RIGHT = Way("cpu", "plain", "right")
BY_SAMPLES = "right as samples one by one, and not as a batch"
STREAMS = "right as the CPU device with several streams"
SEPARATED = "right as with the weights as inputs"
UNFUSED = "right as the CPU device without subgraphs, which it makes wrongly of 8 bits"
FOLDED = "right as with computed constants, which the CPU device writes into"
INNER = "right as with the inner dimensions of recurrent layers checked"
OUTSIDE = "right as with states outside of the CPU device"

Ask = Callable[[Way, Mapping[str, object]], Answer | Died]


class Right:
    """The CPU device's answers to one case, each computed once on demand."""

    def __init__(self, ask: Ask, traits: Traits) -> None:
        self._ask = ask
        self._traits = traits
        self._found: dict[str, Answer | Died] = {}

    def give(self, answer: Answer | Died) -> None:
        """Store the plain form, computed beside the first way."""
        self._found[f"{RIGHT.run} {{}}"] = answer

    @property
    def plain(self) -> Answer | Died:
        """The answer of every step on a new request."""
        return self._form(RIGHT.run)

    def judge(self, way: Way, answer: Answer) -> tuple[Verdict, list[str]]:
        """Return differences from every accepted form of this way, and other forms that confirm it."""
        states = "states" in self._traits
        native = way.api == "native"
        first = self._form("zeros") if native and states else self.plain
        if isinstance(first, Died):
            return Verdict("died", str(first)), []
        verdict, used = judge(answer, first), []
        by_rows = self._traits.rows if native and way.compiled != "compiler" else {}
        notes = answer.notes or by_rows
        if not verdict.good and answer.refused is None and notes:
            # computed sample by sample: the CPU has other kernels at batch 1
            split = self._form("split", notes)
            less = _less(verdict, answer, split, None)
            used += [BY_SAMPLES] if less is not verdict else []
            verdict = less
        if not verdict.good and answer.refused is None and way.compiled == "throughput":
            # inferences share the threads: a sum split between them has other parts
            less = _less(verdict, answer, self._form("streams"), None)
            used += [STREAMS] if less is not verdict else []
            verdict = less
        for trait, form, by in (
            ("quantised", "unfused", UNFUSED),
            ("computed constants", "folded", FOLDED),
            ("guarded recurrence", "inner", INNER),
        ):
            if not verdict.good and answer.refused is None and trait in self._traits:
                less = _less(verdict, answer, self._form(form), None)
                used += [by] if less is not verdict else []
                verdict = less
        if not verdict.good and answer.refused is None and native and way.compiled == "weightless":
            less = _less(verdict, answer, self._form("separated"), None)
            used += [SEPARATED] if less is not verdict else []
            verdict = less
        for unfused in (False, True) if "quantised" in self._traits else (False,):
            if not verdict.good and answer.refused is None and states:
                outside = self._form("outside", {"zeros": native, "unfused": unfused})
                less = _less(verdict, answer, outside, self._traits.after_states)
                used += [OUTSIDE] if less is not verdict else []
                verdict = less
        return verdict, used

    def _form(self, name: str, notes: Mapping[str, object] | None = None) -> Answer | Died:
        notes = dict(notes or {})
        key = f"{name} {notes}"
        if key not in self._found:
            self._found[key] = self._ask(Way("cpu", "plain", name), notes)
        return self._found[key]


def _less(verdict: Verdict, answer: Answer, form: Answer | Died, outputs: Set[int] | None) -> Verdict:
    """Remove differences that this form explains too; `outputs`: of these outputs only."""
    if isinstance(form, Died):
        return verdict
    others = judge(answer, form).differences
    places = {one.place for one in others}
    steps = {one.place[:2] for one in others}
    left = []
    for one in verdict.differences:
        whole = (one.turn, one.step, -1) in places or (-1, -1, -1) in places
        if one.output < 0:
            same = bool(others) if one.step < 0 else one.place[:2] in steps or whole
        else:
            same = one.place in places or whole or (outputs is not None and one.output not in outputs)
        if same:
            left.append(one)
    return verdict if len(left) == len(verdict.differences) else verdict_of(left, verdict.other_nans)


__all__ = ["BY_SAMPLES", "OUTSIDE", "RIGHT", "STREAMS", "UNFUSED", "Right"]
