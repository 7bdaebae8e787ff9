"""`softnpu predict`: predict the real NPU's behaviour with a model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from softnpu.tools.shared import completion
from softnpu.tools.shared.console import JsonOption, print_json, print_line
from softnpu.tools.shared.failures import UsageError
from softnpu.tools.shared.model_options import ConfigOption, HtmlOption, ShapeOption


def predict(
    models: Annotated[
        list[Path],
        typer.Argument(
            metavar="MODEL",
            help="Any file that OpenVINO reads: .xml, .onnx, .tflite, ...; several are shown side by side.",
        ),
    ],
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
    host: Annotated[
        str | None,
        typer.Option(
            metavar="HOST",
            help="The computer: 155H, 265KF, 288V, 258V, or ddr=GB/s,clock=MHz,copy=GB/s,call=us.",
        ),
    ] = None,
    samples: Annotated[int | None, typer.Option(min=1, help="How many inputs to generate.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of the generated inputs.")] = 0,
    details: Annotated[
        bool, typer.Option("--details", help="All answers in full: findings, layers, operations, changes.")
    ] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Exit with 1 if a platform refuses the model, or it is wrong.")
    ] = False,
    html: HtmlOption = None,
    json_output: JsonOption = False,
) -> None:
    """Predict what the real NPU does with a model: does it compile, is it right, how fast, what to change."""
    from softnpu.emulator.platforms import PLATFORMS
    from softnpu.tools.predict import Rightness, Samples, Verdict, page, prediction, screen, summary
    from softnpu.tools.shared import inputs
    from softnpu.tools.shared.pages import rendering

    if html is not None:
        rendering.check_target("--html", html)
    if html is not None and len(models) > 1:
        raise UsageError("--html", found=f"{len(models)} models", expected="one, which the page is about")
    names = [name for given in platform or [] for name in given.split(",")] or list(PLATFORMS)
    questions = [word for each in only or [] for word in each.split(",")] or list(prediction.WORDS)
    properties = inputs.parse_config(config)
    shapes = prediction.shapes_of_each(models, inputs.parse_shapes(shape or []))
    predicted = {
        name: prediction.predict(
            model,
            names,
            shapes=own,
            config=properties,
            samples=Samples(tuple(given or ()), seed=seed, count=samples),
            only=questions,
            host=host,
        )
        for name, model, own in zip(summary.labels(models), models, shapes, strict=True)
    }
    found = list(predicted.values())
    if html is not None:
        page.write_page(found[0], html)
    if json_output:
        documents = [screen.as_document(each) for each in found]
        print_json(
            documents[0] if len(documents) == 1 else {"models": dict(zip(predicted, documents, strict=True))}
        )
    elif len(found) == 1:
        screen.show(found[0], full=details or bool(only), details=details)
    else:
        screen.show_side_by_side(predicted)
        if details:
            for each in found:
                print_line("")
                screen.show(each, full=True, details=True)
    verdicts = {
        answer.verdict
        for each in found
        for key in ("support", "right")
        for answer in each.answers.get(key, {}).values()
    }
    if check and verdicts & {Verdict.REFUSES, Rightness.WRONG}:
        raise typer.Exit(1)
