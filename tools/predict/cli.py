"""`softnpu predict`: predict the real NPU's behaviour with a model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from softnpu.tools.shared import completion
from softnpu.tools.shared.console import JsonOption, print_json
from softnpu.tools.shared.model_options import ConfigOption, HtmlOption, ShapeOption


def predict(
    model: Annotated[Path, typer.Argument(help="Any file that OpenVINO reads: .xml, .onnx, .tflite, ...")],
    platform: Annotated[
        list[str] | None,
        typer.Option(
            autocompletion=completion.platforms,
            metavar="PLATFORM,...",
            help="3720, 4000, 5010, 5020 or codenames (lunar-lake); all of them unless some are given.",
        ),
    ] = None,
    shape: ShapeOption = None,
    config: ConfigOption = None,
    only: Annotated[
        list[str] | None,
        typer.Option(
            metavar="QUESTION,...", help="compile, right, speed; all of them unless some are given."
        ),
    ] = None,
    given: Annotated[
        list[str] | None,
        typer.Option(
            "--inputs",
            "--input",
            metavar="[NAME=]FILE",
            help="Inputs to run it with: .npz, .npy, a picture; others are generated. Repeatable.",
        ),
    ] = None,
    samples: Annotated[int | None, typer.Option(min=1, help="How many inputs to generate.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the generated inputs.")] = 0,
    details: Annotated[
        bool, typer.Option("--details", help="Every type of operation, every layer as well.")
    ] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Exit with 1 if a platform refuses the model, or it is wrong.")
    ] = False,
    html: HtmlOption = None,
    json_output: JsonOption = False,
) -> None:
    """Predict what the real NPU does with a model: does it compile, is it right, how fast, what to change."""
    from softnpu.emulator.platforms import PLATFORMS
    from softnpu.tools.predict import Rightness, Samples, Verdict, page, prediction, screen
    from softnpu.tools.shared import inputs
    from softnpu.tools.shared.pages import rendering

    if html is not None:
        rendering.check_target("--html", html)
    names = [name for given in platform or [] for name in given.split(",")] or list(PLATFORMS)
    questions = [word for each in only or [] for word in each.split(",")] or list(prediction.WORDS)
    predicted = prediction.predict(
        model,
        names,
        shapes=inputs.parse_shapes(shape or []),
        config=inputs.parse_config(config),
        samples=Samples(tuple(given or ()), seed=seed, count=samples),
        only=questions,
    )
    if html is not None:
        page.write_page(predicted, html)
    if json_output:
        print_json(screen.as_document(predicted))
    else:
        screen.show(predicted, details=details)
    verdicts = {
        answer.verdict for key in ("support", "right") for answer in predicted.answers.get(key, {}).values()
    }
    if check and verdicts & {Verdict.REFUSES, Rightness.WRONG}:
        raise typer.Exit(1)
