"""`softnpu bench`: this machine's figures, each beside a peer of the same run."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from inspect import Parameter
from pathlib import Path
from typing import Annotated, Any, NamedTuple, get_type_hints

import typer

from softnpu.driver.errors import ZeError
from softnpu.tools.bench import report
from softnpu.tools.bench.result import Measurement
from softnpu.tools.shared import completion
from softnpu.tools.shared.console import (
    JsonOption,
    err,
    format_count,
    out,
    parse_size,
    print_json,
    print_line,
)
from softnpu.tools.shared.failures import ToolError, describe
from softnpu.tools.shared.groups import application

CheckOption = Annotated[bool, typer.Option("--check", help="Exit code 1 if a target is missed.")]
Model = Annotated[
    str,
    typer.Argument(
        autocompletion=completion.models_and_files,
        help="A file that OpenVINO reads, or a name of 'softnpu models ls'.",
    ),
]
Shapes = Annotated[
    list[str] | None, typer.Option("--shape", metavar="NAME=D,D,...", help="Static shape. Repeatable.")
]
Precision = Annotated[str, typer.Option(help="On all sides: f32, bf16 or f16.")]
HtmlOption = Annotated[
    Path | None, typer.Option("--html", metavar="FILE", help="Also write a page with tables and plots.")
]
_DEFAULT_MODEL = "yolov8n"
_DEFAULT_MEMORY_MODEL = "minilm"
_DIGITS = "digits"
_GIB = 1 << 30

app = application("bench", "Measure this machine's emulated NPU against its peers.", no_args_is_help=False)


class Flags(NamedTuple):
    """Options of every benchmark, accepted before or after its name."""

    json: bool
    check: bool
    html: Path | None


@app.callback(invoke_without_command=True)
def everything(
    ctx: typer.Context,
    json: JsonOption = False,
    check: CheckOption = False,
    html: HtmlOption = None,
    big: Annotated[
        bool,
        typer.Option("--big", help="Without a command: also weights, clients -n 64, neighbours and scale."),
    ] = False,
) -> None:
    """Without a command: all benchmarks but those of --big, shortly, in a few minutes."""
    ctx.obj = Flags(json, check, html)
    if ctx.invoked_subcommand is None:
        _finish(_all(big), ctx.obj)


def _finish(measurements: Iterator[Measurement], flags: Flags) -> None:
    if flags.html is not None:
        from softnpu.tools.bench import page

        page.check(flags.html, "--html")
    rows = report.show(measurements, flags.json)
    if flags.html is not None:
        page.write(rows, flags.html)
        print_line(f"wrote {flags.html}: open it in a browser", console=err)
    missed = [row for row in rows if row.ok is False]
    if flags.check and missed:
        for row in missed:
            print_line(f"missed: {report.sentence(row)}", console=err)
        raise typer.Exit(1)


def benchmark(name: str) -> Callable[[Callable[..., Iterator[Measurement]]], None]:
    """Register a generator of figures as a command that also takes --json, --check and --html."""

    def register(measure: Callable[..., Iterator[Measurement]]) -> None:
        def command(ctx: typer.Context, json: bool, check: bool, html: Path | None, **options: Any) -> None:
            before: Flags = ctx.obj
            flags = Flags(json or before.json, check or before.check, html or before.html)
            _finish(measure(**options), flags)

        added = {"ctx": typer.Context, "json": JsonOption, "check": CheckOption, "html": HtmlOption}
        parameters = [
            Parameter("ctx", Parameter.KEYWORD_ONLY),
            *(
                value.replace(kind=Parameter.KEYWORD_ONLY)
                for value in inspect.signature(measure).parameters.values()
            ),
            *(Parameter(flag, Parameter.KEYWORD_ONLY, default=False) for flag in ("json", "check")),
            Parameter("html", Parameter.KEYWORD_ONLY, default=None),
        ]
        hints = {**get_type_hints(measure, include_extras=True), **added}
        command.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [parameter.replace(annotation=hints[parameter.name]) for parameter in parameters]
        )
        command.__annotations__ = {parameter.name: hints[parameter.name] for parameter in parameters}
        app.command(name, help=measure.__doc__)(command)

    return register


def _all(big: bool) -> Iterator[Measurement]:
    from softnpu.tools.bench import clients, copies, infer, lists, load, memory, recovery, submit
    from softnpu.tools.bench.model import find_model

    yield from submit.run(3000)
    yield from _with_native_driver()
    for name, count in ((_DIGITS, 2000), (_DEFAULT_MODEL, 100)):
        yield from infer.run(find_model(name, ()), count, 0, "f32")
    for name in (_DIGITS, _DEFAULT_MODEL):
        yield from clients.run(find_model(name, ()), 8, 5, 1.0, "f32")
    yield from load.run(find_model(_DEFAULT_MODEL, ()), 1)
    yield from memory.run(find_model(_DEFAULT_MEMORY_MODEL, ()), 4, True)
    yield from lists.run(1000, 30)
    yield from copies.run(256 * 2**20, 5)
    yield from recovery.run(1)
    if big:
        yield from _big()


def _with_native_driver() -> Iterator[Measurement]:
    """Run the benchmarks that need the native driver."""
    from softnpu.tools.bench import language_model, native, start, tokens
    from softnpu.tools.bench.model import find_model

    try:
        yield from native.run(3000)
        yield from start.run(find_model(_DIGITS, ()), 3)
        yield from tokens.run(language_model.LAYERS, language_model.WIDTH, 32, 5)
    except (ToolError, ZeError) as error:
        # the other figures need no compiler
        print_line(f"not measured: {describe(error)}", console=err)


def _big() -> Iterator[Measurement]:
    """Run the benchmarks that take minutes, and up to 10 GiB."""
    from softnpu.tools.bench import clients, neighbours, scale, weights
    from softnpu.tools.bench.model import find_model

    yield from weights.run(2 * _GIB, 1)
    yield from clients.run(find_model(_DEFAULT_MODEL, ()), 64, 3, 4.0, "f32")
    yield from neighbours.run(9, 0.2)
    yield from scale.run((), 0)


@benchmark("submit")
def _submit(
    n: Annotated[int, typer.Option("-n", min=1, help="Round trips on every side.")] = 6000,
) -> Iterator[Measurement]:
    """An empty command and back, against semaphores and sockets between two Python processes."""
    from softnpu.tools.bench import pairs, submit

    if not pairs.has_iceoryx():
        err.print("iceoryx2 is not installed: not compared with it (pip install iceoryx2)")
    return submit.run(n)


@benchmark("infer")
def _infer(
    model: Model = _DEFAULT_MODEL,
    shape: Shapes = None,
    n: Annotated[int, typer.Option("-n", min=1, help="Inferences on each side.")] = 300,
    threads: Annotated[int, typer.Option(min=0, help="On both sides; 0: as many as OpenVINO likes.")] = 0,
    precision: Precision = "f32",
) -> Iterator[Measurement]:
    """A model, zero-copy, against OpenVINO's CPU device in this process."""
    # OpenVINO takes a second to import: only users of it pay
    from softnpu.tools.bench import infer
    from softnpu.tools.bench.model import find_model

    return infer.run(find_model(model, shape), n, threads, precision)


