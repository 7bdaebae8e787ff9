"""An explicit-state model checker: visits every state that a model can reach, breadth first.

A state is the memory and, for each process, where it is. Two ways to one state are explored as one. The first
violation is therefore reached by a shortest way, which is told step by step.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from tests.model.operations import Memory, Operation, Steps, Then, Value, Violation

_MOST_STATES = 400_000


@dataclass(frozen=True)
class Process:
    """`phases` by name, each a generator function; it begins with the one called "start".

    A process that `dies` may do so before each of its steps, as often as the model allows: then it begins
    anew with the phase "restart", and the words that are `lost` with it have their first values again.
    """

    name: str
    phases: Mapping[str, Callable[..., Steps]]
    dies: bool = False
    lost: frozenset[str] = frozenset()
    background: bool = False  # it need not come to an end


@dataclass(frozen=True)
class Model:
    """Memory at the beginning, who works on it, how often a process may die, and what holds in the end."""

    name: str
    memory: Memory
    processes: tuple[Process, ...]
    deaths: int = 0
    hides: bool = True  # hidden steps are taken first; not if a process can end what another one does
    at_end: Callable[[Memory], None] = lambda _: None


class Place(NamedTuple):
    """Where a process is: its phase, and what it was sent since that began."""

    phase: Then
    sent: tuple[Value, ...]


_RESTART, _ENDED = Place(Then("restart"), ()), Place(Then("ended"), ())


@dataclass
class Finding:
    """What went wrong, and how it came to that."""

    model: str
    what: str
    trace: list[str]

    def __str__(self) -> str:
        steps = "\n".join(f"  {number:3}  {step}" for number, step in enumerate(self.trace, 1))
        return f"{self.model}: {self.what}\n{steps}"


@dataclass
class Result:
    """Every state that was reached, or the first violation."""

    states: int
    finding: Finding | None = None


State = tuple[tuple[Value, ...], tuple[int, ...], int]
"""The words, the place of each process by its number, and how many deaths are left."""


def explore(model: Model) -> Result:
    """Visits all states of the model; stops at the first violation."""
    return _Exploration(model).run()


class _Exploration:
    def __init__(self, model: Model) -> None:
        self._model = model
        self._words = tuple(model.memory)
        self._places: list[Place] = []
        self._next: list[
            Operation | str | None
        ] = []  # what comes at each place; what went wrong; None at the end
        self._numbers: dict[tuple[int, Place], int] = {}
        self._moves_to: dict[tuple[int, int, Value], int] = {}
        self._parents: dict[State, tuple[State | None, str]] = {}
        self._restart = [
            self._number(index, _RESTART) if process.dies else -1
            for index, process in enumerate(model.processes)
        ]

    def run(self) -> Result:
        processes = range(len(self._model.processes))
        places = tuple(self._number(index, Place(Then("start"), ())) for index in processes)
        start: State = (tuple(self._model.memory.values()), places, self._model.deaths)
        self._parents[start] = (None, "")
        queue = deque([start])
        while queue:
            state = queue.popleft()
            moved = False
            try:
                for label, after in self._successors(state):
                    moved = True
                    if after not in self._parents:
                        self._parents[after] = (state, label)
                        queue.append(after)
                if not moved:
                    self._check_end(state)
            except _Stop as stop:
                return Result(len(self._parents), self._found(state, stop))
            if len(self._parents) > _MOST_STATES:
                raise RuntimeError(f"{self._model.name}: more than {_MOST_STATES} states")
        return Result(len(self._parents))

    # ------------------------------------------------------------ one state

    def _successors(self, state: State) -> Iterator[tuple[str, State]]:
        able = []
        for index, place in enumerate(state[1]):
            operation = self._next[place]
            if operation is None:
                continue
            if isinstance(operation, str):
                raise _Stop(operation)
            if operation.pure or (operation.hidden and self._model.hides):
                # it commutes with all that others do: nothing is missed if they come later
                yield from self._moves(state, index, operation)
                return
            able.append((index, operation))
        for index, operation in able:
            yield from self._moves(state, index, operation)

    def _moves(self, state: State, index: int, operation: Operation) -> Iterator[tuple[str, State]]:
        values, places, deaths = state
        process = self._model.processes[index]
        memory = dict(zip(self._words, values, strict=True))
        if process.dies and deaths and not operation.pure and places[index] != self._restart[index]:
            yield f"{process.name} dies", self._dead(memory, places, index, deaths)
        if operation.choices is not None:
            for choice in operation.choices(memory):
                label = f"{process.name}: {operation.label}: {choice}"
                yield label, (values, self._moved(places, index, choice), deaths)
            return
        if operation.ready is not None and not operation.ready(memory):
            return
        label = f"{process.name}: {operation.label}" if operation.label else ""
        try:
            sent = operation.run(memory)
        except Violation as violation:
            raise _Stop(str(violation), label) from None
        after = values if operation.pure else tuple(memory.values())
        yield label, (after, self._moved(places, index, sent), deaths)

    def _dead(self, memory: Memory, places: tuple[int, ...], index: int, deaths: int) -> State:
        lost, first = self._model.processes[index].lost, self._model.memory
        values = tuple(first[word] if word in lost else value for word, value in memory.items())
        return values, (*places[:index], self._restart[index], *places[index + 1 :]), deaths - 1

    def _moved(self, places: tuple[int, ...], index: int, sent: Value) -> tuple[int, ...]:
        at = places[index]
        after = self._moves_to.get((index, at, sent))
        if after is None:
            before = self._places[at]
            after = self._number(index, Place(before.phase, (*before.sent, sent)))
            self._moves_to[index, at, sent] = after
        return (*places[:index], after, *places[index + 1 :])

    def _check_end(self, state: State) -> None:
        values, places, _ = state
        for process, place in zip(self._model.processes, places, strict=True):
            operation = self._next[place]
            if isinstance(operation, Operation) and not process.background:
                raise _Stop(f"{process.name} waits for ever ({operation.label})")
        try:
            self._model.at_end(dict(zip(self._words, values, strict=True)))
        except Violation as violation:
            raise _Stop(str(violation)) from None

    # ------------------------------------------------------------ what a process does next

    def _number(self, index: int, place: Place) -> int:
        """The number of a place; all places at which a process has ended are one."""
        if (index, place) in self._numbers:
            return self._numbers[index, place]
        following = self._replay(index, place)
        while isinstance(following, Then):
            place = Place(following, ())
            following = self._replay(index, place)
        if following is None:
            place = _ENDED
        number = self._numbers.get((index, place))
        if number is None:
            number = self._numbers[index, place] = len(self._places)
            self._places.append(place)
            self._next.append(following)
        return number

    def _replay(self, index: int, place: Place) -> Operation | Then | str | None:
        phase = place.phase
        steps = self._model.processes[index].phases[phase.phase](*phase.arguments)
        try:
            operation = next(steps)
            for sent in place.sent:
                operation = steps.send(sent)
        except StopIteration as end:
            following: Any = end.value
            return following if isinstance(following, Then) else None
        except Violation as violation:
            return str(violation)
        return operation

    def _found(self, state: State, stop: _Stop) -> Finding:
        trace = [stop.label] if stop.label else []
        at: State | None = state
        while at is not None:
            at, label = self._parents[at]
            if label:
                trace.append(label)
        return Finding(self._model.name, stop.what, trace[::-1])


class _Stop(Exception):
    def __init__(self, what: str, label: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.label = label
