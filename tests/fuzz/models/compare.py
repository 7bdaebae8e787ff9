"""Bitwise comparison of an answer; NaNs may differ in their bits, which is counted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.fuzz.models.records import Answer, Refusal, Step, Value

_FLOATS: dict[str, np.dtype[Any]] = {
    "f32": np.dtype(np.float32),
    "f64": np.dtype(np.float64),
    "f16": np.dtype(np.float16),
}
_SHOWN = 4


@dataclass(frozen=True)
class Difference:
    """One difference. Place, step and output are -1 where it concerns all of them.

    `kind`: wrong, refused alone, accepted alone, untyped.
    """

    kind: str
    text: str
    turn: int = -1
    step: int = -1
    output: int = -1

    @property
    def place(self) -> tuple[int, int, int]:
        """Its place."""
        return self.turn, self.step, self.output


@dataclass
class Verdict:
    """The result of a comparison. `kind`: right, refused, or that of the first difference."""

    kind: str
    text: str = ""
    differences: list[Difference] = field(default_factory=list)
    other_nans: int = 0

    @property
    def good(self) -> bool:
        """Whether softnpu behaved as the CPU device."""
        return self.kind in ("right", "refused")


def verdict_of(differences: Sequence[Difference], other_nans: int = 0) -> Verdict:
    """Return a verdict about the first inference that differs."""
    if not differences:
        return Verdict("right", other_nans=other_nans)
    first = differences[0]
    there = [one.text for one in differences if one.place[:2] == first.place[:2] and one.kind == first.kind]
    text = "; ".join(there[:_SHOWN])
    if first.step >= 0:
        text = f"request or round {first.turn}, step {first.step}: {text}"
    return Verdict(first.kind, text, list(differences), other_nans)


def judge(answer: Answer, expected: Answer) -> Verdict:
    """Judge softnpu's answer."""
    if expected.refused is not None:
        if answer.refused is not None:
            return _refused([answer.refused])
        if all(isinstance(step, Refusal) for steps in answer.rounds for step in steps):
            return _refused([step for steps in answer.rounds for step in steps if isinstance(step, Refusal)])
        return verdict_of([Difference("accepted alone", f"the CPU device: {expected.refused}")])
    if answer.refused is not None:
        if all(isinstance(step, Refusal) for step in expected.steps):
            return _refused([answer.refused])
        return verdict_of([Difference("refused alone", str(answer.refused))])
    differences: list[Difference] = []
    other_nans = 0
    for turn, steps in enumerate(answer.rounds):
        for at, (ours, theirs) in enumerate(zip(steps, expected.steps, strict=True)):
            found, nans = _step(ours, theirs)
            other_nans += nans
            differences += [replace(one, turn=turn, step=at) for one in found]
    return verdict_of(differences, other_nans)


def same(one: Answer, other: Answer) -> bool:
    """Return whether two answers are equal; all refusals are equal."""
    if one.refused is not None or other.refused is not None:
        return (one.refused is None) == (other.refused is None)
    if len(one.rounds) != len(other.rounds):
        return judge(one, replace(other, rounds=other.rounds[:1])).good
    return all(
        not _step(mine, theirs)[0]
        for rounds in zip(one.rounds, other.rounds, strict=True)
        for mine, theirs in zip(*rounds, strict=True)
    )


def _refused(refusals: list[Refusal]) -> Verdict:
    untyped = [one for one in refusals if not one.typed]
    if untyped:
        return verdict_of([Difference("untyped", str(untyped[0]))])
    return Verdict("refused", str(refusals[0]))


def _step(ours: Step, theirs: Step) -> tuple[list[Difference], int]:
    """Return the differences of one inference, and the number of NaNs with other bits."""
    if isinstance(ours, Refusal):
        if not ours.typed:
            return [Difference("untyped", str(ours))], 0
        return ([] if isinstance(theirs, Refusal) else [Difference("refused alone", str(ours))]), 0
    if isinstance(theirs, Refusal):
        return [Difference("accepted alone", f"the CPU device: {theirs}")], 0
    if len(ours) != len(theirs):
        return [Difference("wrong", f"{len(ours)} outputs, right are {len(theirs)}")], 0
    differences = []
    other_nans = 0
    for index, (mine, right) in enumerate(zip(ours, theirs, strict=True)):
        text, nans = _value(mine, right)
        other_nans += nans
        if text:
            differences.append(Difference("wrong", f"output {index} {text}", output=index))
    return differences, other_nans


def _value(mine: Value, right: Value) -> tuple[str, int]:
    """Return the difference (empty: none), and the number of NaNs with other bits."""
    if (mine.kind, mine.shape) != (right.kind, right.shape):
        return f"is {mine.kind}{list(mine.shape)}, right is {right.kind}{list(right.shape)}", 0
    if mine.data == right.data:
        return "", 0
    ours, theirs = _array(mine), _array(right)
    differ = ours != theirs
    both = _nan(ours, mine.kind) & _nan(theirs, right.kind)
    wrong = np.flatnonzero(differ & ~both)
    if not wrong.size:
        return "", int(np.count_nonzero(differ & both))
    at = wrong[:_SHOWN]
    shown = f"{_numbers(ours[at], mine.kind)}, right is {_numbers(theirs[at], mine.kind)}"
    return (
        f"({mine.kind}{list(mine.shape)}) has {wrong.size} of {ours.size} wrong, at {at.tolist()}: {shown}",
        0,
    )


_WIDTHS = {
    "f32": 4, "f64": 8, "f16": 2, "bf16": 2, "i64": 8, "u64": 8, "i32": 4, "u32": 4, "i16": 2, "u16": 2,
}  # fmt: skip


def _array(value: Value) -> npt.NDArray[np.unsignedinteger]:
    """Return the elements as bits."""
    return np.frombuffer(value.data, np.dtype(f"u{_WIDTHS.get(value.kind, 1)}"))


def _nan(bits: npt.NDArray[np.unsignedinteger], kind: str) -> npt.NDArray[np.bool_]:
    if kind in _FLOATS:
        found: npt.NDArray[np.bool_] = np.isnan(bits.view(_FLOATS[kind]))
        return found
    if kind == "bf16":
        return (bits & 0x7FFF) > 0x7F80
    return np.zeros(bits.shape, np.bool_)


def _numbers(bits: npt.NDArray[np.unsignedinteger], kind: str) -> list[float]:
    if kind in _FLOATS:
        return [float(one) for one in bits.view(_FLOATS[kind])]
    if kind == "bf16":
        wide = bits.astype(np.uint32) << 16
        return [float(one) for one in wide.view(np.float32)]
    signed = kind.startswith("i")
    return [int(one) for one in (bits.view(bits.dtype.str.replace("u", "i")) if signed else bits)]
