"""Tables of sessions, models and compilations, for terminals and files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from softnpu.tools.shared.console import format_bytes, format_time, make_table, out
from softnpu.tools.shared.monitor.views import View

if TYPE_CHECKING:
    from rich.table import Table


def print_work(view: View) -> None:
    """Print sessions, models and compilations, if any."""
    if view.sample.status.session_count:
        out.print(_sessions(view))
    else:
        out.print("no sessions")
    if view.models:
        out.print(_models(view))
    if view.compilations:
        out.print(_compilations(view))


def _sessions(view: View) -> Table:
    title = f"sessions: {view.sample.status.session_count}"
    table = make_table(title, "", "pid", "program", "state", right=("share", "memory", "inferences"))
    table.columns[2].no_wrap = False  # names shrink on a narrow terminal, numbers do not
    table.add_column("models")
    for session in view.sessions:
        table.add_row(
            str(session.session),
            str(session.pid),
            session.program,
            session.state,
            f"{session.share:.1%}",
            format_bytes(session.memory),
            str(session.inferences),
            ", ".join(session.models) or "-",
        )
    return table


def _models(view: View) -> Table:
    right = ("memory", "sessions", "inferences", "mean time")
    table = make_table("models", "model", "device", "state", right=right, names="model")
    for model in view.models:
        table.add_row(
            model.name,
            model.device,
            model.state,
            format_bytes(model.memory),
            str(model.sessions),
            str(model.inferences),
            format_time(model.mean_s) if model.inferences else "-",
        )
    return table


def _compilations(view: View) -> Table:
    title = f"compilations: {view.sample.compilation_count}"
    headings = ("session", "device", "for", "model", "stage")
    table = make_table(title, *headings, right=("done", "age"), names="model")
    for each in view.compilations:
        table.add_row(
            str(each.session),
            each.device,
            each.kind,
            each.name,
            each.stage,
            f"{each.done:.0%}",
            format_time(each.age_s),
        )
    return table
