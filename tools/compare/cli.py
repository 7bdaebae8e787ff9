"""The command `softnpu compare`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from softnpu.tools.shared import completion, failures
from softnpu.tools.shared.console import JsonOption, err, print_json
from softnpu.tools.shared.daemon_connection import SocketOption
from softnpu.tools.shared.failures import UsageError
from softnpu.tools.shared.model_options import (
    DeviceOption,
    HtmlOption,
    ModelArgument,
    SeedOption,
    ShapeOption,
    SourceModelOption,
)

if TYPE_CHECKING:
    from softnpu.tools.compare.comparing import Comparing, Outcome
    from softnpu.tools.compare.writing import Reduced

_OUT_OF_TOLERANCE, _NOT_COMPARED = 1, 2


def compare(
    model: ModelArgument,
    against: Annotated[
        str | None,
        typer.Option(
            metavar="REFERENCE",
            help="CPU (default), onnxruntime, another model, outputs in a FILE.npz, or NPU with --config.",
        ),
    ] = None,
    layers: Annotated[
        bool,
        typer.Option(
            "--layers", help="Compare every intermediate result, and name what causes a difference."
        ),
    ] = False,
    bisect: Annotated[
        bool, typer.Option("--bisect", help="Search for the first layer that differs, marking few at a time.")
    ] = False,
    reduce: Annotated[
        Path | None, typer.Option(metavar="FILE.xml", help="Write the smallest model that still differs.")
    ] = None,
    inputs: Annotated[
        list[str] | None,
        typer.Option(
            "--inputs",
            "--input",
            metavar="[NAME=]FILE",
            help="A .npz file with inputs by name, a .npy file or a picture; others are random. Repeatable.",
        ),
    ] = None,
    shape: ShapeOption = None,
    steps: Annotated[int, typer.Option(min=1, help="Inferences, one after the other: states go on.")] = 1,
    seed: SeedOption = 0,
    atol: Annotated[
        list[str] | None,
        typer.Option(metavar="[TYPE=]VALUE", help="Absolute tolerance, such as f32=1e-6. Repeatable."),
    ] = None,
    rtol: Annotated[
        list[str] | None,
        typer.Option(metavar="[TYPE=]VALUE", help="Relative tolerance, such as f32=1e-4. Repeatable."),
    ] = None,
    device: DeviceOption = "NPU",
    config: Annotated[
        list[str] | None,
        typer.Option(
            autocompletion=completion.properties,
            metavar="KEY=VALUE",
            help="OpenVINO property of the NPU, not of the reference. Repeatable.",
        ),
    ] = None,
    source_model: SourceModelOption = None,
    html: HtmlOption = None,
    json_output: JsonOption = False,
    socket: SocketOption = None,
) -> None:
    """Compare a model on the emulated NPU with a reference, down to the layer that causes a difference.

    The exit code is 0 if every output is in tolerance and no layer that was asked for causes a difference,
    1 if not, and 2 if nothing could be compared.
    """
    try:
        from softnpu.tools.compare.opening import Request, open_sides
        from softnpu.tools.compare.tolerances import parse
        from softnpu.tools.compare.writing import check_target

        if layers and bisect:
            raise UsageError("--bisect", found="given with --layers, which marks all", expected="one of them")
        if reduce is not None:
            check_target(reduce)
        if html is not None:
            from softnpu.tools.shared.pages import rendering

            rendering.check_target("--html", html)
        parse(atol or [], rtol or [], "f32")
        request = Request.parsed(
            model, config, inputs, shape,
            against=against, device=device, steps=steps, seed=seed, bisect=bisect,
            source_model=source_model, socket=socket,
        )  # fmt: skip
        with telling("compare") as progress:
            progress("models")
            sides = open_sides(request)
            tolerances = parse(atol or [], rtol or [], sides.candidate.precision, sides.reference.precision)
            from softnpu.tools.compare.comparing import Comparing

            comparing = Comparing(sides, tolerances, progress)
            outcome = _compare_sides(
                comparing, layers=layers or (reduce is not None and not bisect), bisect=bisect
            )
            reduced = None if reduce is None else _write_reduced(comparing, outcome, reduce)
        from softnpu.tools.compare import show

        shown = show.Shown(str(model), request, sides, tolerances, outcome, reduced, reduce is not None)
        if html is not None:
            from softnpu.tools.compare.page import write_page

            write_page(shown, html)
        if json_output:
            print_json(show.as_document(shown))
        else:
            show.print_found(shown)
    except failures.expected() as error:
        if failures.debugging() or isinstance(error, BrokenPipeError):
            raise
        failures.print_error(error)
        raise typer.Exit(_NOT_COMPARED) from error
    if not outcome.ok:
        raise typer.Exit(_OUT_OF_TOLERANCE)


def _compare_sides(comparing: Comparing, *, layers: bool, bisect: bool) -> Outcome:
    outcome = comparing.outputs()
    if layers:
        return comparing.layers(outcome)
    return comparing.bisect(outcome) if bisect else outcome


def _write_reduced(comparing: Comparing, outcome: Outcome, path: Path) -> Reduced | None:
    from softnpu.tools.compare.writing import write

    part = comparing.smallest_part(outcome)
    return None if part is None else write(*part, path)


@contextmanager
def telling(command: str) -> Iterator[Callable[[str], None]]:
    """Show progress in one line on stderr, if a terminal is there."""
    if not err.is_terminal:
        yield lambda _: None
        return
    with err.status(f"{command}: start") as status:
        yield lambda text: status.update(f"{command}: {text}")