@benchmark("memory")
def _memory(
    model: Model = _DEFAULT_MEMORY_MODEL,
    shape: Shapes = None,
    processes: Annotated[int, typer.Option(min=2, help="Clients that run the model.")] = 4,
    settle: Annotated[
        bool, typer.Option(help="Wait for the end of idle compiler workers (10 s); else they count.")
    ] = True,
) -> Iterator[Measurement]:
    """The memory of everything with several clients, against one client."""
    from softnpu.tools.bench import memory
    from softnpu.tools.bench.model import find_model

    return memory.run(find_model(model, shape), processes, settle)


@benchmark("native")
def _native(
    n: Annotated[int, typer.Option("-n", min=1, help="Round trips on either side.")] = 6000,
) -> Iterator[Measurement]:
    """An empty command and back from C++, against semaphores between two Python processes."""
    from softnpu.tools.bench import native

    return native.run(n)


@benchmark("clients")
def _clients(
    model: Model = _DEFAULT_MODEL,
    shape: Shapes = None,
    n: Annotated[int, typer.Option("-n", min=1, help="Processes at once.")] = 8,
    rounds: Annotated[int, typer.Option(min=1, help="Turns of each side.")] = 9,
    seconds: Annotated[float, typer.Option(min=0.05, help="Length of a turn.")] = 1.0,
    precision: Precision = "f32",
) -> Iterator[Measurement]:
    """A model in several processes at once, against one and against several of OpenVINO's CPU device."""
    from softnpu.tools.bench import clients
    from softnpu.tools.bench.model import find_model

    return clients.run(find_model(model, shape), n, rounds, seconds, precision)


