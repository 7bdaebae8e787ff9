"""The output of `softnpu compare`: tables for a person, or one document."""

from __future__ import annotations

import io
import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from softnpu.tools.compare.comparing import Outcome
from softnpu.tools.compare.opening import Request, Sides
from softnpu.tools.compare.reduce import MOST_OPERATIONS
from softnpu.tools.compare.statistics import F16_LARGEST, Statistics
from softnpu.tools.compare.tolerances import Tolerances
from softnpu.tools.compare.verdict import Role, Row
from softnpu.tools.compare.writing import Reduced
from softnpu.tools.shared.console import format_count, make_table, out, print_line

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

_HEADING: Final = 3
"""Lines of a table before its first row: title, headings, rule."""

_MOST: Final = 8
"""The most inheriting or in-tolerance layers to show: there may be hundreds."""

_COLOURS: Final = {Role.CAUSES: "red", Role.OUT_OF_TOLERANCE: "red", Role.INHERITS: "yellow"}


@dataclass(frozen=True)
class Shown:
    """Everything that is shown of a comparison."""

    model: str
    request: Request
    sides: Sides
    tolerances: Tolerances
    outcome: Outcome
    reduced: Reduced | None
    reducing: bool = False

    @property
    def title(self) -> str:
        """`model.xml on NPU against CPU`."""
        candidate = self.sides.candidate.name
        name = candidate if " on " in candidate else f"{self.request.model.name} on {candidate}"
        return f"{name} against {self.sides.reference.name}"

    @property
    def verdict(self) -> str:
        """The result in a sentence."""
        outcome = self.outcome
        rows = [*outcome.outputs, *outcome.layers]
        if all(row.role is Role.EQUAL for row in rows):
            return "every number equals, bit by bit"
        if not any(row.bad for row in rows):
            return "every number is in tolerance"
        if self.ok:
            return "the outputs are in tolerance, and no layer causes a difference"
        bad = ", ".join(row.name for row in outcome.bad)
        return f"out of tolerance: {bad}" if bad else "the outputs are in tolerance, but not every layer"

    @property
    def ok(self) -> bool:
        """Whether everything is in tolerance."""
        return self.outcome.ok

    def notes(self) -> list[str]:
        """Return other remarks for the user, a sentence each."""
        return [*_about_layers(self), *_about_marking(self), *_about_reduced(self)]


def print_found(shown: Shown) -> None:
    """Print outputs, layers, verdict and notes."""
    steps = len(shown.sides.feeds.steps)
    print_line(f"{shown.title}, inputs: {shown.sides.feeds.origin}")
    _print_table("outputs", shown.outcome.outputs, steps)
    rows, left_out = selected(shown.outcome.layers)
    if rows:
        _print_table("layers that differ", rows, steps)
    if left_out:
        print_line(f"{left_out} more inherit a difference or are in tolerance: --json and --html have them")
    colour = "green" if shown.ok else "red"
    print_line(shown.verdict, style=colour)
    for note in shown.notes():
        print_line(note)


def selected(layers: Sequence[Row]) -> tuple[list[Row], int]:
    """Return the layers to show, and how many differing ones are omitted: most inheriting or in-tolerance."""
    harmless = sorted(
        (row for row in layers if row.role is Role.IN_TOLERANCE),
        key=lambda row: row.statistics.difference.relative,
        reverse=True,
    )
    inheriting = [row for row in layers if row.role is Role.INHERITS]
    some = {row.name for row in (*harmless[:_MOST], *inheriting[:_MOST])}
    differing = [row for row in layers if row.role is not Role.EQUAL]
    rows = [
        row for row in differing if row.name in some or row.role not in (Role.IN_TOLERANCE, Role.INHERITS)
    ]
    return rows, len(differing) - len(rows)


