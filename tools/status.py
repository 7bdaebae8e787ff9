"""`softnpu status`: show a running daemon's activity. It never starts one."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Annotated, Final

import typer

from softnpu.tools.farm import report
from softnpu.tools.shared.console import (
    JsonOption,
    format_bytes,
    format_time,
    make_table,
    out,
    print_json,
    print_line,
)
from softnpu.tools.shared.daemon_connection import SocketOption, connect, socket_path
from softnpu.tools.shared.monitor.document import document
from softnpu.tools.shared.monitor.figures import COUNT, DEVICE, NANOSECONDS, Figure
from softnpu.tools.shared.monitor.tables import print_work
from softnpu.tools.shared.monitor.views import View, device_name, user_name

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

    from softnpu.driver import Driver
    from softnpu.driver.faults import InjectionState
    from softnpu.emulator.interface.messages import EngineStatus, StatusAnswer

_LEAST_S: Final = 0.1
# of devices whose clock is not the host's
_MODELLED: Final = (
    Figure("device_clock_ns", NANOSECONDS, label="modelled time"),
    Figure("late", COUNT, label="late"),
    Figure("unmodelled", COUNT, label="without a modelled time"),
)


def status(
    seconds: Annotated[float, typer.Argument(help="Time between two samples, with --watch.")] = 1.0,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Sample repeatedly, until Ctrl-C.")] = False,
    count: Annotated[
        int | None, typer.Option("-n", "--count", min=1, help="End after so many looks, with --watch.")
    ] = None,
    csv: Annotated[
        bool, typer.Option("--csv", help="Print one line per sample, in the columns of intel-npu-smi.")
    ] = False,
    all: Annotated[bool, typer.Option("--all", help="Also the rows in which every figure is zero.")] = False,
    json_output: JsonOption = False,
    socket: SocketOption = None,
    farm: Annotated[bool, typer.Option("--farm", help="Show the nodes of a cluster instead.")] = False,
    address: report.AddressOption = report.THIS_MACHINE,
) -> None:
    """Show the running daemon, its devices and their counters, and who uses them.

    With --watch shares and rates are those of the time between two samples, and --json prints a line for
    each.
    """
    report.check(farm, address, socket)
    if farm:
        if watch or csv:
            raise typer.BadParameter("--farm with --watch or --csv; use 'softnpu top --farm'")
        report.show(address, json_output)
        return
    from softnpu.tools.shared.monitor import watching
    from softnpu.tools.shared.monitor.programs import Programs
    from softnpu.tools.shared.monitor.sample import Sample

    if seconds < _LEAST_S:
        raise typer.BadParameter(f"{seconds:g} s between two samples; expected {_LEAST_S:g} or more")
    if csv and json_output:
        raise typer.BadParameter("--csv and --json; expected one of them")
    if watch or csv:
        form = watching.CsvForm() if csv else watching.JsonForm() if json_output else watching.TableForm()
        watching.watch(socket_path(socket), seconds, count if watch else 1, form)
        return
    with connect(socket_path(socket)) as driver:
        view = View.of(Sample.take(driver), None, Programs())
        injections = _injected(driver)
    if json_output:
        print_json(document(view))
        return
    state = view.sample.status
    line = (
        f"{state.server}, interface {state.interface}, daemon {state.pid} at {state.socket}, "
        f"up {format_time(state.uptime_s)}, compiler workers: {_numbers(state.compiler_pids)}"
    )
    print_line(line)
    out.print(_devices(state, zeros=all))
    functions = [each for engine in state.engines for each in engine.functions]
    if any(each.session or each.uid != os.getuid() for each in functions):
        out.print(_functions(state))
    if state.internal_errors:
        print_line(
            f"internal errors: {state.internal_errors}; please report what the daemon's log has of them"
        )
    if described := _injections(injections):
        print_line(described)
    if view.leases:
        out.print(_leases(view))
    print_work(view)
    if len(state.users) > 1 or any(user.refusals for user in state.users):
        out.print(_users(state))


def _injected(driver: Driver) -> list[InjectionState]:
    """Return the injections that this user may see."""
    from softnpu.driver import ZeError, ZeResult
    from softnpu.driver.faults import status_of

    try:
        return status_of(driver)
    except ZeError as error:
        if error.result != ZeResult.ERROR_INSUFFICIENT_PERMISSIONS:
            raise
        return []


def _injections(states: list[InjectionState]) -> str:
    active = sum(state.state == "active" for state in states)
    hits = sum(state.hits for state in states)
    return f"injected faults: {active} active, {hits} hits ('softnpu inject status')" if states else ""


def _devices(state: StatusAnswer, *, zeros: bool) -> Table:
    """Return a table with a column for each device: at most 8 of them, with many properties each."""
    columns = [_rows_of(engine) for engine in state.engines]
    hidden = frozenset() if zeros else _zeros(state)
    title = "devices (rows of zeros: --all)" if hidden else "devices"
    table = make_table(title, "", right=tuple(device_name(engine, state) for engine in state.engines))
    for label in columns[0]:
        if label not in hidden:
            table.add_row(label, *(column[label] for column in columns))
    return table


def _zeros(state: StatusAnswer) -> frozenset[str]:
    """Return the labels of the figures that are zero on every device."""
    figures = (*DEVICE, *_MODELLED)
    return frozenset(each.label for each in figures if each.label and not any(map(each.value, state.engines)))


def _rows_of(engine: EngineStatus) -> dict[str, str | Text]:
    from softnpu.emulator.platforms import title

    quiet_s = (time.monotonic_ns() - engine.heartbeat_ns) / 1e9
    modelled = {
        "clock": engine.device.clock,
        **{figure.label: figure.text(engine) for figure in _MODELLED},
    }
    return {
        "platform": title(engine.device.platform),
        "tiles": str(engine.device.tiles),
        **(modelled if engine.device.clock != "host" else {}),
        "engine pid": str(engine.engine_pid or "-"),
        "state": _coloured(engine.state),
        **{figure.label: figure.text(engine) for figure in DEVICE if figure.label},
        "last active": f"{format_time(quiet_s)} ago" if engine.heartbeat_ns else "-",
    }


def _functions(state: StatusAnswer) -> Table:
    figures = ("engine", "restarts", "contexts", "memory", "inferences", "busy")
    table = make_table("virtual functions", "device", "user", "session", "state", right=figures)
    for engine in state.engines:
        for each in engine.functions:
            table.add_row(
                device_name(engine, state),
                user_name(each.uid),
                str(each.session or "-"),
                _coloured(each.state),
                str(each.engine_pid or "-"),
                str(each.restarts),
                str(each.contexts),
                format_bytes(each.memory_used),
                str(each.inferences),
                format_time(each.busy_ns / 1e9),
            )
    return table


def _leases(view: View) -> Table:
    table = make_table("leases", "", "pid", "program", "devices", right=("share", "sessions"))
    for lease in view.leases:
        devices, share = ", ".join(lease.devices), f"{lease.share:.0%}"
        table.add_row(str(lease.lease), str(lease.pid), lease.program, devices, share, str(lease.sessions))
    return table


def _users(state: StatusAnswer) -> Table:
    counts = ("connected", "sessions", "memory", "handles", "compiling", "refused")
    table = make_table("users", "user", right=counts)
    for user in state.users:
        table.add_row(
            user_name(user.uid),
            str(user.connections),
            str(user.sessions),
            format_bytes(user.memory_used),
            *map(str, (user.handles, user.compiles, user.refusals)),
        )
    return table


def _coloured(state: str) -> Text:
    from rich.text import Text

    colour = {"ready": "green", "failed": "red"}.get(state, "yellow")
    return Text(state, colour)


def _numbers(pids: tuple[int, ...]) -> str:
    return ", ".join(map(str, pids)) or "none"
