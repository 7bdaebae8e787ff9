"""What is known to differ. An entry here is a defect with an owner: it is counted apart and hides nothing else.

`KNOWN` has defects of softnpu that are open; an entry goes when its fix comes, and the short run of the suite fails
until then if it meets one. `LIMITS` are refusals and differences that the documents state.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.fuzz.models.findings import Finding


@dataclass(frozen=True)
class Known:
    """One kind: a name, where it is written down, and how to tell it."""

    name: str
    where: str
    matches: Callable[[Finding], bool]


def _refused(*texts: str, api: str = "") -> Callable[[Finding], bool]:
    def matches(finding: Finding) -> bool:
        return (
            finding.kind == "refused alone"
            and finding.way.api.startswith(api)
            and any(text in finding.text for text in texts)
        )

    return matches


KNOWN: tuple[Known, ...] = ()

LIMITS: tuple[Known, ...] = ()


def known(finding: Finding) -> str:
    """The name of the kind that a finding belongs to; empty for something new."""
    return next((one.name for one in (*KNOWN, *LIMITS) if one.matches(finding)), "")