def as_document(shown: Shown) -> dict[str, Any]:
    """Return the same for programs. Non-finite numbers are null."""
    outcome = shown.outcome
    culprit = outcome.culprit
    return {
        "model": shown.model,
        "candidate": shown.sides.candidate.name,
        "reference": shown.sides.reference.name,
        "precision": [shown.sides.candidate.precision, shown.sides.reference.precision],
        "inputs": shown.sides.feeds.origin,
        "steps": len(shown.sides.feeds.steps),
        "tolerances": {
            "absolute": dict(shown.tolerances.absolute),
            "relative": dict(shown.tolerances.relative),
        },
        "in_tolerance": shown.ok,
        "identical": all(row.role is Role.EQUAL for row in (*outcome.outputs, *outcome.layers)),
        "outputs": [row_document(row) for row in outcome.outputs],
        "layers": [row_document(row) for row in outcome.layers],
        "layers_without_counterpart": outcome.unpaired,
        "first": None if outcome.first is None else outcome.first.name,
        "begins": None if outcome.begins is None else outcome.begins.name,
        "causes": [row.name for row in outcome.causes],
        "culprit": None if culprit is None else culprit.name,
        "marking_changes_outputs": None if outcome.marking is None else outcome.marking.largest is not None,
        "executions": outcome.executions,
        "reduced": None
        if shown.reduced is None
        else {
            "model": str(shown.reduced.model),
            "numbers": str(shown.reduced.numbers),
            "operations": shown.reduced.operations,
        },
        "notes": shown.notes(),
    }


def row_document(row: Row) -> dict[str, Any]:
    """Return one row for programs."""
    return {
        "name": row.name,
        "kind": row.kind,
        "role": str(row.role),
        "step": row.step,
        "note": row.note,
        **_statistics(row.statistics),
        "alone": None if row.alone is None else _statistics(row.alone),
    }


