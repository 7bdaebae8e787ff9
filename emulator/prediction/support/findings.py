"""Verdicts, sources and findings: statements about a model."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass


class Verdict(enum.StrEnum):
    """Silicon's response. `UNKNOWN`: no source says, or two sources differ."""

    TAKES = "takes"
    UNKNOWN = "unknown"
    REFUSES = "refuses"

    @property
    def severity(self) -> int:
        """0 for the best, 2 for the worst."""
        return list(Verdict).index(self)


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """Return the worst of some verdicts; `TAKES` of none."""
    return max(verdicts, key=lambda verdict: verdict.severity, default=Verdict.TAKES)


@dataclass(frozen=True, slots=True)
class Source:
    """The origin of a statement: a repository and a path or a thread, the version read, its date."""

    repository: str
    path: str
    version: str
    date: str

    def __str__(self) -> str:
        version = f"{self.version}, {self.date}" if self.version else self.date
        return f"{self.repository}: {self.path} ({version})"


@dataclass(frozen=True, slots=True)
class Finding:
    """A rule's statement about a model. `layers` are the friendly names of the operations concerned."""

    rule: str
    verdict: Verdict
    found: str
    expected: str
    hint: str
    sources: tuple[Source, ...]
    layers: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.found}; expected {self.expected}"


@dataclass(frozen=True, slots=True)
class OperationSupport:
    """All operations of one type and version in a model that are not folded.

    `passed` of `tests` tests passed in OpenVINO's conformance report; 0 tests if the report has none.
    """

    type: str
    opset: str
    count: int
    verdict: Verdict
    reason: str
    passed: int = 0
    tests: int = 0


@dataclass(frozen=True, slots=True)
class Support:
    """Whether the compiler takes a model on a platform, and if not, why."""

    platform: str
    findings: tuple[Finding, ...]
    operations: tuple[OperationSupport, ...]

    @property
    def verdict(self) -> Verdict:
        """The worst verdict of all findings."""
        return worst(finding.verdict for finding in self.findings)

    @property
    def refused(self) -> tuple[Finding, ...]:
        """The findings that cause the refusal of the model."""
        return tuple(finding for finding in self.findings if finding.verdict is Verdict.REFUSES)

    @property
    def refused_layers(self) -> frozenset[str]:
        """The friendly names of refused operations."""
        return frozenset(layer for finding in self.refused for layer in finding.layers)
