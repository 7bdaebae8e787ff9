"""`softnpu stress`: test whether the emulated NPU survives many clients that die and come back."""

from __future__ import annotations

import re
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from softnpu.tools.shared.console import JsonOption, err, out, print_json, print_line

if TYPE_CHECKING:
    from rich.console import Console

    from softnpu.tools.stress.coordinator import Options
    from softnpu.tools.stress.result import StressResult

_MOST_SEEDS = 10_000


def stress(
    clients: Annotated[int, typer.Option(min=1, max=1000, help="Client processes at once.")] = 8,
    seconds: Annotated[float, typer.Option(min=1, help="How long, for each seed.")] = 20.0,
    kill: Annotated[
        bool, typer.Option("--kill", help="Clients, the engine and compiler workers are killed.")
    ] = False,
    faults: Annotated[
        bool, typer.Option("--faults", help="Clients inject faults into their own work.")
    ] = False,
    seed: Annotated[
        int | None, typer.Option(help="Decides what every client does; random if not given.")
    ] = None,
    seeds: Annotated[
        str | None, typer.Option(help="One run after the other: 1-10, or 3,5,8. To the end, whatever fails.")
    ] = None,
    json_output: JsonOption = False,
    model: Annotated[
        list[str] | None,
        typer.Option(
            help="A model file, a name of `softnpu models`, or one of the small ones that are used"
            " without this option: digits, perceptron, convolutions, attention, running-sums, two-outputs."
        ),
    ] = None,
    socket: Annotated[
        Path | None, typer.Option(help="The daemon to use; without one a private daemon for each run.")
    ] = None,
) -> None:
    """Let many processes compile, load, infer, share, cancel, die and return; check every result."""
    import msgspec

    from softnpu.tools.stress.coordinator import Options

    chosen = chosen_seeds(seed, seeds)
    options = Options(
        clients=clients,
        seconds=seconds,
        kill=kill,
        faults=faults,
        seed=chosen[0],
        models=tuple(_path(name) for name in model or ()),
    )
    console = err if json_output else out
    results: list[StressResult] = []
    try:
        for number in chosen:
            results.append(_run(msgspec.structs.replace(options, seed=number), socket, console))
    finally:
        # failures are reported even if a later run is interrupted
        if json_output:
            print_json(results[0] if results and seeds is None else {"results": results})
    failed = [result.seed for result in results if not result.passed]
    if seeds is not None:
        checked = sum(result.results_checked for result in results)
        words = f"failed: {', '.join(map(str, failed))}" if failed else "all passed"
        print_line(f"{len(results)} seeds, {checked} results: {words}", console=console)
    if failed:
        raise typer.Exit(1)


def _run(options: Options, socket: Path | None, console: Console) -> StressResult:
    from softnpu.tools.stress.coordinator import Coordinator
    from softnpu.tools.stress.daemon import target
    from softnpu.tools.stress.result import evaluate
    from softnpu.tools.stress.view import View, print_result

    with target(socket) as daemon, View(console) as view:
        coordinator = Coordinator(options, daemon, view.show)
        coordinator.run()
    result = evaluate(coordinator.state, coordinator.deaths.done, daemon.failures)
    print_result(result, console)
    return result


def chosen_seeds(seed: int | None, seeds: str | None) -> list[int]:
    """Return the seeds in run order: of `--seeds`, else that of `--seed`, else a random one."""
    from softnpu.tools.shared.failures import UsageError

    if seeds is None:
        return [secrets.randbelow(1 << 31) if seed is None else seed]
    if seed is not None:
        raise UsageError("--seeds", found=f"given together with --seed {seed}", expected="one of the two")
    chosen: list[int] = []
    for part in seeds.split(","):
        match = re.fullmatch(r"\s*([0-9]{1,10})(?:-([0-9]{1,10}))?\s*", part, re.ASCII)
        first = last = int(match[1]) if match else 0
        if match and match[2]:
            last = int(match[2])
        if not match or last < first or last - first + len(chosen) >= _MOST_SEEDS:
            raise UsageError(
                "--seeds", found=repr(part), expected=f"numbers such as 1-10 or 3,5,8, at most {_MOST_SEEDS}"
            )
        chosen += range(first, last + 1)
    return chosen


def _path(name: str) -> str:
    """Return the path of one of our models or a file as named, or of a catalogue model."""
    from softnpu.tools.models.catalogue import CATALOGUE
    from softnpu.tools.models.fetch import cached
    from softnpu.tools.shared.failures import ToolError, UsageError
    from softnpu.tools.stress.workloads import OWN_MODELS

    if name in OWN_MODELS:
        return name
    if name not in CATALOGUE:
        if not Path(name).is_file():
            known = ", ".join((*OWN_MODELS, *CATALOGUE))
            raise UsageError(f"model {name}", found="no such file", expected=f"a file, or one of {known}")
        return name
    path = cached(CATALOGUE[name])
    if path is None:
        raise ToolError(
            f"model {name}",
            found="not fetched",
            expected="a fetched model",
            hint=f"fetch it with: softnpu models get {name}",
        )
    return name