def _statistics(statistics: Statistics) -> dict[str, Any]:
    counts = {
        f"{name}_{side}": getattr(each, name)
        for side, each in (("npu", statistics.ours), ("reference", statistics.theirs))
        for name in ("nan", "infinite", "overflow")
    }
    return {
        "type": statistics.type,
        "shape": list(statistics.shape),
        "absolute": _finite(statistics.difference.absolute),
        "relative": _finite(statistics.difference.relative),
        "cosine": _finite(statistics.cosine),
        "ulps": statistics.ulps,
        "identical": statistics.difference.identical,
        **counts,
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


# ---------------------------------------------------------------- words


def _about_layers(shown: Shown) -> list[str]:
    outcome = shown.outcome
    notes = []
    if outcome.bisection is not None:
        notes += _about_bisection(shown)
    elif outcome.layers:
        equal = sum(row.role is Role.EQUAL for row in outcome.layers)
        notes += _about_roles(outcome)  # first: a page shows its first note beside the verdict
        notes.append(f"{format_count(len(outcome.layers), 'layer')} compared, {equal} equal bit by bit")
    elif shown.request.bisect:
        notes.append("the outputs are in tolerance: there is nothing to search for")
    elif outcome.bad and shown.sides.candidate.model is not None:
        notes.append(
            "softnpu compare --layers shows which layers differ, --bisect searches for the first one"
        )
    if outcome.unpaired:
        notes.append(f"{format_count(outcome.unpaired, 'layer')} without a counterpart in the reference")
    return notes


def _about_roles(outcome: Outcome) -> list[str]:
    first, causes = outcome.first, outcome.causes
    if first is None:
        return []
    notes = [f"first out of tolerance: {_label(first)}"]
    if causes:
        notes.append(f"out of tolerance alone, on the reference's inputs: {_list(causes)}")
    else:
        notes.append(
            "no layer is out of tolerance alone: small differences add up, or only fused layers differ"
        )
        if outcome.begins is not None:
            notes.append(f"differences, in tolerance at first, begin at {_label(outcome.begins)}")
    return notes


def _about_bisection(shown: Shown) -> list[str]:
    outcome = shown.outcome
    ended = outcome.bisection
    assert ended is not None
    notes = [
        f"first out of tolerance: {_label(outcome.layers[0])}; what it reads is in tolerance",
        f"found in {outcome.executions} executions among {format_count(outcome.candidates, 'layer')}",
    ]
    if ended.hidden_by:
        notes.append(
            "with these layers marked the outputs are in tolerance, so the difference needs what is fused "
            f"across them: {', '.join(ended.hidden_by)}"
        )
    return notes


def _about_marking(shown: Shown) -> list[str]:
    marking = shown.outcome.marking
    if marking is None:
        return []
    what = f"marking {format_count(marking.layers, 'layer')}"
    if marking.largest is None:
        return [f"{what} changed no bit of the outputs"]
    return [
        f"{what} changed the outputs by up to a relative {marking.largest.relative:.3g}, as less is fused"
        + ("" if shown.outcome.bisection is not None else "; --bisect marks few")
    ]


def _about_reduced(shown: Shown) -> list[str]:
    reduced = shown.reduced
    if reduced is None and not shown.reducing:
        return []
    if reduced is None and shown.outcome.culprit is None:
        return ["nothing is out of tolerance: no reduced model was written"]
    if reduced is None:
        return [
            f"no part of up to {MOST_OPERATIONS} layers shows the difference by itself: no model was written"
        ]
    words = ["softnpu", "compare", str(reduced.model), "--inputs", str(reduced.numbers)]
    words += [word for key, value in shown.request.config.items() for word in ("--config", f"{key}={value}")]
    if shown.request.device != "NPU":
        words += ["--device", shown.request.device]
    return [
        f"wrote {reduced.model}, {format_count(reduced.operations, 'operation')}, and {reduced.numbers} with "
        "its inputs and what they should give",
        f"see it with: {shlex.join(words)}",
    ]


def _label(row: Row) -> str:
    step = f" in inference {row.step + 1}" if row.step else ""
    return f"{row.name} ({row.kind}){step}"


def _list(rows: Sequence[Row], most: int = 5) -> str:
    names = ", ".join(_label(row) for row in rows[:most])
    return names if len(rows) <= most else f"{names} and {len(rows) - most} more"


# ---------------------------------------------------------------- tables


def _print_table(title: str, rows: Sequence[Row], steps: int) -> None:
    """Print two lines for each row: layer names are long."""
    from rich.text import Text

    headings = ("absolute", "relative", "cosine", "ULPs")
    table = make_table(title, "type and shape", right=headings)
    table.add_column("", no_wrap=True)
    for row in rows:
        statistics = row.statistics
        shape = "x".join(map(str, statistics.shape)) or "scalar"
        role = Text(row.role, _COLOURS.get(row.role, ""))
        table.add_row(f"{statistics.type} {shape}", *figures(statistics), role)
    lines = _lines(table)
    out.print(lines[0], soft_wrap=True)
    for line in lines[1:_HEADING]:
        out.print(Text("  "), line, sep="", soft_wrap=True)
    for row, line in zip(rows, lines[_HEADING:], strict=False):
        step = f", inference {row.step + 1}" if steps > 1 and row.role is not Role.EQUAL else ""
        print_line(f"  {row.name} ({row.kind}){step}" if row.kind != "Result" else f"  {row.name}{step}")
        out.print(Text("  "), line, sep="", soft_wrap=True)
        for note in (row.note, numbers(row.statistics)):
            if note:
                print_line(f"    {note}")
    print_line("")


def _lines(table: Table) -> list[Text]:
    """Return a table's lines, each cell on a single one, even where the terminal is narrower."""
    from rich.console import Console
    from rich.text import Text

    console = Console(file=io.StringIO(), width=160, force_terminal=out.is_terminal, no_color=out.no_color)
    with console.capture() as capture:
        console.print(table, highlight=False)
    return [Text.from_ansi(line.rstrip()) for line in capture.get().splitlines() if line.strip()]


def figures(statistics: Statistics) -> list[str]:
    """Return absolute and relative difference, cosine, ULPs as texts."""
    if statistics.mismatch:
        return ["-", "-", "-", "-"]
    return [
        f"{statistics.difference.absolute:.3g}",
        f"{statistics.difference.relative:.3g}",
        "1" if statistics.difference.identical else f"{statistics.cosine:.7f}",
        "-" if statistics.ulps is None else ulps_text(statistics.ulps),
    ]


def ulps_text(count: int) -> str:
    """Return an exact count if that is short."""
    return str(count) if count < 100_000 else f"{count:.2g}"


def numbers(statistics: Statistics) -> str:
    """Describe the non-finite or overflowing numbers of either side; empty if there are none."""
    names = {"nan": "NaN", "infinite": "infinite", "overflow": f"above {F16_LARGEST:g}, the largest of f16"}
    ours, theirs = statistics.ours, statistics.theirs
    notes = [
        f"{getattr(ours, name)} on the NPU and {getattr(theirs, name)} in the reference {text}"
        for name, text in names.items()
        if getattr(ours, name) or getattr(theirs, name)
    ]
    return "; ".join(notes)
