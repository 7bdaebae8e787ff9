"""Checks that results match the reference, bit by bit, and that nothing else was written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from softnpu.driver import Fence
from softnpu.tools.stress.journal import SubmissionNote
from softnpu.tools.stress.patterns import Pattern
from softnpu.tools.stress.workloads import Array, Samples, Workload, largest_difference


class WrongResult(Exception):
    """A result that differs from the reference; `finding` is the inference concerned, if any."""

    def __init__(self, text: str, finding: Finding | None = None) -> None:
        super().__init__(text)
        self.finding = finding


@dataclass
class ArgumentMemory:
    """Memory of one argument: its bytes, their allocation and offset."""

    name: str
    view: Array
    handle: int
    offset: int = 0


@dataclass
class Inference:
    """One submitted inference: the computation, its memory, and how its end was awaited.

    `states` is the memory of the new states; with `in_place` they had the old ones before. `rest` is memory
    after the arguments, not the device's, and its content.
    """

    workload: Workload
    samples: Samples
    sample: int
    step: int
    inputs: list[ArgumentMemory]
    outputs: list[ArgumentMemory]
    states: list[ArgumentMemory]
    pattern: Pattern
    note: SubmissionNote
    in_place: bool = False
    fence: Fence | None = None
    rest: list[tuple[Array, bytes]] = field(default_factory=list)

    @property
    def name(self) -> str:
        """Its description."""
        step = f", inference {self.step}" if self.workload.steps > 1 else ""
        return f"'{self.workload.name}', sample {self.sample}{step}"


@dataclass
class Output:
    """A wrong output or new state; `raw` are its bytes when that was noticed."""

    what: str
    block: ArgumentMemory
    raw: bytes
    expected: Array

    @property
    def found(self) -> Array:
        """The actual numbers."""
        return np.frombuffer(self.raw, self.expected.dtype).reshape(self.expected.shape)

    def differs(self) -> Array:
        """Return for every number whether any bit of it is wrong."""
        size = self.expected.dtype.itemsize
        samples = np.frombuffer(self.raw, np.uint8).reshape(-1, size)
        wanted = np.frombuffer(self.expected.tobytes(), np.uint8).reshape(-1, size)
        return np.asarray((samples != wanted).any(axis=1))

    def is_right_now(self) -> bool:
        """Return whether its memory now has the expected content."""
        return bytes(self.block.view[: len(self.raw)]) == self.expected.tobytes()

    def __str__(self) -> str:
        largest = largest_difference(self.found, self.expected)
        count = int(np.count_nonzero(self.differs()))
        return f"{self.what}: {count} of {self.expected.size} numbers, by up to {largest:g}"


@dataclass
class Finding:
    """An inference with a wrong result."""

    inference: Inference
    outputs: list[Output]
    when: str = ""


def check(inference: Inference, when: str = "") -> None:
    """Raise `WrongResult` unless outputs and new states are bitwise right and inputs are unchanged.

    `when` says what has happened before, if that is not obvious.
    """
    samples, sample, step = inference.samples, inference.sample, inference.step
    what = f"{inference.name}{when}"
    wrong = [
        *_wrong("output", inference.outputs, samples.outputs(sample, step), what),
        *_wrong("state", inference.states, samples.states(sample, step), what),
        *_wrong("input", inference.inputs, samples.inputs(sample, step), what),
    ]
    if wrong:
        more = f", and {len(wrong) - 1} more" if len(wrong) > 1 else ""
        raise WrongResult(f"{what}: {wrong[0]}{more}", Finding(inference, wrong, when))
    for index, (rest, untouched) in enumerate(inference.rest):
        if rest.tobytes() != untouched:
            raise WrongResult(
                f"{what}: memory behind argument {index} was written", Finding(inference, [], when)
            )


def _wrong(kind: str, blocks: Sequence[ArgumentMemory], expected: Sequence[Array], what: str) -> list[Output]:
    if len(blocks) != len(expected):
        raise WrongResult(f"{what}: {len(blocks)} {kind}s; expected {len(expected)}")
    outputs = []
    for index, (block, array) in enumerate(zip(blocks, expected, strict=True)):
        if len(block.view) != array.nbytes:
            raise WrongResult(f"{what}: {kind} {index} has {len(block.view)} bytes; expected {array.nbytes}")
        # compared once: a second read could see later writes
        raw = block.view.tobytes()
        if raw != array.tobytes():
            outputs.append(Output(f"{kind} {index}", block, raw, array))
    return outputs
