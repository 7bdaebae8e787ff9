"""Which layers are out of tolerance by themselves, and which only because of their inputs."""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from softnpu.tools.compare.statistics import Statistics
from softnpu.tools.compare.tolerances import Tolerances


class Role(enum.StrEnum):
    """A tensor's part in a difference."""

    EQUAL = "equal"
    IN_TOLERANCE = "in tolerance"
    OUT_OF_TOLERANCE = "out of tolerance"
    CAUSES = "causes"
    INHERITS = "inherits"
    UNKNOWN = "not tried"


@dataclass(frozen=True)
class Row:
    """One tensor of the comparison: an output, or a layer's value.

    `step` counts inferences from 0: the first one out of tolerance, else that of the largest difference.
    `alone` are the layer's statistics when fed with the reference's inputs; `note` has other remarks.
    """

    name: str
    kind: str
    statistics: Statistics
    role: Role
    step: int = 0
    alone: Statistics | None = None
    note: str = ""

    @property
    def bad(self) -> bool:
        """Whether it is out of tolerance."""
        return self.role not in (Role.EQUAL, Role.IN_TOLERANCE)


@dataclass(frozen=True)
class Alone:
    """A layer in isolation: its statistics on the reference's inputs, or why that is impossible."""

    statistics: Statistics | None = None
    reason: str = ""


def judge(name: str, kind: str, by_step: Sequence[Statistics], number: int, tolerances: Tolerances) -> Row:
    """Return the row of one tensor; `number` selects the step to show."""
    shown = by_step[number]
    if not shown.within(tolerances):
        role = Role.OUT_OF_TOLERANCE
    else:
        role = Role.EQUAL if all(each.difference.identical for each in by_step) else Role.IN_TOLERANCE
    return Row(name, kind, shown, role, number, note=shown.mismatch)


def with_causes(
    rows: Sequence[Row],
    sources: Collection[str],
    try_alone: Callable[[Sequence[Row]], Mapping[str, Alone]],
    tolerances: Tolerances,
) -> list[Row]:
    """Return the rows with a role for each that is out of tolerance.

    A layer causes a difference if it is out of tolerance when fed with the reference's values; else it
    inherits it. `sources` (states, say) read nothing within one inference: they cause it if nothing was out
    of tolerance before them.
    """
    bad = [row for row in rows if row.bad]
    alone = try_alone([row for row in bad if row.name not in sources]) if bad else {}
    first = min((row.step for row in bad), default=0)
    decided = []
    for row in rows:
        if not row.bad:
            decided.append(row)
        elif row.name in sources:
            earlier = any(other.step < row.step for other in bad)
            role = Role.CAUSES if row.step == first and not earlier else Role.INHERITS
            decided.append(replace(row, role=role))
        else:
            decided.append(_decided(row, alone[row.name], tolerances))
    return decided


def _decided(row: Row, alone: Alone, tolerances: Tolerances) -> Row:
    if alone.statistics is None:
        return replace(row, role=Role.UNKNOWN, note=alone.reason)
    role = Role.INHERITS if alone.statistics.within(tolerances) else Role.CAUSES
    return replace(row, role=role, alone=alone.statistics)
