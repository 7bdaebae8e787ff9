"""Is an answer right? Bit by bit; of two NaNs the bits may differ, which is counted."""

from __future__ import annotations

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


@dataclass
class Verdict:
    """What a comparison found. `kind`: right, refused, wrong, refused alone, accepted alone, untyped."""

    kind: str
    text: str = ""
    refusals: list[Refusal] = field(default_factory=list)
    outputs: list[int] = field(default_factory=list)
    other_nans: int = 0

    @property
    def good(self) -> bool:
        """Whether softnpu did what the CPU device did."""
        return self.kind in ("right", "refused")


def judge(answer: Answer, expected: Answer) -> Verdict:
    """The verdict on softnpu's answer."""
    if expected.refused is not None:
        if answer.refused is None:
            if all(isinstance(step, Refusal) for steps in answer.rounds for step in steps):
                return _refused(
                    [step for steps in answer.rounds for step in steps if isinstance(step, Refusal)]
                )
            return Verdict("accepted alone", f"the CPU device: {expected.refused}", [expected.refused])
        return _refused([answer.refused])
    if answer.refused is not None:
        failed = [step for step in expected.steps if isinstance(step, Refusal)]
        if len(failed) == len(expected.steps):
            return _refused([answer.refused])
        return Verdict("refused alone", str(answer.refused), [answer.refused])
    found = Verdict("right")
    for number, steps in enumerate(answer.rounds):
        for at, (ours, theirs) in enumerate(zip(steps, expected.steps, strict=True)):
            one = _step(ours, theirs)
            found.other_nans += one.other_nans
            found.refusals += one.refusals
            if not one.good:
                one.text = f"request or round {number}, step {at}: {one.text}"
                return one
    return found


def same(one: Answer, other: Answer) -> bool:
    """Whether two answers are equal, refusals by being refusals."""
    if one.refused is not None or other.refused is not None:
        return (one.refused is None) == (other.refused is None)
    if len(one.rounds) != len(other.rounds):
        return judge(one, replace(other, rounds=other.rounds[:1])).good
    return all(
        _step(mine, theirs).good
        for rounds in zip(one.rounds, other.rounds, strict=True)
        for mine, theirs in zip(*rounds, strict=True)
    )


def _refused(refusals: list[Refusal]) -> Verdict:
    untyped = [one for one in refusals if not one.typed]
    if untyped:
        return Verdict("untyped", str(untyped[0]), untyped)
    return Verdict("refused", str(refusals[0]), refusals)


def _step(ours: Step, theirs: Step) -> Verdict:
    if isinstance(theirs, Refusal):
        if isinstance(ours, Refusal):
            found = _refused([ours])
            return Verdict("right", refusals=[ours]) if found.good else found
        return Verdict("accepted alone", f"the CPU device: {theirs}", [theirs])
    if isinstance(ours, Refusal):
        return Verdict("untyped" if not ours.typed else "refused alone", str(ours), [ours])
    if len(ours) != len(theirs):
        return Verdict("wrong", f"{len(ours)} outputs, right are {len(theirs)}")
    found = Verdict("right")
    texts = []
    for index, (mine, right) in enumerate(zip(ours, theirs, strict=True)):
        text, nans = _value(mine, right)
        found.other_nans += nans
        if text:
            texts.append(f"output {index} {text}")
            found.outputs.append(index)
    if texts:
        found.kind, found.text = "wrong", "; ".join(texts[:_SHOWN])
    return found


def _value(mine: Value, right: Value) -> tuple[str, int]:
    """What differs (empty: nothing), and how many NaNs have other bits."""
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
    """The elements as bits."""
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
