"""User output: a live table in a terminal, occasional lines elsewhere, and the result."""

from __future__ import annotations

import time
from typing import Final

from rich.console import Console
from rich.live import Live
from rich.table import Table

from softnpu.tools.shared.console import format_bytes, format_time, print_line
from softnpu.tools.stress.coordinator import State
from softnpu.tools.stress.reclaim_latency import Times
from softnpu.tools.stress.result import StressResult

_LINE_S: Final = 5.0
_SHOWN: Final = 10


class View:
    """Shows a state repeatedly; a context manager."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = (
            Live(console=console, auto_refresh=False, transient=True) if console.is_terminal else None
        )
        self._last_line = 0.0

    def __enter__(self) -> View:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, state: State) -> None:
        """Show the state now."""
        if self._live is not None:
            self._live.update(_table(state), refresh=True)
        elif time.monotonic() - self._last_line >= _LINE_S:
            self._last_line = time.monotonic()
            print_line(_line(state), console=self._console)


def print_result(result: StressResult, console: Console) -> None:
    """Print the result as text."""
    for label, text in _figures(result):
        print_line(f"{label:<16}{text}", console=console)
    for failure in result.failures[:_SHOWN]:
        console.print(str(failure), style="red", highlight=False, markup=False, soft_wrap=True)
    if len(result.failures) > _SHOWN:
        console.print(f"and {len(result.failures) - _SHOWN} more failures", style="red")
    if result.passed:
        console.print(f"[green]passed[/]: seed {result.seed}", highlight=False)
    else:
        console.print("[red]failed[/], again with:", result.repeat, highlight=False, soft_wrap=True)


def _figures(result: StressResult) -> list[tuple[str, str]]:
    figures = [
        (
            "results",
            f"{result.results_checked} compared with OpenVINO's CPU device, in {result.done} operations",
        ),
        ("models", ", ".join(result.models)),
        (
            "processes",
            f"{result.processes} clients, of which {result.client_deaths} died; {result.engine_kills}"
            f" engines and {result.compiler_kills} compiler workers killed",
        ),
        (
            "device",
            f"{result.engine_resets} resets, {result.hangs} hangs, {result.aborted} aborted,"
            f" {result.overlapped} inferences begun early",
        ),
    ]
    if result.client_deaths:
        figures += [
            ("death noticed", _times(result.noticed)),
            ("  on the clock", _times(result.noticed_clock)),
            ("memory back", _times(result.memory_back)),
            ("  on the clock", _times(result.memory_back_clock)),
        ]
    if result.memory_back_in_reset.count:
        figures.append(("  in a reset", _times(result.memory_back_in_reset)))
    figures += [
        (
            f"{growth.what}",
            f"{format_bytes(growth.early)}, at the end {format_bytes(growth.late)} ({growth.share:+.1%})",
        )
        for growth in result.growth
    ]
    return figures


def _times(times: Times) -> str:
    return f"{format_time(times.median)} median, {format_time(times.maximum)} at most, of {times.count}"


def _line(state: State) -> str:
    last = state.samples[-1] if state.samples else None
    memory = f", daemon {format_bytes(last.daemon)}" if last else ""
    return (
        f"{state.elapsed:4.0f} s  {state.running} clients, {state.done} operations,"
        f" {state.results_checked} results checked, {state.client_deaths} deaths,"
        f" {state.engine_resets} resets{memory}, {len(state.failures)} failures"
    )


def _table(state: State) -> Table:
    options, last = state.options, state.samples[-1] if state.samples else None
    left = max(0.0, options.seconds - state.elapsed)
    table = Table(title=f"{state.phase}, {left:.0f} s left, seed {options.seed}", title_justify="left")
    for heading in ("clients", "", "operations", "", "daemon", ""):
        table.add_column(heading, no_wrap=True)
    people = [
        ("running", f"{state.running} of {options.clients}"),
        ("started", f"{state.processes}"),
        ("died", f"{state.client_deaths}"),
        ("results checked", f"{state.results_checked}"),
        ("failures", f"[red]{len(state.failures)}[/]" if state.failures else "0"),
    ]
    daemon = [
        ("engine resets", f"{state.engine_resets}"),
        ("engines killed", f"{state.engine_kills}"),
        ("compilers killed", f"{state.compiler_kills}"),
        ("hangs", f"{state.hangs}"),
    ]
    if last is not None:
        daemon += [
            ("supervisor", format_bytes(last.supervisor)),
            ("engine", format_bytes(last.engine)),
            ("sessions", f"{last.sessions}"),
            ("device memory", format_bytes(last.device_memory)),
            ("descriptors", f"{last.descriptors}"),
        ]
    done = [(name, f"{count}") for name, count in state.operations.items() if count]
    for row in range(max(len(people), len(done), len(daemon))):
        cells: list[str] = []
        for column in (people, done, daemon):
            cells += column[row] if row < len(column) else ("", "")
        table.add_row(*cells)
    return table
