"""`bench compare`: two saved benchmark runs, figure by figure, to reveal slowdowns.

Ratios are compared where both runs have them: machines and hours differ, a peer in the same run does not.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec
from rich.box import SIMPLE_HEAD
from rich.table import Table

from softnpu.tools.bench.result import Figures, Measurement
from softnpu.tools.shared.failures import ToolError

_MORE_IS_BETTER: Final = ("1/s", "1", "GiB/s")
"""Units of figures that are better when they are larger."""

Key = tuple[str, str, str, int]


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """A figure in both runs. `factor`: how much worse it has become; 1 is unchanged, less is better.

    It is None where either figure is zero; `by_ratio`: computed from the ratios to the peer.
    """

    bench: str
    metric: str
    peer: str | None
    size: int | None
    before: float
    after: float
    by_ratio: bool
    factor: float | None
    slower: bool


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """All figures of two runs, and the names of those in only one."""

    changes: tuple[Change, ...]
    missing: tuple[str, ...]
    added: tuple[str, ...]


def read(path: Path) -> Figures:
    """Read the output of `softnpu bench --json`. Raise `ToolError` for anything else."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Figures)
    except OSError as error:
        raise ToolError(
            f"run {path}", found=error.strerror or str(error), expected="a readable file"
        ) from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ToolError(
            f"run {path}",
            found=str(error),
            expected="figures of benchmarks",
            hint="save some with 'softnpu bench --json > FILE'",
        ) from error


def compare(before: Sequence[Measurement], after: Sequence[Measurement], tolerance: float) -> Comparison:
    """Compare two runs; a figure is slower if it is worse by more than the factor `tolerance`."""
    old, new = ({_key(row): row for row in rows} for rows in (before, after))
    return Comparison(
        changes=tuple(_change(old[key], new[key], tolerance) for key in old if key in new),
        missing=tuple(_name(key) for key in old if key not in new),
        added=tuple(_name(key) for key in new if key not in old),
    )


def table(comparison: Comparison) -> Table:
    """Return a table with a row for each figure in both runs."""
    made = Table(box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    made.add_column("figure", min_width=16)
    for heading in ("before", "after", "worse by"):
        made.add_column(heading, justify="right", no_wrap=True)
    made.add_column("", no_wrap=True)
    for row in comparison.changes:
        mark = " x" if row.by_ratio else ""
        made.add_row(
            name(row),
            f"{row.before:g}{mark}",
            f"{row.after:g}{mark}",
            "" if row.factor is None else f"{row.factor:.2f}",
            "[red]slower[/]" if row.slower else "",
        )
    return made


def name(row: Change | Measurement) -> str:
    """Return the identity of a figure."""
    return _name((row.bench, row.metric, row.peer or "", row.size or 0))


def sentence(row: Change) -> str:
    """Return a figure and its change in one line."""
    worse = "" if row.factor is None else f", worse by {row.factor:.2f}"
    return f"{name(row)}: {row.before:g} before, {row.after:g} after{worse}"


def _change(before: Measurement, after: Measurement, tolerance: float) -> Change:
    by_ratio = before.ratio is not None and after.ratio is not None
    old, new = (before.ratio, after.ratio) if by_ratio else (before.value, after.value)
    assert old is not None
    assert new is not None
    better, worse = (old, new) if before.unit not in _MORE_IS_BETTER else (new, old)
    factor = worse / better if better else None
    return Change(
        bench=before.bench,
        metric=before.metric,
        peer=before.peer,
        size=before.size,
        before=old,
        after=new,
        by_ratio=by_ratio,
        factor=factor,
        slower=worse > better * tolerance,
    )


def _key(row: Measurement) -> Key:
    return row.bench, row.metric, row.peer or "", row.size or 0


def _name(key: Key) -> str:
    bench, metric, peer, size = key
    return f"{bench}: {metric}" + (f", {size}" if size else "") + (f", against {peer}" if peer else "")
