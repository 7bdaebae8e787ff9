"""Options shared by commands on a model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from softnpu.tools.shared import completion

ModelArgument = Annotated[
    Path, typer.Argument(help="Any file that OpenVINO reads, or one that 'softnpu compile' wrote.")
]
DeviceOption = Annotated[str, typer.Option(help="NPU, or NPU.N with several devices.")]
ConfigOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="KEY=VALUE",
        autocompletion=completion.properties,
        help="OpenVINO property of the NPU. Repeatable.",
    ),
]
ShapeOption = Annotated[
    list[str] | None, typer.Option(metavar="NAME=D,D,...", help="Static shape of an input. Repeatable.")
]
SeedOption = Annotated[int, typer.Option(min=0, help="Of the random inputs.")]
CountOption = Annotated[int, typer.Option("-n", min=1, help="Inferences to time.")]
SourceModelOption = Annotated[
    Path | None, typer.Option("--source-model", metavar="FILE", help="What MODEL was compiled from.")
]
HtmlOption = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Write a page with all figures as well.")
]
