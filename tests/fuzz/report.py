"""Results: answers, coverage, and every violation with the command that reproduces it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from softnpu.emulator.interface import messages as msg
from softnpu.emulator.interface.result import ErrorInfo, ZeResult

_KNOWN = {int(result) for result in ZeResult}
_MOST = 20


class Violation(Exception):
    """The daemon broke a rule."""


@dataclass
class Tally:
    """Counts of one run. `accepted` and `refused` by request, `results` by result code."""

    cases: Counter[str] = field(default_factory=Counter)
    accepted: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    results: Counter[str] = field(default_factory=Counter)
    deep: Counter[str] = field(default_factory=Counter)
    seconds: Counter[str] = field(default_factory=Counter)
    worker_deaths: int = 0
    engine_restarts: int = 0
    bystander: dict[str, Any] = field(default_factory=dict)
    violations: list[str] = field(default_factory=list)
    innocent_ms: dict[str, float] = field(default_factory=dict)

    def saw(self, what: str, answer: msg.Answer) -> None:
        """Record one answer. A refusal must have a known code and name an object."""
        if isinstance(answer, msg.Failed):
            self.refused[what] += 1
            self.info(answer.info)
        else:
            self.accepted[what] += 1
            self.results["SUCCESS"] += 1

    def info(self, info: ErrorInfo) -> None:
        if info.result not in _KNOWN or not info.object:
            raise Violation(f"an untyped refusal: {info}")
        self.results[ZeResult(info.result).name] += 1
        self.worker_deaths += info.object == "compiler worker"

    def violate(self, where: str, error: BaseException) -> None:
        """Record one more violation."""
        self.violations.append(f"{where}: {type(error).__name__}: {str(error)[:600]}")

    @property
    def good(self) -> bool:
        return not self.violations

    @property
    def failed_enough(self) -> bool:
        return len(self.violations) >= _MOST

    def summary(self) -> str:
        """Return a few lines for people."""
        lines = []
        for kind, count in self.cases.items():
            seconds = self.seconds[kind]
            rate = f"{count / seconds:.0f}/s" if seconds else ""
            deep = f", {self.deep[kind] / count:.0%} behind the first check" if self.deep[kind] else ""
            most = f", the bystander waited at most {self.innocent_ms.get(kind, 0):.0f} ms"
            lines.append(f"{kind}: {count} cases, {seconds:.1f} s, {rate}{deep}{most}")
        lines.append(f"results: {dict(self.results.most_common())}")
        never = sorted(set(self.refused) - set(self.accepted))
        lines.append(f"never accepted: {', '.join(never) or 'nothing'}")
        lines.append(
            f"bystander: {self.bystander}; engine restarts: {self.engine_restarts}; "
            f"compiler workers that died: {self.worker_deaths}"
        )
        lines.append(f"violations: {len(self.violations)}")
        return "\n".join(lines)

    def as_json(self) -> dict[str, Any]:
        deep = {kind: round(self.deep[kind] / count, 3) for kind, count in self.cases.items() if count}
        return {**vars(self), "behind_the_first_check": deep, "total": sum(self.cases.values())}
