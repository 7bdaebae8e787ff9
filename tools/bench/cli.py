"""`softnpu bench`: the figures of this machine, each beside a peer of the same run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated

import typer

from softnpu.driver.errors import ZeError
from softnpu.tools.bench import clients, copies, lists, load, native, pairs, recovery, report
from softnpu.tools.bench.result import Measurement
from softnpu.tools.console import err, print_line
from softnpu.tools.failures import ToolError, describe

Json = Annotated[bool, typer.Option("--json", help="One JSON object a line.")]
Check = Annotated[bool, typer.Option("--check", help="Exit code 1 if a target is missed.")]
Shapes = Annotated[
    list[str] | None, typer.Option("--shape", metavar="NAME=D,D,...", help="Static shape. Repeatable.")
]
_MODEL_HELP = "A file that OpenVINO reads, or a name of 'softnpu models ls'."
_DEFAULT_INFER_MODEL = "yolov8n"
_DEFAULT_MEMORY_MODEL = "minilm"

app = typer.Typer(name="bench", help="Measure this machine's emulated NPU against its peers.")


@app.callback(invoke_without_command=True)
def everything(ctx: typer.Context, json: Json = False, check: Check = False) -> None:
    """Without a command: all benchmarks, shortly."""
    if ctx.invoked_subcommand is None:
        _finish(_all(), json, check)


@app.command("submit")
def submit(
    n: Annotated[int, typer.Option("-n", min=1, help="Round trips on every side.")] = 6000,
    json: Json = False,
    check: Check = False,
) -> None:
    """An empty command and back, against semaphores and sockets between two Python processes."""
    _finish(_submit(n), json, check)


@app.command("infer")
def infer(
    model: Annotated[str, typer.Argument(help=_MODEL_HELP)],
    shape: Shapes = None,
    n: Annotated[int, typer.Option("-n", min=1, help="Inferences on each side.")] = 300,
    threads: Annotated[int, typer.Option(min=0, help="On both sides; 0: as many as OpenVINO likes.")] = 0,
    precision: Annotated[str, typer.Option(help="On both sides: f32, bf16 or f16.")] = "f32",
    json: Json = False,
    check: Check = False,
) -> None:
    """A model, zero-copy, against OpenVINO's CPU device in this process."""
    _finish(_infer(model, shape or (), n, threads, precision), json, check)


@app.command("memory")
def memory(
    model: Annotated[str, typer.Argument(help=_MODEL_HELP)] = _DEFAULT_MEMORY_MODEL,
    shape: Shapes = None,
    processes: Annotated[int, typer.Option(min=2, help="Clients that run the model.")] = 4,
    settle: Annotated[
        bool, typer.Option(help="Wait for the end of idle compiler workers (10 s); else they count.")
    ] = True,
    json: Json = False,
    check: Check = False,
) -> None:
    """The memory of everything with several clients, against one client."""
    _finish(_memory(model, shape or (), processes, settle), json, check)


def _finish(measurements: Iterable[Measurement], json: bool, check: bool) -> None:
    met = report.show(measurements, json)
    if check and not met:
        raise typer.Exit(1)


def _all() -> Iterator[Measurement]:
    yield from _submit(3000)
    yield from _native(3000)
    yield from _infer(_DEFAULT_INFER_MODEL, (), 100, 0, "f32")
    yield from _memory(_DEFAULT_MEMORY_MODEL, (), 4, True)
    yield from lists.run(1000, 30)
    yield from copies.run(256 * 2**20, 5)
    yield from recovery.run(1)


def _submit(trips: int) -> Iterator[Measurement]:
    from softnpu.tools.bench import submit as bench

    if not pairs.has_iceoryx():
        err.print("iceoryx2 is not installed: not compared with it (pip install iceoryx2)")
    yield from bench.run(trips)


def _native(trips: int) -> Iterator[Measurement]:
    try:
        yield from native.run(trips)
    except (ToolError, ZeError) as error:
        # nobody needs a compiler for the other figures
        print_line(f"not measured: {describe(error)}", console=err)


def _infer(
    model: str, shapes: Sequence[str], count: int, threads: int, precision: str
) -> Iterator[Measurement]:
    # OpenVINO takes a second to import: only who asks for it pays
    from softnpu.tools.bench import infer as bench
    from softnpu.tools.bench.model import find_model
    from softnpu.tools.inputs import parse_shapes

    yield from bench.run(find_model(model, parse_shapes(shapes)), count, threads, precision)


def _memory(model: str, shapes: Sequence[str], processes: int, settle: bool) -> Iterator[Measurement]:
    from softnpu.tools.bench import memory as bench
    from softnpu.tools.bench.model import find_model
    from softnpu.tools.inputs import parse_shapes

    yield from bench.run(find_model(model, parse_shapes(shapes)), processes, settle)


app.command("native")(native.command)
app.command("clients")(clients.command)
app.command("lists")(lists.command)
app.command("load")(load.command)
app.command("copy")(copies.command)
app.command("recovery")(recovery.command)


if __name__ == "__main__":
    app(prog_name="softnpu bench")
