"""The command `softnpu report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from softnpu.tools.compare.cli import telling
from softnpu.tools.shared.console import print_line
from softnpu.tools.shared.daemon_connection import SocketOption
from softnpu.tools.shared.model_options import (
    ConfigOption,
    CountOption,
    DeviceOption,
    SeedOption,
    ShapeOption,
    SourceModelOption,
)


def report(
    model: Annotated[Path, typer.Argument(help="Any file that OpenVINO reads.")],
    output: Annotated[
        Path | None,
        typer.Option(
            "-o", "--output", metavar="FILE", help="The page to write [the model's name with .html]."
        ),
    ] = None,
    against: Annotated[
        str | None, typer.Option(metavar="REFERENCE", help="As in 'softnpu compare': CPU unless given.")
    ] = None,
    inputs: Annotated[
        list[str] | None,
        typer.Option(
            "--inputs", "--input", metavar="[NAME=]FILE", help="As in 'softnpu compare'. Repeatable."
        ),
    ] = None,
    shape: ShapeOption = None,
    n: CountOption = 20,
    seed: SeedOption = 0,
    device: DeviceOption = "NPU",
    config: ConfigOption = None,
    source_model: SourceModelOption = None,
    socket: SocketOption = None,
) -> None:
    """Write one page about a model: graph, memory, times by layer, roofline of this host, comparison.

    The page needs no network and no other file, and follows the reader's choice of light or dark.
    """
    from softnpu.tools.shared.pages import rendering

    target = Path(f"{model.stem}.html") if output is None else output
    rendering.check_target("--output", target)
    rendering.require("matplotlib", "--output")
    from softnpu.tools.compare.opening import Request
    from softnpu.tools.report.gathering import gather
    from softnpu.tools.report.page import write_page

    request = Request.parsed(
        model, config, inputs, shape,
        against=against, device=device, seed=seed, source_model=source_model, socket=socket,
    )  # fmt: skip
    with telling("report") as tell:
        gathered = gather(request, n, tell)
        tell("page")
        write_page(gathered, request, target)
    print_line(f"wrote {target}: open it in a browser")
