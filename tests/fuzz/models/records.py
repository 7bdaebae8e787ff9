"""Messages between the director and the processes that run models."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tests.fuzz.models.case import Key


@dataclass(frozen=True)
class Way:
    """One way to a result: the interface, the compilation, the run. Written `api:compiled/run`."""

    api: str
    compiled: str
    run: str

    def __str__(self) -> str:
        return f"{self.api}:{self.compiled}/{self.run}"

    @classmethod
    def of(cls, text: str) -> Way:
        """Parse a way. Raise `ValueError`."""
        api, _, rest = text.partition(":")
        compiled, _, run = rest.partition("/")
        if not run:
            raise ValueError(f"way '{text}': expected api:compiled/run, such as plugin:plain/one")
        return cls(api, compiled, run)


@dataclass(frozen=True)
class Value:
    """The content of one output."""

    kind: str
    shape: tuple[int, ...]
    data: bytes


@dataclass(frozen=True)
class Refusal:
    """An error in place of numbers. `typed`: its class and text are documented."""

    stage: str
    kind: str
    text: str
    typed: bool = True

    def __str__(self) -> str:
        return f"{self.stage}: {self.kind}: {self.text}"


Step = list[Value] | Refusal
"""The result of one inference."""


@dataclass
class Answer:
    """The result of running a case. `rounds` has the steps of each request and repetition, in case order.

    `refused` says why there is nothing. `notes` tells how it was run (a split batch).
    """

    refused: Refusal | None = None
    rounds: list[list[Step]] = field(default_factory=list)
    notes: dict[str, Any] = field(default_factory=dict)

    @property
    def steps(self) -> list[Step]:
        """The steps of the first round."""
        return self.rounds[0]


@dataclass(frozen=True)
class Job:
    """Run this case in this way, with files in `folder`. A reset kills `engine_pid`."""

    key: Key
    way: Way
    folder: str
    engine_pid: int = 0
    notes: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Died:
    """The process ended, or did not answer in time and was killed."""

    how: str
    hung: bool = False
    said: str = ""

    def __str__(self) -> str:
        return f"{self.how}: {self.said[-300:]}" if self.said else self.how
