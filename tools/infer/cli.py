"""`softnpu infer`: one model on the emulated NPU, optionally beside OpenVINO's own device."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from softnpu.tools.shared.console import JsonOption, print_json
from softnpu.tools.shared.daemon_connection import SocketOption
from softnpu.tools.shared.failures import ToolError, UsageError
from softnpu.tools.shared.model_options import (
    ConfigOption,
    CountOption,
    DeviceOption,
    ModelArgument,
    SeedOption,
    ShapeOption,
)

if TYPE_CHECKING:
    from softnpu.tools.infer.inference_run import Job, Run
    from softnpu.tools.shared.comparison import Comparison


def infer(
    model: ModelArgument,
    device: DeviceOption = "NPU",
    shape: ShapeOption = None,
    input: Annotated[
        list[str] | None,
        typer.Option(
            "--input",
            "--inputs",
            metavar="[NAME=]FILE",
            help="A .npz file with inputs by name, a .npy file or a picture; others are random. Repeatable.",
        ),
    ] = None,
    n: CountOption = 20,
    compare: Annotated[
        str | None, typer.Option(metavar="CPU", help="Run the same on a device of OpenVINO, and compare.")
    ] = None,
    precision: Annotated[
        str | None, typer.Option(help="Arithmetic on both sides: f32 (default), bf16 or f16.")
    ] = None,
    config: ConfigOption = None,
    source_model: Annotated[
        Path | None,
        typer.Option(
            "--source-model",
            metavar="FILE",
            help="What MODEL was compiled from: for --compare and for weights.",
        ),
    ] = None,
    seed: SeedOption = 0,
    profile: Annotated[
        bool, typer.Option("--profile", help="The layers of the last inference, with their times.")
    ] = False,
    json_output: JsonOption = False,
    socket: SocketOption = None,
) -> None:
    """Run a model on the emulated NPU: outputs, times, staged bytes, and how it compares."""
    from softnpu.tools.infer import inference_run
    from softnpu.tools.infer import show as report
    from softnpu.tools.shared import inputs

    job = inference_run.Job(
        model=model,
        shapes=inputs.parse_shapes(shape or []),
        inputs=input or (),
        config=_config(config or [], precision, profile),
        seed=seed,
        count=n,
        source_model=source_model,
        profile=profile,
    )
    _check_source_model(job, compare is not None)
    peer = None if compare is None else inference_run.peer_device(compare)
    ours = inference_run.on_npu(job, device, socket)
    theirs = None if peer is None else inference_run.on_openvino(job, peer, ours)
    comparison = None if theirs is None else _compare(ours, theirs)
    if json_output:
        print_json(report.as_document(ours, theirs, comparison))
    else:
        report.show(ours, theirs, comparison)
    if comparison is not None and comparison.beyond:
        raise typer.Exit(1)


def _check_source_model(job: Job, compared: bool) -> None:
    """Reject a source model for anything but a blob, and a comparison of a blob with nothing."""
    if job.source_model is not None and not job.is_blob:
        raise UsageError(
            "--source-model",
            found=f"given, but {job.model} is no compiled model",
            expected="it with a compiled model only",
        )
    if compared and job.is_blob and job.source_model is None:
        raise UsageError(
            f"--compare, compiled model {job.model}",
            found="OpenVINO's own devices cannot run it",
            expected="the model that it was compiled from",
            hint="give it with --source-model FILE",
        )


def _config(pairs: Sequence[str], precision: str | None, profile: bool) -> dict[str, str]:
    from softnpu.emulator.compiler.options import PRECISION
    from softnpu.tools.shared.inputs import parse_config

    config = parse_config(pairs)
    if profile and config.setdefault("PERF_COUNT", "YES") != "YES":
        raise UsageError("--profile", found=f"--config PERF_COUNT={config['PERF_COUNT']}", expected="YES")
    if precision is not None and config.setdefault(PRECISION, precision) != precision:
        raise UsageError(
            "--precision", found=f"{precision}, and --config {PRECISION}={config[PRECISION]}", expected="one"
        )
    return config


def _compare(ours: Run, theirs: Run) -> Comparison:
    from softnpu.tools.shared.comparison import TOLERANCE, Comparison, compare

    differences = {}
    for name, value in ours.outputs.items():
        try:
            differences[name] = compare(value, theirs.outputs[name])
        except (KeyError, ValueError) as error:
            raise ToolError(
                f"output '{name}' against {theirs.device}", found=str(error), expected="the same"
            ) from error
    return Comparison(differences, TOLERANCE.get(ours.precision, TOLERANCE["f32"]))
