"""The sum of a run, for people and as JSON."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from tests.fuzz.models.findings import Finding

_SHOWN = 3


@dataclass
class Tally:
    """The results of all models. `findings` has those of unknown kind, `known` counts the others."""

    models: int = 0
    seconds: float = 0.0
    counts: Counter[str] = field(default_factory=Counter)
    operations: Counter[str] = field(default_factory=Counter)
    known: Counter[str] = field(default_factory=Counter)
    examples: dict[str, Finding] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    unsure: list[Finding] = field(default_factory=list)
    daemon_deaths: list[str] = field(default_factory=list)

    def add(self, finding: Finding) -> None:
        """Add a finding to its category."""
        if finding.known:
            self.known[finding.known] += 1
            self.examples.setdefault(finding.known, finding)
        elif finding.unsure:
            self.unsure.append(finding)
        else:
            self.findings.append(finding)

    @property
    def good(self) -> bool:
        """Whether no unknown finding was made."""
        return not self.findings and not self.daemon_deaths

    def summary(self) -> str:
        """Return the final lines."""
        rate = self.models / self.seconds if self.seconds else 0.0
        lines = [f"{self.models} models in {self.seconds:.0f} s, {rate:.1f} a second"]
        results = {name: count for name, count in sorted(self.counts.items()) if not name.startswith("way ")}
        lines += [f"  {count:7} {name}" for name, count in results.items()]
        ways = sum(1 for name in self.counts if name.startswith("way "))
        lines.append(f"  {ways} ways, {len(self.operations)} types of operations")
        for name, count in self.known.most_common():
            lines.append(
                f"known: {count} {name}, such as {self.examples[name].key} {self.examples[name].way}"
            )
        lines.append(f"OpenVINO's CPU device against itself: {len(self.unsure)}")
        lines += [f"  {one.key} {one.way}: {one.text[:160]}; {one.evidence}" for one in self.unsure[:_SHOWN]]
        groups: dict[tuple[str, str], list[Finding]] = {}
        for finding in self.findings:
            groups.setdefault((finding.kind, finding.reason), []).append(finding)
        for (kind, reason), found in sorted(groups.items(), key=lambda item: -len(item[1])):
            numbers = ", ".join(f"{one.key} {one.way}" for one in found[:_SHOWN])
            lines.append(f"NEW: {len(found)} {kind}: {reason} ({numbers})")
        lines += [f"NEW: daemon died: {text}" for text in self.daemon_deaths]
        lines.append(f"new differences: {len(self.findings) + len(self.daemon_deaths)}")
        return "\n".join(lines)

    def as_json(self) -> dict[str, Any]:
        """Return everything, for `--json`."""
        return {
            "models": self.models,
            "seconds": round(self.seconds, 1),
            "counts": dict(self.counts),
            "operations": dict(self.operations.most_common()),
            "known": dict(self.known),
            "unsure": [str(one) for one in self.unsure],
            "findings": [str(one) for one in self.findings],
            "daemon_deaths": self.daemon_deaths,
        }
