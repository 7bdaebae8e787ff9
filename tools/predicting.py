"""`softnpu predict`: what the real NPU would do with a model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from softnpu.tools.console import JsonOption, print_json


def predict(
    model: Annotated[Path, typer.Argument(help="Any file that OpenVINO reads: .xml, .onnx, .tflite, ...")],
    platform: Annotated[
        list[str] | None,
        typer.Option(metavar="NUMBER,...", help="3720, 4000, 5010; all of them unless some are given."),
    ] = None,
    shape: Annotated[
        list[str] | None, typer.Option(metavar="NAME=D,D,...", help="Static shape of an input. Repeatable.")
    ] = None,
    config: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="OpenVINO property. Repeatable.")
    ] = None,
    details: Annotated[bool, typer.Option("--details", help="Every type of operation as well.")] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Exit with 1 if a platform is known to refuse the model.")
    ] = False,
    json_output: JsonOption = False,
) -> None:
    """Predict what the real NPU does with a model: whether its compiler takes it, and what to change."""
    from softnpu.emulator.platforms import PLATFORMS
    from softnpu.tools import inputs
    from softnpu.tools.predict import Verdict, prediction, screen

    names = [name for given in platform or [] for name in given.split(",")] or list(PLATFORMS)
    found = prediction.predict(
        model,
        names,
        shapes=inputs.parse_shapes(shape or []),
        config=inputs.parse_pairs("--config", config or [], "NAME=VALUE"),
    )
    if json_output:
        print_json(screen.as_document(found))
    else:
        screen.show(found, details=details)
    if check and any(support.verdict is Verdict.REFUSES for support in found.support.values()):
        raise typer.Exit(1)
