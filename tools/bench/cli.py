"""`softnpu bench`: this machine's figures, each beside a peer of the same run."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from inspect import Parameter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, get_type_hints

import typer

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
from softnpu.tools.shared.failures import UsageError
from softnpu.tools.shared.groups import application

if TYPE_CHECKING:
    from softnpu.tools.bench.progress import Step

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
LoadOption = Annotated[
    int,
    typer.Option("--load", min=0, metavar="N", help="Keep N processes busy meanwhile: a loaded machine."),
]
_DEFAULT_MODEL = "yolov8n"
_DEFAULT_MEMORY_MODEL = "minilm"
_DIGITS = "digits"

app = application("bench", "Measure this machine's emulated NPU against its peers.", no_args_is_help=False)


class Flags(NamedTuple):
    """Options of every benchmark, accepted before or after its name."""

    json: bool
    check: bool
    html: Path | None
    load: int


@app.callback(invoke_without_command=True)
def everything(
    ctx: typer.Context,
    json: JsonOption = False,
    check: CheckOption = False,
    html: HtmlOption = None,
    load: LoadOption = 0,
    big: Annotated[
        bool,
        typer.Option("--big", help="Without a command: also weights, clients -n 64, neighbours and scale."),
    ] = False,
    counters: Annotated[
        bool, typer.Option("--counters", help="Instead, as the command 'counters': what an inference costs.")
    ] = False,
) -> None:
    """Without a command: all benchmarks but those of --big, shortly, in a few minutes."""
    ctx.obj = Flags(json, check, html, load)
    if ctx.invoked_subcommand is not None:
        if big or counters:
            option = "--big" if big else "--counters"
            raise UsageError(
                f"option {option}", found=f"before {ctx.invoked_subcommand}", expected="no command"
            )
        return
    from softnpu.tools.bench import whole

    _finish(whole.counted() if counters else whole.steps(big), ctx.obj)


def _finish(steps: Sequence[Step], flags: Flags) -> None:
    from softnpu.tools.bench import progress
    from softnpu.tools.bench.conditions import conditions

    if flags.html is not None:
        from softnpu.tools.bench import page

        page.check(flags.html, "--html")
    with conditions(flags.load) as kept:
        figures = progress.run(steps)
        rows = report.show(figures, flags.json, kept, only_judged=len(steps) > 1)
    if flags.html is not None:
        page.write(rows, str(kept), flags.html)
        print_line(f"wrote {flags.html}: open it in a browser", console=err)
    missed = [row for row in rows if row.ok is False]
    if flags.check and missed:
        for row in missed:
            print_line(f"missed: {report.sentence(row)}", console=err)
        raise typer.Exit(1)


def benchmark(name: str) -> Callable[[Callable[..., Iterator[Measurement]]], None]:
    """Register a generator of figures as a command that also takes --json, --check, --html and --load."""

    def register(measure: Callable[..., Iterator[Measurement]]) -> None:
        def command(
            ctx: typer.Context, json: bool, check: bool, html: Path | None, load: int, **options: Any
        ) -> None:
            from softnpu.tools.bench.progress import Step

            before: Flags = ctx.obj
            figures = measure(**options)
            flags = Flags(
                json or before.json, check or before.check, html or before.html, load or before.load
            )
            _finish([Step(name, 0, lambda: figures)], flags)

        added = {
            "ctx": typer.Context,
            "json": JsonOption,
            "check": CheckOption,
            "html": HtmlOption,
            "load": LoadOption,
        }
        defaults = {"json": False, "check": False, "html": None, "load": 0}
        parameters = [
            Parameter("ctx", Parameter.KEYWORD_ONLY),
            *(
                value.replace(kind=Parameter.KEYWORD_ONLY)
                for value in inspect.signature(measure).parameters.values()
            ),
            *(Parameter(flag, Parameter.KEYWORD_ONLY, default=value) for flag, value in defaults.items()),
        ]
        hints = {**get_type_hints(measure, include_extras=True), **added}
        command.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [parameter.replace(annotation=hints[parameter.name]) for parameter in parameters]
        )
        command.__annotations__ = {parameter.name: hints[parameter.name] for parameter in parameters}
        app.command(name, help=measure.__doc__)(command)

    return register


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


@benchmark("counters")
def _counters(
    names: Annotated[
        list[str] | None, typer.Argument(help="submit, native, infer, tokens; without: all.")
    ] = None,
    n: Annotated[int, typer.Option("-n", min=20, help="Inferences that are counted.")] = 500,
) -> Iterator[Measurement]:
    """Wake-ups, switches, page faults, system calls and copies of an inference, against their minimum."""
    from softnpu.tools.bench import counters

    return counters.run(names or (), n)


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
    saved = [comparison.read(run) for run in runs]
    conditions = {str(run.conditions or "unknown conditions") for run in saved}
    page.write([row for run in saved for row in run.figures], "; ".join(sorted(conditions)), output)
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

    old, new = comparison.read(before), comparison.read(after)
    if old.conditions and new.conditions and old.conditions != new.conditions:
        print_line(f"not alike: before on {old.conditions}, after on {new.conditions}", console=err)
    compared = comparison.compare(old.figures, new.figures, tolerance)
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
