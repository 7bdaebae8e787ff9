"""`softnpu bench predict`: compare or recalibrate."""

from __future__ import annotations

import time
from pathlib import Path

from softnpu.emulator.prediction.timing import calibration
from softnpu.tools.bench.prediction import evaluate, fit, show
from softnpu.tools.bench.prediction.measurements import model_rows, workload_rows
from softnpu.tools.shared.console import out, print_line


def run(*, json: bool, workloads: bool) -> bool:
    """Print the comparison; return whether the predictions of all models meet their targets."""
    file = calibration.load()
    cases = fit.cases(model_rows())
    models = evaluate.compare_models(cases, file)
    single = evaluate.compare_workloads(workload_rows())
    summaries = (
        *evaluate.summaries(cases, file),
        evaluate.summarise("single workloads", single, held=False),
    )
    rows = [*models, *single]
    if json:
        show.show_json(rows, summaries, file)
    else:
        show.show(rows, summaries, file, workloads=workloads)
    return all(each.met is not False for each in summaries)


def calibrate(target: Path) -> None:
    """Refit the factors, for all models and without each one, and write them to a file."""
    with out.status("calibrating: a fit for all rows, and one without each model"):
        file = fit.calibrate(model_rows(), time.strftime("%Y-%m-%d", time.gmtime()))
    target.write_bytes(calibration.encode(file))
    print_line(f"{target}: {len(file.left_out) + 1} calibrations of {file.rows} rows")
