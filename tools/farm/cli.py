"""`softnpu farm`: machines as nodes of a farm, and what the farm does."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from softnpu.emulator.platforms import DEFAULT_PLATFORM
from softnpu.tools.console import JsonOption, make_table, out, print_json, print_line
from softnpu.tools.daemon_connection import PlatformOption, SocketOption, socket_path
from softnpu.tools.failures import ToolError
from softnpu.tools.groups import application

if TYPE_CHECKING:
    from softnpu.tools.farm.cluster import NodeState

app = application("farm", "Emulated devices of many machines, on Ray: docs/farm.md.")
_MOST_DEVICES = 8


@app.command(context_settings={"allow_extra_args": True})
def node(
    context: typer.Context,
    devices: Annotated[int, typer.Option(min=1, max=_MOST_DEVICES, help="Devices of each --platform.")] = 1,
    platform: PlatformOption = None,
    address: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Join this cluster; without it: be its first node.")
    ] = "",
    run: Annotated[bool, typer.Option("--run", help="Run it, until Ctrl-C, instead of printing it.")] = False,
    socket: SocketOption = None,
) -> None:
    """Print, or run, what makes this machine a node of a farm. What stands behind -- is for `ray start`.

    A daemon that runs at the socket is used, and stays; else one is started, and ends with Ray.
    """
    from softnpu.tools.farm.node import Node

    place = socket_path(socket)
    chosen = tuple(one for one in platform or () for _ in range(devices))
    running = Node(place, chosen, address, tuple(context.args)).found()
    wanted = chosen or (DEFAULT_PLATFORM,) * devices
    planned = running or Node(place, wanted, address, tuple(context.args))
    planned.settings.check()
    if run:
        _announce(planned.platforms, place, running is not None)
        raise typer.Exit(planned.run(keep_daemon=running is None))
    for name, value in planned.environment().items():
        print_line(f"export {name}={shlex.quote(value)}")
    if running is None:
        print_line(shlex.join(planned.daemon_command()))
    print_line(shlex.join(planned.ray_command()))


@app.command()
def status(
    address: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="A cluster, or 'auto': that of this machine.")
    ] = "auto",
    json_output: JsonOption = False,
) -> None:
    """Show the nodes of a farm, their devices and who has leased them."""
    from softnpu.tools.farm.cluster import connected, nodes

    with connected(address):
        states = nodes()
    if json_output:
        print_json([node.document() for node in states])
        return
    if not states:
        raise ToolError(
            f"cluster {address}",
            found="no node with devices",
            expected="one",
            hint="start one with softnpu farm node --run",
        )
    _print(states)


def _announce(platforms: tuple[str, ...], place: Path, is_found: bool) -> None:
    daemon = "found, and stays" if is_found else "ends with Ray"
    print_line(f"devices {', '.join(platforms)}; daemon at {place}: {daemon}")


def _print(nodes: list[NodeState]) -> None:
    table = make_table(
        "nodes", "node", "platform", right=("devices", "free", "leased", "inferences", "resets")
    )
    for node in nodes:
        for platform in node.platforms:
            table.add_row(
                f"{node.name} {node.node_id[:8]}",
                platform.platform,
                str(platform.devices),
                f"{platform.free:g}" if platform.free is not None else "-",
                *(
                    ("-", "-", "-")
                    if platform.leased is None
                    else (f"{platform.leased:g}", str(platform.inferences), str(platform.restarts))
                ),
            )
    out.print(table)
    for node in nodes:
        if node.problem:
            print_line(f"{node.name} {node.node_id[:8]}: {node.problem}")
