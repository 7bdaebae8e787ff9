"""What `softnpu infer` prints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from rich import box
from rich.table import Table

from softnpu.tools.comparison import Difference
from softnpu.tools.console import format_time, out
from softnpu.tools.inference_run import Run


def outputs(run: Run) -> None:
    """A row for each output: name, type, shape, smallest, mean and largest value."""
    table = _table(f"outputs of {run.device}, {run.precision}")
    table.add_column("output", overflow="fold")
    table.add_column("type")
    table.add_column("shape")
    for heading in ("min", "mean", "max"):
        table.add_column(heading, justify="right")
    for name, value in run.outputs.items():
        shape = "x".join(map(str, value.shape)) or "scalar"
        table.add_row(name, _type(value), shape, *_summary(value))
    out.print(table)


def times(runs: Sequence[Run]) -> None:
    """A row for each device."""
    table = _table(f"times, {len(runs[0].times_s)} inferences after the first")
    table.add_column("device")
    for heading in ("compile", "load", "first", "median", "p90"):
        table.add_column(heading, justify="right")
    for run in runs:
        load = "in compile" if run.load_s is None else _load(run.load_s)
        first, median, p90 = map(format_time, (run.first_s, run.median_s, run.p90_s))
        table.add_row(run.device, format_time(run.compile_s), load, first, median, p90)
    out.print(table)


def staged(run: Run) -> None:
    """How many bytes were copied because a tensor did not lie in device memory."""
    count = len(run.times_s) + 1
    out.print(
        f"staged bytes in {count} inferences: {run.staged_by_driver} by the driver, "
        f"{run.staged_by_engine} by the engine",
        highlight=False,
    )


def differences(ours: Run, theirs: Run, found: Mapping[str, Difference], tolerance: float) -> None:
    """A row for each output, then the verdict."""
    table = _table(f"{ours.device} against {theirs.device}, both {ours.precision}")
    table.add_column("output", overflow="fold")
    table.add_column("largest absolute", justify="right")
    table.add_column("largest relative", justify="right")
    table.add_column("bit by bit")
    for name, difference in found.items():
        table.add_row(
            name,
            f"{difference.absolute:.3g}",
            f"{difference.relative:.3g}",
            "equal" if difference.identical else "differs",
        )
    out.print(table)
    beyond = [name for name, difference in found.items() if not difference.within(tolerance)]
    if all(difference.identical for difference in found.values()):
        verdict = "[green]every number equals, bit by bit[/]"
    elif not beyond:
        verdict = f"[green]equal within a relative {tolerance:g}[/]"
    else:
        verdict = f"[red]differs by more than a relative {tolerance:g}[/] in {', '.join(beyond)}"
    out.print(verdict, highlight=False)


def _summary(value: npt.NDArray[Any]) -> tuple[str, str, str]:
    if not value.size:
        return ("-", "-", "-")
    numbers = value.astype(np.float64)
    bad = int(np.isnan(numbers).sum())
    if bad:
        return (f"{bad} NaN", "NaN", "NaN")
    return (f"{numbers.min():.5g}", f"{numbers.mean():.5g}", f"{numbers.max():.5g}")


def _type(value: npt.NDArray[Any]) -> str:
    """As OpenVINO writes it: `f32`, `i64`, `boolean`."""
    return "boolean" if value.dtype.kind == "b" else f"{value.dtype.kind}{8 * value.dtype.itemsize}"


def _load(seconds: float) -> str:
    # the daemon says 0 when it had the same content on the device already
    return format_time(seconds) if seconds else "shared"


def _table(title: str) -> Table:
    return Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
