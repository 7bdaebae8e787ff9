"""The output of the comparison: a line for each published figure, then summaries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import msgspec

from softnpu.emulator.prediction.timing.calibration import CalibrationFile
from softnpu.tools.shared.console import format_time, make_table, out, print_json, print_line
from tests.prediction.calibration.evaluate import MEDIAN, OFF, ORDERED, P90, Compared, LeftOut, Summary
from tests.prediction.calibration.fit import COVERED

if TYPE_CHECKING:
    from rich.table import Table


def show(
    rows: Sequence[Compared], summaries: Sequence[Summary], file: CalibrationFile, *, workloads: bool
) -> None:
    """Print tables for people; single workloads only on request."""
    models = [row for row in rows if row.left_out]
    out.print(_rows("models, each family left out of the calibration", models))
    for text in dict.fromkeys(row.remark for row in models if row.remark):
        marked = [row for row in models if row.remark == text]
        names = ", ".join(dict.fromkeys(row.id for row in marked))
        print_line(f"  * {names} on {marked[0].platform}: {text}")
    if workloads:
        single = [row for row in rows if not row.left_out]
        out.print(_rows("workloads on one tile or one SHAVE, not calibrated", single))
    out.print(_summaries(summaries))
    print_line(
        f"calibrated on {file.date} with {file.rows} rows; held to: median {MEDIAN:.0%}, p90 {P90:.0%}, "
        f"{ORDERED:.0%} of pairs, {COVERED:.0%} in band, give or take {OFF:.0%}"
    )
    print_line("pairs: of one kind, 30 % or more apart")


def _rows(title: str, rows: Sequence[Compared]) -> Table:
    table = make_table(title, "", "on", "in", "what", right=("measured", "predicted", "error"))
    for row in rows:
        table.add_row(
            f"{'*' if row.remark else ' '} {row.id}",
            row.platform,
            row.host,
            f"{row.precision} {row.kind}" if row.left_out else row.precision,
            _time(row.published_us),
            _time(row.predicted_us),
            f"{row.error:+.0%}",
        )
    return table


def _time(us: float) -> str:
    return f"{us:.1f} us" if us < 100 else format_time(us / 1e6)


def _summaries(summaries: Sequence[Summary]) -> Table:
    table = make_table(
        "together", "", right=("rows", "median", "p90", "pairs", "in order", "in band", "targets")
    )
    verdicts = {None: "", True: "met", False: "missed"}
    for each in summaries:
        pairs = ("", "") if each.ordered is None else (str(each.pairs), f"{each.ordered:.0%}")
        band = "" if each.covered is None else f"{each.covered:.0%}"
        row = (each.name, str(each.rows), f"{each.median:.0%}", f"{each.p90:.0%}", *pairs, band)
        table.add_row(*row, verdicts[each.met])
    return table


def show_json(
    rows: Sequence[Compared], summaries: Sequence[Summary], file: CalibrationFile, left_out: LeftOut
) -> None:
    """Print one document: every row, the summaries, the calibration."""
    print_json(
        {
            "rows": rows,
            "summaries": summaries,
            "targets": {"median": MEDIAN, "p90": P90, "ordered": ORDERED, "covered": COVERED},
            "calibration": msgspec.structs.asdict(file) | {"left_out": left_out},
        }
    )
