"""What `softnpu bench predict` prints: a line for each published figure, then what they say together."""

from __future__ import annotations

from collections.abc import Sequence

from softnpu.emulator.prediction.timing.calibration import CalibrationFile
from softnpu.tools.bench.prediction.evaluate import MEDIAN, ORDERED, P90, Compared, Summary
from softnpu.tools.console import format_time, make_table, out, print_json, print_line


def show(
    rows: Sequence[Compared], found: Sequence[Summary], file: CalibrationFile, *, workloads: bool
) -> None:
    """Tables for a person; single workloads only if asked for."""
    models = [row for row in rows if row.left_out]
    out.print(_rows("models, each left out of the calibration", models))
    for text in dict.fromkeys(row.remark for row in models if row.remark):
        marked = ", ".join(f"{row.id} {row.precision}" for row in models if row.remark == text)
        print_line(f"  * {text}: {marked}")
    if workloads:
        out.print(_rows("\nworkloads on one tile or one SHAVE", [row for row in rows if not row.left_out]))
    out.print(_summaries(found))
    print_line(
        f"calibrated on {file.date} with {file.rows} rows; held to: median {MEDIAN:.0%}, p90 {P90:.0%}, "
        f"{ORDERED:.0%} of pairs that differ by 30 % or more"
    )


def _rows(title: str, rows: Sequence[Compared]) -> object:
    table = make_table(title, "model", "platform", "", "published", right=("measured", "predicted", "error"))
    for row in rows:
        mark = " *" if row.remark else ""
        table.add_row(
            f"{row.id}{mark}",
            row.platform,
            f"{row.precision} {row.kind}" if row.left_out else row.precision,
            row.published,
            format_time(row.published_us / 1e6),
            format_time(row.predicted_us / 1e6),
            f"{row.error:+.0%}",
        )
    return table


def _summaries(found: Sequence[Summary]) -> object:
    table = make_table("\ntogether", "", right=("rows", "median", "p90", "pairs", "in order", "targets"))
    for each in found:
        verdict = "[green]met[/]" if each.met else "[red]missed[/]"
        table.add_row(
            each.name,
            str(each.rows),
            f"{each.median:.1%}",
            f"{each.p90:.1%}",
            str(each.pairs) if each.name.startswith("models") else "",
            f"{each.ordered:.1%}" if each.ordered is not None and each.name.startswith("models") else "",
            verdict if each.name.startswith("models") else "",
        )
    return table


def show_json(rows: Sequence[Compared], found: Sequence[Summary], file: CalibrationFile) -> None:
    """One document: every row, the summaries, the calibration."""
    print_json(
        {
            "rows": rows,
            "summaries": found,
            "targets": {"median": MEDIAN, "p90": P90, "ordered": ORDERED},
            "calibration": file,
        }
    )
