"""An explicit-state model checker: visits every state that a model can reach, breadth first.

A state is the memory and the position of each process. Two traces to one state are explored as one, so the
trace to the first violation is a shortest one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from tests.model.operations import Memory, Operation, Steps, Then, Value, Violation

_MAX_STATES = 400_000


@dataclass(frozen=True)
class Process:
    """A process with `phases` by name, each a generator function; it starts with the one called "start".

    A process that `dies` may do so before each of its steps, as often as the model allows: then it restarts
    with the phase "restart", and the words that are `lost` with it have their initial values again.
    """

    name: str
    phases: Mapping[str, Callable[..., Steps]]
    dies: bool = False
    lost: frozenset[str] = frozenset()
    background: bool = False  # it need not end


@dataclass(frozen=True)
class Model:
    """Initial memory, the processes, how often one may die, and the condition at the end."""

    name: str
    memory: Memory
    processes: tuple[Process, ...]
    deaths: int = 0
    hides: bool = True  # hidden steps are taken first; not if one process can end another's work
    at_end: Callable[[Memory], None] = lambda _: None


class Position(NamedTuple):
    """The position of a process: its phase, and what it was sent since that began."""

    phase: Then
    sent: tuple[Value, ...]


_RESTART, _ENDED = Position(Then("restart"), ()), Position(Then("ended"), ())


@dataclass
class Finding:
    """An error, and the trace that leads to it."""

    model: str
    what: str
    trace: list[str]

    def __str__(self) -> str:
        steps = "\n".join(f"  {number:3}  {step}" for number, step in enumerate(self.trace, 1))
        return f"{self.model}: {self.what}\n{steps}"


@dataclass
class Result:
    """The number of states reached, or the first violation."""

    states: int
    finding: Finding | None = None


State = tuple[tuple[Value, ...], tuple[int, ...], int]
"""The words, the position of each process by its number, and how many deaths are left."""


def explore(model: Model) -> Result:
    """Visit all states of the model; stop at the first violation."""
    return _Exploration(model).run()


class _Exploration:
    def __init__(self, model: Model) -> None:
        self._model = model
        self._words = tuple(model.memory)
        self._positions: list[Position] = []
        self._next: list[
            Operation | str | None
        ] = []  # what comes at each position; the error; None at the end
        self._numbers: dict[tuple[int, Position], int] = {}
        self._moves_to: dict[tuple[int, int, Value], int] = {}
        self._parents: dict[State, tuple[State | None, str]] = {}
        self._restart = [
            self._number(index, _RESTART) if process.dies else -1
            for index, process in enumerate(model.processes)
        ]

    def run(self) -> Result:
        processes = range(len(self._model.processes))
        positions = tuple(self._number(index, Position(Then("start"), ())) for index in processes)
        start: State = (tuple(self._model.memory.values()), positions, self._model.deaths)
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
            if len(self._parents) > _MAX_STATES:
                raise RuntimeError(f"{self._model.name}: more than {_MAX_STATES} states")
        return Result(len(self._parents))

    # ------------------------------------------------------------ one state

    def _successors(self, state: State) -> Iterator[tuple[str, State]]:
        able = []
        for index, position in enumerate(state[1]):
            operation = self._next[position]
            if operation is None:
                continue
            if isinstance(operation, str):
                raise _Stop(operation)
            if operation.pure or (operation.hidden and self._model.hides):
                # it commutes with everything that others do: nothing is missed if they come later
                yield from self._moves(state, index, operation)
                return
            able.append((index, operation))
        for index, operation in able:
            yield from self._moves(state, index, operation)

    def _moves(self, state: State, index: int, operation: Operation) -> Iterator[tuple[str, State]]:
        values, positions, deaths = state
        process = self._model.processes[index]
        memory = dict(zip(self._words, values, strict=True))
        if process.dies and deaths and not operation.pure and positions[index] != self._restart[index]:
            yield f"{process.name} dies", self._dead(memory, positions, index, deaths)
        if operation.choices is not None:
            for choice in operation.choices(memory):
                label = f"{process.name}: {operation.label}: {choice}"
                yield label, (values, self._moved(positions, index, choice), deaths)
            return
        if operation.ready is not None and not operation.ready(memory):
            return
        label = f"{process.name}: {operation.label}" if operation.label else ""
        try:
            sent = operation.run(memory)
        except Violation as violation:
            raise _Stop(str(violation), label) from None
        after = values if operation.pure else tuple(memory.values())
        yield label, (after, self._moved(positions, index, sent), deaths)

    def _dead(self, memory: Memory, positions: tuple[int, ...], index: int, deaths: int) -> State:
        lost, first = self._model.processes[index].lost, self._model.memory
        values = tuple(first[word] if word in lost else value for word, value in memory.items())
        return values, (*positions[:index], self._restart[index], *positions[index + 1 :]), deaths - 1

    def _moved(self, positions: tuple[int, ...], index: int, sent: Value) -> tuple[int, ...]:
        at = positions[index]
        after = self._moves_to.get((index, at, sent))
        if after is None:
            before = self._positions[at]
            after = self._number(index, Position(before.phase, (*before.sent, sent)))
            self._moves_to[index, at, sent] = after
        return (*positions[:index], after, *positions[index + 1 :])

    def _check_end(self, state: State) -> None:
        values, positions, _ = state
        for process, position in zip(self._model.processes, positions, strict=True):
            operation = self._next[position]
            if isinstance(operation, Operation) and not process.background:
                raise _Stop(f"{process.name} waits forever ({operation.label})")
        try:
            self._model.at_end(dict(zip(self._words, values, strict=True)))
        except Violation as violation:
            raise _Stop(str(violation)) from None

    # ------------------------------------------------------------ the next step of a process

    def _number(self, index: int, position: Position) -> int:
        """Return the number of a position; all positions of ended processes are one."""
        if (index, position) in self._numbers:
            return self._numbers[index, position]
        following = self._replay(index, position)
        while isinstance(following, Then):
            position = Position(following, ())
            following = self._replay(index, position)
        if following is None:
            position = _ENDED
        number = self._numbers.get((index, position))
        if number is None:
            number = self._numbers[index, position] = len(self._positions)
            self._positions.append(position)
            self._next.append(following)
        return number

    def _replay(self, index: int, position: Position) -> Operation | Then | str | None:
        phase = position.phase
        steps = self._model.processes[index].phases[phase.phase](*phase.arguments)
        try:
            operation = next(steps)
            for sent in position.sent:
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
