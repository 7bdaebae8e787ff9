"""The parts of a model: queues, fences, events, command lists, and the words in memory that hold them.

`A.tail`, `A.done` (the ring's `completed`), `A.failed`, `A.slot0` and `A.result0` are words of the ring
of queue A. `A.completed`, `A.reached`, `A.intent`, `A.value` and `A.injected` outlive the engine;
`A.step`, `A.rest`, `A.closed` and `A.poisoned` die with it. `A.outcomes`, `A.unreported` and `fence.given`
are the driver's. `fence.armed` and so on is a place for a fence, `event` an event: its state and its
number of changes. `in.x` is read by the list x, `out.x` is written by it. Words that begin with `-` are
known to the model alone: the facts.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from tests.model.operations import Memory

MINE = "mine"
"""A client's data in memory that nobody else may touch any more."""
SUCCESS, FAILED, CANCELLED, LOST = "SUCCESS", "FAILED", "CANCELLED", "DEVICE_LOST"
RESET, SIGNALLED = "reset", "signalled"


class Command(NamedTuple):
    """A command of a list. `kind`:

    `copy` of `in` to `out`; `long`, the same in two parts between which others may run; `infer`, the same
    by its own stream; `fail` is refused; `signal`, `reset` and `wait` concern the event `target`;
    `update` adds 1 to both halves of the state `target`, which is its input and its output.
    """

    kind: str
    target: str = ""


class Slot(NamedTuple):
    """The content that a driver writes into a slot of a ring."""

    sequence: int
    work: str
    fence: str = ""
    ticket: int = 0


class Event(NamedTuple):
    """The 8 bytes of an event, stored by commands at once."""

    state: str = RESET
    changes: int = 0


@dataclass(frozen=True)
class World:
    """The objects. `lists`: the commands of each command list.

    `fences`: places for fences; those in `late` are announced to the engine when a queue is destroyed.
    `looks`: the engine reads messages and cancellations while it works; `slices`: it may also yield to
    another queue; `decodes`: it looks while it decodes a list; `watchdog`: the first submission of A may
    be aborted. `injections`: lists that a user's injection may hit, and how they end. `defects`: see
    `defects.py`.
    """

    lists: dict[str, tuple[Command, ...]]
    queues: tuple[str, ...] = ("A",)
    slots: int = 2
    fences: tuple[str, ...] = ("fence",)
    late: frozenset[str] = frozenset()
    looks: bool = False
    slices: bool = False
    decodes: bool = False
    watchdog: bool = False
    injections: dict[str, str] = field(default_factory=dict)
    submissions: int = 3  # at most, per queue
    defects: frozenset[str] = frozenset()

    def has(self, defect: str) -> bool:
        """Return whether this defect was put into the model."""
        return defect in self.defects

    def targets(self, kind: str) -> list[str]:
        """Return the targets of commands of this kind."""
        commands = [command for work in self.lists.values() for command in work]
        return sorted({command.target for command in commands if command.kind == kind})

    @property
    def inferences(self) -> list[str]:
        """Return the lists that are one inference."""
        return [name for name, work in self.lists.items() if work[0].kind == "infer"]

    def memory(self) -> Memory:
        """Return every word with its initial value."""
        memory: Memory = {
            "messages": (),
            "known": frozenset(self.fences) - self.late,
            "hits": len(self.injections),
            "abort": "",
        }
        for queue in self.queues:
            for word in ("tail", "done", "completed", "injected", "injection hits", "poisoned"):
                memory[f"{queue}.{word}"] = 0
            memory |= {f"{queue}.{word}": 0 for word in ("step", "rest", "value")}
            memory |= {f"{queue}.{word}": "" for word in ("injected result", "poisoned info", "aside")}
            memory |= {f"{queue}.failed": (0, ""), f"{queue}.outcomes": (), f"{queue}.unreported": ()}
            memory |= {f"{queue}.{word}": (0, 0) for word in ("reached", "intent")}
            memory |= {f"{queue}.intent event": "", f"{queue}.closed": False}
            memory |= {f"-leaving {queue}": False, f"-gone {queue}": False}
            for slot in range(self.slots):
                memory |= {f"{queue}.slot{slot}": Slot(0, ""), f"{queue}.result{slot}": SUCCESS}
            for sequence in range(1, self.submissions + 1):
                memory |= {f"-{word} {queue}{sequence}": "" for word in ("ended", "told", "cut", "hit")}
                memory[f"-changes {queue}{sequence}"] = ()
        for fence in self.fences:
            memory |= {f"{fence}.{word}": 0 for word in ("signalled", "armed", "cancel", "given")}
            memory[f"{fence}.result"] = SUCCESS
        for event in {*self.targets("signal"), *self.targets("reset"), *self.targets("wait")}:
            memory[event] = Event()
        for name in self.lists:
            memory |= {f"in.{name}": 1, f"out.{name}": 0}
        for state in self.targets("update"):
            memory |= {f"{state}.low": 0, f"{state}.high": 0, f"{state}.staging": 0}
        if self.inferences:
            memory |= {"early": ()}
            for name in self.inferences:
                memory |= {f"{name}.stream": "", f"{name}.begun": False}
        return memory

    @property
    def lost(self) -> frozenset[str]:
        """Return the words that die with the engine."""
        words = {f"{queue}.{word}" for queue in self.queues for word in _OF_THE_ENGINE}
        if self.inferences:
            words |= {"early"} | {
                f"{name}.{word}" for name in self.inferences for word in ("stream", "begun")
            }
        words |= {f"-cut {queue}{number + 1}" for queue in self.queues for number in range(self.submissions)}
        return frozenset(words | {"known", "abort"})


_OF_THE_ENGINE = ("step", "rest", "closed", "poisoned", "poisoned info", "aside")