@benchmark("lists")
def _lists(
    n: Annotated[int, typer.Option("-n", min=1, help="Commands in a list.")] = 1000,
    rounds: Annotated[int, typer.Option(min=3, help="Lists that are recorded and executed.")] = 60,
) -> Iterator[Measurement]:
    """A long command list of small fills: time for each command."""
    from softnpu.tools.bench import lists

    return lists.run(n, rounds)


@benchmark("load")
def _load(
    model: Model = _DEFAULT_MODEL,
    shape: Shapes = None,
    rounds: Annotated[int, typer.Option(min=1, help="Starts of each kind.")] = 5,
) -> Iterator[Measurement]:
    """First result of a new process: cold, with each cache, imported; against OpenVINO's CPU device."""
    from softnpu.tools.bench import load
    from softnpu.tools.bench.model import find_model

    return load.run(find_model(model, shape), rounds)


@benchmark("start")
def _start(
    model: Model = _DIGITS,
    rounds: Annotated[int, typer.Option(min=1, help="Processes of each kind.")] = 9,
) -> Iterator[Measurement]:
    """A whole process of one small inference, against the same on OpenVINO's CPU device."""
    from softnpu.tools.bench import start
    from softnpu.tools.bench.model import find_model

    return start.run(find_model(model, ()), rounds)


@benchmark("tokens")
def _tokens(
    n: Annotated[int, typer.Option("-n", min=1, max=128, help="Tokens in a turn.")] = 64,
    layers: Annotated[int, typer.Option(min=1, help="Of the language model.")] = 12,
    width: Annotated[int, typer.Option(min=8, help="Of its layers, a multiple of 8.")] = 512,
    rounds: Annotated[int, typer.Option(min=1, help="Turns of each side.")] = 9,
) -> Iterator[Measurement]:
    """A language model with states, token by token, against OpenVINO's CPU device."""
    from softnpu.tools.bench import tokens

    return tokens.run(layers, width, n, rounds)


@benchmark("weights")
def _weights(
    size: Annotated[
        Any, typer.Option(parser=parse_size, metavar="SIZE", help="Of the weights, such as 2GiB.")
    ] = "2GiB",
    rounds: Annotated[int, typer.Option(min=1, help="Compilations of each kind.")] = 3,
) -> Iterator[Measurement]:
    """On request, 3 minutes: compiling 2 GiB of weights, against OpenVINO's CPU device."""
    from softnpu.tools.bench import weights

    return weights.run(int(size), rounds)


@benchmark("scale")
def _scale(
    axis: Annotated[
        list[str] | None,
        typer.Argument(
            help="clients, models, 'model size', commands, allocations, sessions, queues, contexts, fences, "
            "events, lists, graphs; without: all."
        ),
    ] = None,
    most: Annotated[int, typer.Option(min=0, help="No larger size than this; 0: all sizes.")] = 0,
) -> Iterator[Measurement]:
    """On request, 5 minutes: what one more client, model, command, allocation or session costs."""
    from softnpu.tools.bench import scale

    return scale.run(axis or (), most)


