"""The indivisible steps of a process in a model: one access to memory, or one choice.

A process is a generator that yields operations and is sent their results. It must depend on nothing else:
then its state is what it was sent since its last `Then`, and states are comparable.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable
from typing import Any, NamedTuple

Value = Any
"""The value of a word: hashable, never changed in place."""
Memory = dict[str, Value]


class Violation(Exception):
    """The model did what must never happen."""


class Operation(NamedTuple):
    """One step. `label` names it in a trace; "" leaves it out. `run` changes the memory and returns
    the result; with `ready` it waits until that holds.

    `hidden`: it touches words that no other process uses, so that others need not run in between. The
    process may still die there. `pure`: it only reads such a word. `choices`: alternatives, given
    the memory; the result is the one taken.
    """

    label: str
    run: Callable[[Memory], Value]
    ready: Callable[[Memory], bool] | None = None
    hidden: bool = False
    pure: bool = False
    choices: Callable[[Memory], tuple[Value, ...]] | None = None


class Then(NamedTuple):
    """The continuation of a process whose generator has returned: this phase with these arguments."""

    phase: str
    arguments: tuple[Hashable, ...] = ()


Steps = Generator[Operation, Value, Value]


def load(word: str) -> Operation:
    """Read a word that others write too."""
    return Operation(f"reads {word}", lambda memory: memory[word])


def store(word: str, value: Value) -> Operation:
    """Write a word that others read."""

    def run(memory: Memory) -> None:
        memory[word] = value

    return Operation(f"{word} = {value!r}", run)


def load_own(word: str) -> Operation:
    """Read a word that only this process and its successor know."""
    return Operation("", lambda memory: memory[word], pure=True)


def store_own(word: str, value: Value) -> Operation:
    """Write a word that only this process and its successor know."""
    return store(word, value)._replace(hidden=True)


def wait(label: str, ready: Callable[[Memory], bool]) -> Operation:
    """Continue when this holds. A waiter looks again after 50 ms at most, so it never misses it for good."""
    return Operation(f"waited: {label}", lambda _: None, ready=ready)


def change(label: str, run: Callable[[Memory], Value], hidden: bool = False) -> Operation:
    """Several accesses at once: one machine access, together with the model's own bookkeeping."""
    return Operation(label, run, hidden=hidden)


def choose(label: str, choices: Callable[[Memory], tuple[Value, ...]], hidden: bool = False) -> Operation:
    """Any of these may come next; wait while there are none."""
    return Operation(label, lambda _: None, choices=choices, hidden=hidden)
