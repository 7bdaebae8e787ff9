"""A one-time report of a cluster for `softnpu farm status` and `softnpu status --farm`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from softnpu.tools.shared.console import format_count, make_table, out, print_json, print_line
from softnpu.tools.shared.failures import ToolError

if TYPE_CHECKING:
    from softnpu.tools.farm.states import ClusterState

THIS_MACHINE: Final = "auto"
AddressOption = Annotated[
    str, typer.Option(metavar="HOST:PORT", help="A cluster of Ray, or 'auto': that of this machine.")
]
_NONE: Final = "-"


def check(farm: bool, address: str, socket: Path | None) -> None:
    """Reject daemon options for a cluster, and vice versa."""
    if farm and socket is not None:
        raise typer.BadParameter("--farm and --socket; expected one of them")
    if not farm and address != THIS_MACHINE:
        raise typer.BadParameter("--address without --farm; expected both")


def show(address: str, json_output: bool) -> None:
    """Print the nodes of a cluster, their devices and leases. Raise `ToolError`."""
    from softnpu.tools.farm.monitor import look_once

    found = look_once(address)
    if json_output:
        print_json({"nodes": found.nodes})
        return
    if not found.nodes:
        raise ToolError(
            f"cluster {address}",
            found="no node with devices",
            expected="one",
            hint="start one with softnpu farm node --run",
        )
    _print(found)


def _print(found: ClusterState) -> None:
    nodes = make_table(
        "nodes", "node", "state", "platform", right=("devices", "free", "leased", "used", "sessions")
    )
    counters = make_table("counters", "node", "platform", right=("inferences", "errors", "resets"))
    for node in found.nodes:
        for each in node.platforms:
            amounts = (float(each.devices), each.free, each.leased)
            named = (node.title, each.platform)
            if each.leased is None:
                nodes.add_row(named[0], node.state, named[1], *map(_amount, amounts), _NONE, _NONE)
                continue
            numbers = (str(each.used), str(each.sessions))
            nodes.add_row(named[0], node.state, named[1], *map(_amount, amounts), *numbers)
            counters.add_row(*named, *map(str, (each.inferences, each.errors, each.restarts)))
    out.print(nodes)
    if counters.row_count:
        out.print(counters)
    if any(node.leases for node in found.nodes):
        leases = make_table("leases", "node", "pid", "devices", "sessions", "program")
        leases.columns[-1].no_wrap, leases.columns[-1].overflow = False, "fold"
        for node in found.nodes:
            for lease in node.leases:
                listed = ", ".join(map(str, lease.devices))
                devices = listed if lease.share == 1 else f"{lease.share:.0%} of {listed}"
                leases.add_row(node.title, str(lease.pid), devices, str(lease.sessions), lease.program)
        out.print(leases)
    for node in found.nodes:
        if node.problem:
            print_line(f"{node.title}: {node.problem}")
    if found.died:
        print_line(f"{format_count(found.died, 'node')} of this cluster died before")


def _amount(value: float | None) -> str:
    return _NONE if value is None else f"{value:g}"
