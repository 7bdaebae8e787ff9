"""Compare the predictions with published measurements, or calibrate them again: of the repository only.

python -m tests.prediction.calibration [--workloads] [--json] [--check] [--calibrate]
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Final

import typer

from softnpu.emulator.prediction.timing import calibration
from softnpu.tools.shared.console import JsonOption, out, print_line
from tests.prediction.calibration import evaluate, fit, show
from tests.prediction.calibration.measurements import model_rows, workload_rows

_INSTALLED: Final = Path(__file__).parents[3] / "emulator/prediction/timing/data/calibration.json"

app = typer.Typer(add_completion=False)


@app.command()
def main(
    workloads: Annotated[
        bool, typer.Option("--workloads", help="Also a line for each single workload.")
    ] = False,
    calibrate: Annotated[
        bool,
        typer.Option("--calibrate", help="Fit the factors of the repository again, which takes minutes."),
    ] = False,
    json: JsonOption = False,
    check: Annotated[bool, typer.Option("--check", help="Exit code 1 if a target is missed.")] = False,
) -> None:
    """Predicted speed of the real device against published measurements, leaving families of models out."""
    if calibrate:
        _calibrate()
        return
    file, left_out, cases = calibration.load(), fit.load_left_out(), fit.cases(model_rows())
    models = evaluate.compare_models(cases, left_out)
    single = evaluate.compare_workloads(workload_rows())
    summaries = (
        *evaluate.summaries(cases, left_out),
        evaluate.summarise("single workloads", single, held=False),
    )
    rows = [*models, *single]
    if json:
        show.show_json(rows, summaries, file, left_out)
    else:
        show.show(rows, summaries, file, workloads=workloads)
    if check and any(each.met is False for each in summaries):
        raise typer.Exit(1)


def _calibrate() -> None:
    with out.status("calibrating: a fit for all rows, and one without each family"):
        file, left_out = fit.calibrate(model_rows(), time.strftime("%Y-%m-%d", time.gmtime()))
    _INSTALLED.write_bytes(fit.encode(file))
    fit.LEFT_OUT.write_bytes(fit.encode(left_out))
    print_line(f"{_INSTALLED} and {fit.LEFT_OUT}: {len(left_out) + 1} calibrations of {file.rows} rows")


if __name__ == "__main__":
    app()
