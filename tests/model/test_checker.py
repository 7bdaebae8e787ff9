"""The checker itself: it finds errors of a model by a shortest trace, and visits every state once."""

from __future__ import annotations

from collections.abc import Callable

from tests.model.checker import Model, Process, explore
from tests.model.operations import Memory, Steps, Then, Violation, load, store, wait


def _adds() -> Steps:
    value = yield load("count")
    yield store("count", value + 1)


def _end_with(expected: int) -> Callable[[Memory], None]:
    def check(memory: Memory) -> None:
        if memory["count"] != expected:
            raise Violation(f"count is {memory['count']} instead of {expected}")

    return check


def test_it_finds_an_update_lost_between_two_processes() -> None:
    both = (Process("one", {"start": _adds}), Process("two", {"start": _adds}))

    finding = explore(Model("adding", {"count": 0}, both, at_end=_end_with(2))).finding

    assert finding is not None
    assert finding.what == "count is 1 instead of 2"
    assert sorted(finding.trace) == [
        f"{who}: {what}" for who in ("one", "two") for what in ("count = 1", "reads count")
    ]


def test_it_finds_an_endless_wait() -> None:
    def waits() -> Steps:
        yield wait("the count is 1", lambda memory: memory["count"] == 1)

    finding = explore(Model("waiting", {"count": 0}, (Process("one", {"start": waits}),))).finding

    assert finding is not None
    assert finding.what == "one waits forever (waited: the count is 1)"


def test_a_process_dies_before_each_of_its_steps_and_loses_its_own_words() -> None:
    def restarts() -> Steps:
        mine = yield load("mine")
        if mine:
            raise Violation("a word of the dead one is left")
        return Then("start")

    def starts() -> Steps:
        yield store("mine", 1)
        value = yield load("count")
        yield store("count", value + 1)

    engine = Process("engine", {"start": starts, "restart": restarts}, dies=True, lost=frozenset({"mine"}))

    once = explore(Model("dying", {"count": 0, "mine": 0}, (engine,), deaths=1, at_end=_end_with(1)))

    assert once.finding is None  # nothing comes after the last step, so it never counts twice
    assert (
        once.states > explore(Model("living", {"count": 0, "mine": 0}, (engine,), at_end=_end_with(1))).states
    )


def test_a_violation_in_a_process_is_reported_with_its_trace() -> None:
    def looks() -> Steps:
        if (yield load("count")) == 1:
            raise Violation("it was seen")

    both = (Process("one", {"start": _adds}), Process("two", {"start": looks}))
    finding = explore(Model("looking", {"count": 0}, both)).finding
    assert str(finding).split("\n") == [
        "looking: it was seen",
        "    1  one: reads count",
        "    2  one: count = 1",
        "    3  two: reads count",
    ]
