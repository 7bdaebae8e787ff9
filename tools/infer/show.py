"""The output of `softnpu infer`: tables for a person, or one document."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import openvino as ov

from softnpu.tools.infer.inference_run import Run
from softnpu.tools.shared.comparison import Comparison
from softnpu.tools.shared.console import format_time, make_table, out, print_line
from softnpu.tools.shared.cpu_reference import is_in_f32, is_unfused


def show(ours: Run, theirs: Run | None, comparison: Comparison | None) -> None:
    """Print the outputs, requested layers, times and comparison."""
    _show_outputs(ours)
    if ours.layers:
        _show_layers(ours)
    _show_times([ours] if theirs is None else [ours, theirs])
    # bytes copied because a tensor was not in device memory
    print_line(
        f"staged bytes in {len(ours.times_s) + 1} inferences: {ours.staged_by_driver} by the driver, "
        f"{ours.staged_by_engine} by the engine"
    )
    if theirs is not None and comparison is not None:
        _show_differences(ours, theirs, comparison)


def as_document(ours: Run, theirs: Run | None, comparison: Comparison | None) -> dict[str, Any]:
    """Return the same for programs; times in seconds."""
    document: dict[str, Any] = {"runs": [_run(run) for run in (ours, theirs) if run is not None]}
    if comparison is not None:
        document["comparison"] = {
            "tolerance": comparison.tolerance,
            "identical": comparison.identical,
            "beyond": comparison.beyond,
            "outputs": {
                name: {"absolute": each.absolute, "relative": each.relative, "identical": each.identical}
                for name, each in comparison.differences.items()
            },
        }
    return document


def _run(run: Run) -> dict[str, Any]:
    return {
        "device": run.device,
        "precision": run.precision,
        "config": dict(run.config),
        "compile_s": run.compile_s,
        "load_s": run.load_s,
        "first_s": run.first_s,
        "median_s": run.median_s,
        "p90_s": run.p90_s,
        "inferences": len(run.times_s),
        "staged_by_driver": run.staged_by_driver,
        "staged_by_engine": run.staged_by_engine,
        "outputs": [
            {
                "name": name,
                "type": _type(value),
                "shape": list(value.shape),
                **{key: number if np.isfinite(number) else None for key, number in _summary(value).items()},
            }
            for name, value in run.outputs.items()
        ],
        "modelled_layers": run.modelled_layers,
        "layers": [
            {
                "name": layer.node_name,
                "type": layer.node_type,
                "unit": layer.exec_type,
                "status": _status(layer),
                "time_s": layer.real_time.total_seconds(),
            }
            for layer in run.layers
        ],
    }


def _show_outputs(run: Run) -> None:
    headings = ("output", "type", "shape")
    table = make_table(f"outputs of {run.device}, {run.precision}", *headings, right=("min", "mean", "max"))
    _fold_first(table)
    for name, value in run.outputs.items():
        shape = "x".join(map(str, value.shape)) or "scalar"
        table.add_row(name, _type(value), shape, *_words(_summary(value)))
    out.print(table)


def _show_layers(run: Run) -> None:
    """Show a row for each executed layer, in order, with its share of the total time."""
    layers = [layer for layer in run.layers if layer.status == ov.ProfilingInfo.Status.EXECUTED]
    total = sum(layer.real_time.total_seconds() for layer in layers) or 1.0
    clock = ", on the modelled clock" if run.modelled_layers else ""
    title = f"layers of the last inference on {run.device}{clock}"
    table = make_table(title, "layer", "type", "unit", right=("time", "share"))
    _fold_first(table)
    for layer in layers:
        taken = layer.real_time.total_seconds()
        table.add_row(
            layer.node_name, layer.node_type, layer.exec_type, format_time(taken), f"{taken / total:.1%}"
        )
    out.print(table)


def _show_times(runs: list[Run]) -> None:
    headings = ("compile", "load", "first", "median", "p90")
    title = f"times, {len(runs[0].times_s)} inferences after the first"
    table = make_table(title, "device", right=headings)
    for run in runs:
        load = "in compile" if run.load_s is None else _load(run.load_s)
        first, median, p90 = map(format_time, (run.first_s, run.median_s, run.p90_s))
        table.add_row(run.device, format_time(run.compile_s), load, first, median, p90)
    out.print(table)


def _show_differences(ours: Run, theirs: Run, comparison: Comparison) -> None:
    how = f"both {ours.precision}"
    if theirs.precision != ours.precision:
        how = f"{ours.precision} against {theirs.precision}"
    table = make_table(
        f"{ours.device} against {theirs.device}, {how}",
        "output",
        right=("largest absolute", "largest relative"),
    )
    table.add_column("bit by bit")
    _fold_first(table)
    for name, difference in comparison.differences.items():
        equal = "equal" if difference.identical else "differs"
        table.add_row(name, f"{difference.absolute:.3g}", f"{difference.relative:.3g}", equal)
    out.print(table)
    if comparison.identical:
        print_line("every number equals, bit by bit", style="green")
    elif not comparison.beyond:
        print_line(f"equal within a relative {comparison.tolerance:g}", style="green")
    else:
        outputs = ", ".join(comparison.beyond)
        print_line(f"differs by more than a relative {comparison.tolerance:g} in {outputs}", style="red")
    if is_unfused(theirs.config):
        out.print(
            f"{theirs.device} ran with SNIPPETS_MODE=DISABLE: without it, it fuses the quantised layers of "
            "this model, which may give other numbers or end the program.",
            highlight=False,
        )
    if is_in_f32(theirs.config):
        out.print(
            f"{theirs.device} ran with LP_TRANSFORMS_MODE=NO: without it, it computes quantised layers in 8 "
            "bits, which gives wrong numbers on a processor without VNNI.",
            highlight=False,
        )
    if theirs.default_precision in ("bf16", "f16") and theirs.default_precision != ours.precision:
        out.print(
            f"On this machine {theirs.device} computes in {theirs.default_precision} unless a program sets "
            f"INFERENCE_PRECISION_HINT to {ours.precision}: without it the numbers differ from these.",
            highlight=False,
        )


def _fold_first(table: Any) -> None:
    table.columns[0].no_wrap, table.columns[0].overflow = False, "fold"


def _summary(value: npt.NDArray[Any]) -> dict[str, float]:
    """Return smallest, mean and largest value, and the number of NaNs."""
    numbers = value.astype(np.float64) if value.size else np.full(1, np.nan)
    ends = (float(numbers.min()), float(numbers.mean()), float(numbers.max()))
    return {"min": ends[0], "mean": ends[1], "max": ends[2], "nan": int(np.isnan(value.astype(float)).sum())}


def _words(summary: dict[str, float]) -> list[str]:
    if summary["nan"]:
        return [f"{summary['nan']} NaN", "NaN", "NaN"]
    return ["-" if np.isnan(summary[key]) else f"{summary[key]:.5g}" for key in ("min", "mean", "max")]


def _type(value: npt.NDArray[Any]) -> str:
    """Return OpenVINO's name: `f32`, `i64`, `boolean`."""
    return "boolean" if value.dtype.kind == "b" else f"{value.dtype.kind}{8 * value.dtype.itemsize}"


def _status(layer: ov.ProfilingInfo) -> str:
    return str(layer.status).rpartition(".")[2]


def _load(seconds: float) -> str:
    # the daemon says 0 if the device already had the same content
    return format_time(seconds) if seconds else "shared"
