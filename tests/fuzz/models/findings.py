"""The findings of a run: cases with a wrong answer, and evidence to explain them."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field

from tests.fuzz.models.case import Key
from tests.fuzz.models.compare import Difference
from tests.fuzz.models.records import Way

_NUMBERS = re.compile(r"0x[0-9a-f]+|\d+")
_QUOTED = re.compile(r"'[^']*'")


@dataclass
class Finding:
    """One case that went wrong in one way.

    `evidence` gives for each other form of asking OpenVINO's CPU device whether it agrees with the first
    ("same"), with softnpu ("as softnpu"), or neither. `operations` counts those of the model by type. `known`
    names its excuse; it is `unsure` if the CPU device, asked again in a process with other memory, disagrees
    where they differ. `log`: the daemon's log, if its engine died.
    """

    key: Key
    way: Way
    kind: str
    text: str
    evidence: dict[str, str] = field(default_factory=dict)
    operations: Counter[str] = field(default_factory=Counter)
    model: list[str] = field(default_factory=list)
    differences: list[Difference] = field(default_factory=list)
    known: str = ""
    unsure: bool = False
    saved: str = ""
    log: str = ""

    @property
    def reason(self) -> str:
        """The text without names and numbers, which identifies the kind of a finding."""
        text = self.text.split("right is")[0] if self.kind == "wrong" else self.text
        return _NUMBERS.sub("#", _QUOTED.sub("'*'", text))[:160]

    def __str__(self) -> str:
        lines = [f"{self.key} {self.way} {self.kind}: {self.text}"]
        if self.evidence:
            lines.append(
                "    CPU device: " + ", ".join(f"{form} {found}" for form, found in self.evidence.items())
            )
        if self.key.edits:
            lines.append(f"    after {len(self.key.edits)} edits: {list(self.key.edits)}")
        lines += [f"    {line}" for line in self.model]
        lines += [f"    daemon: {line}" for line in self.log.splitlines()]
        if self.saved:
            lines.append(f"    saved in {self.saved}")
        return "\n".join(lines)
