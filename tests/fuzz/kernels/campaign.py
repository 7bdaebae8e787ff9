"""A run of random kernels in one process of kernels, and the checks after each.

A round loads and runs a module twice, afresh: both must end alike, with a result or an error that has a name.
Nothing but its output changes, the process lives, and afterwards another kernel is right and nothing is left.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import psutil

from softnpu.emulator.common import linux
from softnpu.emulator.kernels.description import ELEMENT_SIZES
from softnpu.emulator.kernels.errors import Failure, KernelError
from softnpu.emulator.kernels.process import KernelProcess
from softnpu.emulator.links.kernels import TensorPlace
from tests.fuzz.kernels.modules import Made, make
from tests.fuzz.plan import CommonPlan, Say, option
from tests.support import kernels as modules

_PAGE = 4096
_WIDEST = max(ELEMENT_SIZES.values())
_ELEMENTS = (0, 1, 1, 1, 1024, 1025, 2048, 65536)
_TOLD_EVERY = 500
_LOOK_EVERY = 50
_MOST_GROWTH = 256 << 20
_FEW = 16
"""Descriptors: images of modules whose start failed, until Python collects garbage."""
_KEEP = frozenset({"global", "re-entrance", "shapes", "damaged"})
"""What may have used a global of WebAssembly, which is not restored between two runs."""
Outcome = tuple[str, bytes]


@dataclass(frozen=True)
class Plan(CommonPlan):
    """How many modules, with which deadline."""

    kernels: int = option(10_000, "random kernels", metavar="MODULES")
    deadline_ms: int = option(60, "of a run")


@dataclass
class Tally:
    """The counts: how modules ended, and what was unusual about them."""

    rounds: int = 0
    ends: Counter[str] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)

    @property
    def good(self) -> bool:
        return not self.violations

    def as_json(self) -> dict[str, object]:
        return {**vars(self), "ends": dict(self.ends), "kinds": dict(self.kinds)}

    def summary(self) -> str:
        ends = ", ".join(f"{name} {count}" for name, count in self.ends.most_common())
        lines = [f"{self.rounds} kernels: {ends}", *(f"VIOLATION: {each}" for each in self.violations)]
        return "\n".join([*lines, f"{len(self.violations)} violations"])


def run(plan: Plan, say: Say) -> Tally:
    """Run all rounds, or the one to replay; the first violation ends it, as its process is suspect."""
    tally = Tally()
    rounds = [int(plan.replay)] if plan.replay else range(plan.kernels)
    with _Bench(plan.deadline_ms) as bench:
        for number in rounds:
            chance = random.Random(f"{plan.seed}:{number}")
            made = make(chance)
            try:
                end = bench.judge(made, chance.choice(_ELEMENTS))
                if number % _LOOK_EVERY == 0 or plan.replay:
                    bench.look()
            except (AssertionError, OSError, psutil.Error) as error:
                tally.violations.append(f"round {number} ({made.what}): {error}")
                if plan.found is not None:
                    plan.found.mkdir(parents=True, exist_ok=True)
                    (plan.found / f"{number}.wasm").write_bytes(made.content)
                return tally
            tally.rounds += 1
            tally.ends[end] += 1
            tally.kinds.update(made.what.split(", "))
            if tally.rounds % _TOLD_EVERY == 0:
                say(f"{tally.rounds} kernels, {tally.ends['ran']} ran")
        bench.look()
    return tally


class _Bench:
    """A process of kernels, and what it had at its beginning."""

    def __init__(self, deadline_ms: int) -> None:
        self._deadline_ms = deadline_ms
        self._good = modules.kernel()

    def __enter__(self) -> _Bench:
        self._running = KernelProcess()
        self._client = self._running.client
        self._process = psutil.Process(self._running.process.pid)
        self._check_good()
        self._first = self._held()
        return self

    def __exit__(self, *_: object) -> None:
        self._running.close()

    def judge(self, made: Made, elements: int) -> str:
        """Load and run a module twice; return how it ended. Raises `AssertionError` for a violation."""
        again = not _KEEP.intersection(made.what.split(", "))
        first, second = (self._outcome(made.content, elements, again) for _ in range(2))
        timed = Failure.DEADLINE.value
        assert first == second or timed in (first[0].partition(":")[0], second[0].partition(":")[0]), (
            f"{first[0]}, then {second[0]}"
        )
        return first[0].partition(":")[0]

    def _outcome(self, content: bytes, elements: int, again: bool) -> Outcome:
        client = self._client
        try:
            loaded = client.load(content)
        except KernelError as error:
            return self._failed(error)
        (types, *_) = loaded.description.implementations
        # a description that was changed may have any types
        length = elements * ELEMENT_SIZES[types.outputs[0]] if types.outputs else 0
        size = -(-_WIDEST * elements // _PAGE) * _PAGE + _PAGE
        with _memory(2 * size + _PAGE) as fd:
            memory = client.add_memory(fd)
            call = None
            try:
                places = [
                    TensorPlace(kind, (elements,), memory, _PAGE + number * size)
                    for number, kind in enumerate((*types.inputs, *types.outputs)[:2])
                ]
                call = loaded.prepare(places[:1], places[1:], {}, self._deadline_ms)
                outcome = f"ran: {call.run()}", os.pread(fd, length, _PAGE + size)
                if again:
                    os.pwrite(fd, b"\x01" * size, _PAGE + size)
                    repeated = f"ran: {call.run()}", os.pread(fd, length, _PAGE + size)
                    assert repeated == outcome, f"{outcome[0]}, the next run {repeated[0]}"
            except KernelError as error:
                outcome = self._failed(error)
            finally:
                if not client.is_lost:
                    client.drop(call=-1 if call is None else call.number, memory=memory, kernel=loaded.number)
            whole = os.pread(fd, 2 * size + _PAGE, 0)
        before, behind = whole[: _PAGE + size], whole[_PAGE + size + length :]
        assert before.count(1) == len(before), "it has changed something before its output, such as its input"
        assert behind.count(1) == len(behind), "it has changed something behind its output"
        return outcome

    def _failed(self, error: KernelError) -> Outcome:
        assert error.failure is not Failure.LOST, f"the process of kernels: {error}"
        assert self._running.process.poll() is None, f"the process of kernels has ended: {error}"
        assert error.info.object.startswith("kernel"), f"an error without a kernel: {error}"
        return f"{error.failure.value}: {error}", b""

    def look(self) -> None:
        """Check that the process works, and holds no more than at first."""
        self._check_good()
        found = self._held()
        assert found[0] <= self._first[0] + _FEW, f"{found[0]} descriptors, {self._first[0]} at first"
        assert found[1] <= self._first[1] + _MOST_GROWTH, f"{found[1]} bytes, {self._first[1]} at first"

    def _held(self) -> tuple[int, int]:
        return self._process.num_fds(), self._process.memory_info().rss

    def _check_good(self) -> None:
        found = modules.run(
            self._client, self._good, x=[41] * _PAGE
        )  # whole pages, so that it has all it needs
        assert found[0] == 42, "another kernel is wrong"


@contextmanager
def _memory(size: int) -> Iterator[int]:
    """A memory file full of ones."""
    fd = linux.fixed_memfd("fuzz", size)
    try:
        os.pwrite(fd, b"\x01" * size, 0)
        yield fd
    finally:
        os.close(fd)
