"""`softnpu inject`: faults of a device, provoked on a running daemon. One command for each kind of fault."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from softnpu.emulator.interface.injections import KINDS, FaultKind, KindInfo, Operation, Value, count_of
from softnpu.tools.console import out
from softnpu.tools.failures import ToolError
from softnpu.tools.status import SocketOption, connect, place_of

if TYPE_CHECKING:
    from rich.table import Table

    from softnpu.driver.faults import InjectionState

app = typer.Typer(
    name="inject",
    help="Provoke every failure that a device can show, on a running daemon. docs/faults.md has the effects.",
    no_args_is_help=True,
)

_PANELS: Final = {
    Operation.SUBMISSION: "Faults of submissions",
    Operation.DOORBELL: "Faults of doorbells",
    Operation.LOAD: "Faults of loads",
    Operation.REQUEST: "Faults of requests",
}
_EVERY: Final = "*"


def _parse_count(text: str) -> int | str:
    """How often; the star stays one, because None would mean that nothing was given."""
    try:
        count = count_of(str(text))  # typer gives the default as it is
    except ValueError:
        raise typer.BadParameter(f"{text!r}; expected a number, or '*' for every") from None
    return _EVERY if count is None else count


def _add(kind: FaultKind, facts: KindInfo) -> None:
    """The command of one kind."""
    takes = facts.value is not Value.NONE
    told = facts.value.value + (f" [{facts.default}]" if facts.default else "")
    value_option: Any = typer.Option(None, "--value", help=f"{told[:1].upper()}{told[1:]}.", hidden=not takes)

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
            raise ToolError("option --seed", found="given without --probability", expected="both, or no seed")
        place = place_of(socket)
        _check(place)
        from softnpu.driver import faults

        made = faults.inject(
            kind,
            socket=place,
            device=device,
            session=session,
            after=after,
            count=None if count == _EVERY else int(count),
            probability=1.0 if probability is None else probability,
            seed=seed or 0,
            value=value,
        )
        (state,) = [state for state in faults.status(place) if state.id == made]
        _say(f"injection {made}: {_summary(state)}")

    text = f"{facts.summary[:1].upper()}{facts.summary[1:]}."
    app.command(kind.value, help=text, rich_help_panel=_PANELS[facts.operation])(command)


for _kind, _facts in KINDS.items():
    _add(_kind, _facts)


@app.command("status")
def status(
    json_output: Annotated[bool, typer.Option("--json", help="A JSON array on stdout.")] = False,
    socket: SocketOption = None,
) -> None:
    """Show what was injected, and how often it has hit."""
    place = place_of(socket)
    _check(place)
    from softnpu.driver import faults

    states = faults.status(place)
    if json_output:
        import msgspec

        typer.echo(json.dumps(msgspec.to_builtins(states), indent=2))
    elif states:
        out.print(_table(states))
    else:
        _say("no injections")


@app.command("clear")
def clear(
    ids: Annotated[list[int] | None, typer.Argument(metavar="[ID]...", help="Which; none: all.")] = None,
    socket: SocketOption = None,
) -> None:
    """End injections."""
    place = place_of(socket)
    _check(place)
    from softnpu.driver import faults

    removed = faults.clear(ids or None, place)
    _say(f"{removed} injection{'' if removed == 1 else 's'} removed")


def _check(place: Path) -> None:
    """`ToolError` when no daemon runs there."""
    with connect(place):
        return


def _summary(state: InjectionState) -> str:
    often = "every operation" if state.count is None else _count(state.count, "operation")
    return ", ".join(filter(None, (_fault(state), often, _conditions(state))))


def _fault(state: InjectionState) -> str:
    return f"{state.kind} {state.value}".strip()


def _conditions(state: InjectionState) -> str:
    """Which operations, if not any."""
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
    from rich import box
    from rich.table import Table

    table = Table(title="injected faults", title_justify="left", box=box.SIMPLE_HEAD)
    for heading in ("id", "fault", "state", "hits", "matched", "of which"):
        side: Any = "right" if heading in ("id", "hits", "matched") else "left"
        table.add_column(heading, justify=side, no_wrap=heading not in ("fault", "of which"))
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


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _numbers(numbers: tuple[int, ...]) -> str:
    return ", ".join(map(str, numbers))


def _say(text: str) -> None:
    out.print(text, markup=False, highlight=False, soft_wrap=True)
