"""`softnpu inject`: provoke device faults on a running daemon. One command for each kind of fault."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from softnpu.emulator.interface.injections import KINDS, FaultKind, KindInfo, Operation, Value, count_of
from softnpu.tools.shared.console import JsonOption, format_count, make_table, out, print_json, print_line
from softnpu.tools.shared.daemon_connection import SocketOption, connect, socket_path
from softnpu.tools.shared.failures import UsageError
from softnpu.tools.shared.groups import application

if TYPE_CHECKING:
    from rich.table import Table

    from softnpu.driver.faults import InjectionState

app = application(
    "inject",
    "Provoke every failure that a device can show, on a running daemon. docs/faults.md has the effects.",
)

_PANELS: Final = {
    Operation.SUBMISSION: "Faults of submissions",
    Operation.DOORBELL: "Faults of doorbells",
    Operation.LOAD: "Faults of loads",
    Operation.REQUEST: "Faults of requests",
}
_EVERY: Final = "*"


def _parse_count(text: str) -> int | str:
    """Parse a count; the star stays, because None would mean that nothing was given."""
    try:
        count = count_of(str(text))  # typer passes the default unchanged
    except ValueError:
        raise typer.BadParameter(f"{text!r}; expected a number, or '*' for every") from None
    return _EVERY if count is None else count


def _add(kind: FaultKind, info: KindInfo) -> None:
    """Add the command of one kind."""
    takes = info.value is not Value.NONE
    described = info.value.value + (f" [{info.default}]" if info.default else "")
    value_option: Any = typer.Option(
        None, "--value", help=f"{described[:1].upper()}{described[1:]}.", hidden=not takes
    )

    def command(
        value: str | None = value_option,
        device: Annotated[int | None, typer.Option(help="Only on this device (0 is NPU or NPU.0).")] = None,
        session: Annotated[
            str | None, typer.Option(metavar="S|pid:PID", help="Only of this session, or of this process.")
        ] = None,
        after: Annotated[int, typer.Option(help="So many that match pass first.")] = 0,
        count: Annotated[
            Any, typer.Option(parser=_parse_count, metavar="K|*", help="So many are hit [1]; '*': every.")
        ] = 1,
        probability: Annotated[float | None, typer.Option(help="Share of them that is hit [1].")] = None,
        seed: Annotated[int | None, typer.Option(help="With --probability: picks the same again.")] = None,
        socket: SocketOption = None,
    ) -> None:
        if seed is not None and probability is None:
            raise UsageError(
                "option --seed", found="given without --probability", expected="both, or no seed"
            )
        path = socket_path(socket)
        _check(path)
        from softnpu.driver import faults

        made = faults.inject(
            kind,
            socket=path,
            device=device,
            session=session,
            after=after,
            count=None if count == _EVERY else int(count),
            probability=1.0 if probability is None else probability,
            seed=seed or 0,
            value=value,
        )
        (state,) = [state for state in faults.status(path) if state.id == made]
        print_line(f"injection {made}: {_summary(state)}")

    text = f"{info.summary[:1].upper()}{info.summary[1:]}."
    app.command(kind.value, help=text, rich_help_panel=_PANELS[info.operation])(command)


for _kind, _facts in KINDS.items():
    _add(_kind, _facts)


@app.command("status")
def status(json_output: JsonOption = False, socket: SocketOption = None) -> None:
    """Show what was injected, and how often it has hit."""
    path = socket_path(socket)
    _check(path)
    from softnpu.driver import faults

    states = faults.status(path)
    if json_output:
        print_json({"injections": states})
    elif states:
        out.print(_table(states))
    else:
        print_line("no injections")


@app.command("clear")
def clear(
    ids: Annotated[list[int] | None, typer.Argument(metavar="[ID]...", help="Which; none: all.")] = None,
    socket: SocketOption = None,
) -> None:
    """End injections."""
    path = socket_path(socket)
    _check(path)
    from softnpu.driver import faults

    removed = faults.clear(ids or None, path)
    print_line(f"{format_count(removed, 'injection')} removed")


def _check(path: Path) -> None:
    """Raise `ToolError` when no daemon runs there."""
    with connect(path):
        return


def _summary(state: InjectionState) -> str:
    often = "every operation" if state.count is None else format_count(state.count, "operation")
    return ", ".join(filter(None, (_fault(state), often, _conditions(state))))


def _fault(state: InjectionState) -> str:
    return f"{state.kind} {state.value}".strip()


def _conditions(state: InjectionState) -> str:
    """Name the affected operations, unless all are."""
    parts = []
    if state.after:
        parts.append(f"after {state.after}")
    if state.probability < 1:
        parts.append(f"probability {state.probability:g} with seed {state.seed}")
    if state.device is not None:
        parts.append(f"device {state.device}")
    if state.sessions:
        parts.append(f"{'session' if len(state.sessions) == 1 else 'sessions'} {_numbers(state.sessions)}")
    return ", ".join(parts)


def _table(states: list[InjectionState]) -> Table:
    table = make_table("injected faults", "id", "fault", "state", "hits", "matched", "of which")
    for number, column in enumerate(table.columns):
        column.justify = "right" if number in (0, 3, 4) else "left"
        column.no_wrap = number not in (1, 5)
    for state in states:
        most = _EVERY if state.count is None else state.count
        table.add_row(
            str(state.id),
            _fault(state),
            state.state,
            f"{state.hits} of {most}",
            str(state.matched),
            _conditions(state) or "any",
        )
    return table


def _numbers(numbers: tuple[int, ...]) -> str:
    return ", ".join(map(str, numbers))
