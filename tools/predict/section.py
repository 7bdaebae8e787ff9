"""The interface of a section of the prediction, which answers one question about a model.

A section is added to `SECTIONS` in `prediction.py`; the command and the JSON document take it from there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import openvino as ov

from softnpu.emulator.prediction.graph import Graph
from softnpu.emulator.prediction.timing.host import Host


@dataclass(frozen=True, slots=True)
class Samples:
    """The inputs to run a model with: `files` as the command takes them, `arrays` by name, or generated.

    `count` is the number to generate; None for the default.
    """

    files: Sequence[str] = ()
    arrays: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0
    count: int | None = None


@dataclass(frozen=True, slots=True)
class Subject:
    """The subject of a question: a model with its shapes set, in OpenVINO's form and as a neutral graph.

    `bodies` are the graphs of its If, Loop and TensorIterator, `config` its compilation properties. `host`
    is the computer around the NPU; None: each platform's usual one.
    `shared` keeps a section's findings for all platforms, by its key.
    """

    name: str
    model: ov.Model
    graph: Graph
    bodies: tuple[Graph, ...] = ()
    config: Mapping[str, str] = field(default_factory=dict)
    samples: Samples = field(default_factory=Samples)
    host: Host | None = None
    shared: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Hint:
    """A change to make: the action, its reason, and the platforms concerned.

    Hints of a greater `weight` come first: 3 makes the model possible at all, 2 makes it right, 1 faster.
    """

    text: str
    reason: str
    platforms: tuple[str, ...]
    weight: int = 1


class Section(Protocol):
    """Answers one question for each platform. `key` is its name in the document, `title` the question.

    With `same_for_all` all platforms share one answer, which the document has once.
    """

    key: str
    title: str
    same_for_all: bool

    def answer(self, subject: Subject, platform: str) -> Any:
        """Return the answer for one platform, a dataclass that JSON can hold."""

    def hints(self, answers: Mapping[str, Any]) -> Sequence[Hint]:
        """Return the changes suggested by the answers."""

    def show(self, answers: Mapping[str, Any], *, details: bool) -> None:
        """Print the answers for a person, all platforms side by side."""