@benchmark("neighbours")
def _neighbours(
    rounds: Annotated[int, typer.Option(min=1, help="Turns of each flood.")] = 9,
    seconds: Annotated[float, typer.Option(min=0.05, help="Length of a turn.")] = 0.2,
) -> Iterator[Measurement]:
    """An inference beside processes that flood doorbells, status, loads, compilations; against alone."""
    from softnpu.tools.bench import neighbours

    return neighbours.run(rounds, seconds)


@benchmark("copy")
def _copy(
    size: Annotated[
        Any, typer.Option(parser=parse_size, metavar="SIZE", help="Bytes to copy, such as 256MiB.")
    ] = "256MiB",
    rounds: Annotated[int, typer.Option(min=3, help="Copies on each side.")] = 15,
) -> Iterator[Measurement]:
    """One large copy by the device, against numpy between two arrays of this process."""
    from softnpu.tools.bench import copies

    return copies.run(int(size), rounds)


@benchmark("kernels")
def _kernels(
    rounds: Annotated[int, typer.Option(min=3, help="Runs on each side.")] = 100,
) -> Iterator[Measurement]:
    """Own kernels in their sandbox, against numpy and a native build; needs wasmtime and ziglang."""
    from softnpu.tools.bench import kernels

    return kernels.run(rounds)


@benchmark("farm")
def _farm(
    model: Model = _DEFAULT_MODEL,
    shape: Shapes = None,
    rows: Annotated[int, typer.Option(min=1, help="Rows of a batch.")] = 32,
    batches: Annotated[int, typer.Option(min=1, help="Batches of a turn.")] = 6,
    rounds: Annotated[int, typer.Option(min=1, help="Turns of each side.")] = 31,
    processes: Annotated[int, typer.Option(min=1, max=8, help="Actors, and processes without Ray.")] = 1,
) -> Iterator[Measurement]:
    """A predictor on Ray against processes without Ray, and several nodes against one."""
    from softnpu.tools.bench import farm
    from softnpu.tools.bench.model import find_model

    return farm.run(find_model(model, shape), rows, batches, rounds, processes)


@benchmark("recovery")
def _recovery(
    rounds: Annotated[int, typer.Option(min=1, help="Deaths of each kind.")] = 5,
) -> Iterator[Measurement]:
    """Deaths of daemon, client and engine, and a hang: how long until the others can go on."""
    from softnpu.tools.bench import recovery

    return recovery.run(rounds)


@app.command("page")
def _page(
    runs: Annotated[list[Path], typer.Argument(help="Runs, as --json prints them.")],
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FILE", help="The page to write.")] = Path(
        "bench.html"
    ),
) -> None:
    """A page with tables and plots, as --html writes it, of saved runs."""
    from softnpu.tools.bench import comparison, page

    page.check(output, "--output")
    page.write([row for run in runs for row in comparison.read(run)], output)
    print_line(f"wrote {output}: open it in a browser")


@app.command("compare")
def _compare(
    ctx: typer.Context,
    before: Annotated[Path, typer.Argument(help="A run, as --json prints it.")],
    after: Annotated[Path, typer.Argument(help="A later one.")],
    tolerance: Annotated[
        float, typer.Option(min=1.0, help="How much worse a figure may become, as a factor.")
    ] = 1.15,
    json: JsonOption = False,
    check: Annotated[bool, typer.Option("--check", help="Exit code 1 if a figure has become worse.")] = False,
) -> None:
    """Two saved runs, figure by figure: what has become slower."""
    from softnpu.tools.bench import comparison

    compared = comparison.compare(comparison.read(before), comparison.read(after), tolerance)
    slower = [change for change in compared.changes if change.slower]
    if json or ctx.obj.json:
        print_json(compared)
    else:
        out.print(comparison.table(compared))
        for what, names in (("only before", compared.missing), ("only after", compared.added)):
            for name in names:
                print_line(f"{what}: {name}")
        print_line(f"{format_count(len(compared.changes), 'figure')} compared, {len(slower)} slower")
    if slower and (check or ctx.obj.check):
        for change in slower:
            print_line(f"slower: {comparison.sentence(change)}", console=err)
        raise typer.Exit(1)
