"""What a person sees: a live table in a terminal, a line now and then elsewhere, and the verdict."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Final

from rich.live import Live
from rich.table import Table

from softnpu.tools.console import format_bytes, format_time, out
from softnpu.tools.stress.director import State
from softnpu.tools.stress.reclaim_latency import Times
from softnpu.tools.stress.verdict import Verdict

_LINE_S: Final = 5.0
_SHOWN: Final = 10


class View:
    """Shows a state again and again; a context manager."""

    def __init__(self) -> None:
        self._live = Live(console=out, auto_refresh=False, transient=True) if out.is_terminal else None
        self._told = 0.0

    def __enter__(self) -> View:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def show(self, state: State) -> None:
        """The state now."""
        if self._live is not None:
            self._live.update(_table(state), refresh=True)
        elif time.monotonic() - self._told >= _LINE_S:
            self._told = time.monotonic()
            out.print(_line(state), highlight=False, markup=False, soft_wrap=True)


def tell(verdict: Verdict) -> None:
    """The verdict, in words."""
    for label, text in _figures(verdict):
        out.print(f"{label:<16}{text}", highlight=False, markup=False, soft_wrap=True)
    for failure in verdict.failures[:_SHOWN]:
        out.print(str(failure), style="red", highlight=False, markup=False, soft_wrap=True)
    if len(verdict.failures) > _SHOWN:
        out.print(f"and {len(verdict.failures) - _SHOWN} more failures", style="red")
    if verdict.passed:
        out.print(f"[green]passed[/]: seed {verdict.seed}", highlight=False)
    else:
        out.print("[red]failed[/], again with:", verdict.repeat, highlight=False, soft_wrap=True)


def _figures(verdict: Verdict) -> list[tuple[str, str]]:
    operations = sum(verdict.operations.values())
    figures = [
        (
            "results",
            f"{verdict.results_checked} compared with OpenVINO's CPU device, in {operations} operations",
        ),
        ("models", ", ".join(verdict.models)),
        (
            "processes",
            f"{verdict.processes} clients, of which {verdict.client_deaths} died; {verdict.engine_kills}"
            f" engines and {verdict.compiler_kills} compiler workers killed",
        ),
        (
            "device",
            f"{verdict.engine_resets} resets, {verdict.hangs} hangs, {verdict.aborted} aborted,"
            f" {verdict.overlapped} inferences begun early",
        ),
    ]
    if verdict.client_deaths:
        figures += [
            ("death noticed", _times(verdict.noticed)),
            ("  on the clock", _times(verdict.noticed_clock)),
            ("memory back", _times(verdict.memory_back)),
            ("  on the clock", _times(verdict.memory_back_clock)),
        ]
    if verdict.memory_back_in_reset.count:
        figures.append(("  in a reset", _times(verdict.memory_back_in_reset)))
    figures += [
        (
            f"{growth.what}",
            f"{format_bytes(growth.early)}, at the end {format_bytes(growth.late)} ({growth.share:+.1%})",
        )
        for growth in verdict.growth
    ]
    return figures


def _times(times: Times) -> str:
    return f"{format_time(times.median)} median, {format_time(times.maximum)} at most, of {times.count}"


def _line(state: State) -> str:
    last = state.samples[-1] if state.samples else None
    memory = f", daemon {format_bytes(last.daemon)}" if last else ""
    return (
        f"{state.elapsed:4.0f} s  {state.running} clients, {state.operations} operations,"
        f" {state.checked} results checked, {state.client_deaths} deaths, {state.resets} resets{memory},"
        f" {len(state.failures)} failures"
    )


def _table(state: State) -> Table:
    options, last = state.options, state.samples[-1] if state.samples else None
    left = max(0.0, options.seconds - state.elapsed)
    table = Table(title=f"{state.phase}, {left:.0f} s left, seed {options.seed}", title_justify="left")
    for heading in ("clients", "", "operations", "", "daemon", ""):
        table.add_column(heading, no_wrap=True)
    people = [
        ("running", f"{state.running} of {options.clients}"),
        ("started", f"{state.births}"),
        ("died", f"{state.client_deaths}"),
        ("results checked", f"{state.checked}"),
        ("failures", f"[red]{len(state.failures)}[/]" if state.failures else "0"),
    ]
    daemon = [
        ("engine resets", f"{state.resets}"),
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
    done = [(name, f"{count}") for name, count in state.done.items() if count]
    for row in range(max(len(people), len(done), len(daemon))):
        cells: list[str] = []
        for column in (people, done, daemon):
            cells += column[row] if row < len(column) else ("", "")
        table.add_row(*cells)
    return table
