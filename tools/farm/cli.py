"""`softnpu farm`: run machines as nodes of a farm, and show its state."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Annotated

import typer

from softnpu.emulator.platforms import DEFAULT_PLATFORM, numbers
from softnpu.tools.farm import report
from softnpu.tools.shared.console import JsonOption, print_line
from softnpu.tools.shared.daemon_connection import PlatformOption, SocketOption, socket_path
from softnpu.tools.shared.failures import UsageError
from softnpu.tools.shared.groups import application

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

    if address and not re.fullmatch(r".+:[0-9]+", address):
        raise UsageError(
            f"--address {address}",
            found="no host and port",
            expected="HOST:PORT of a node of the cluster, such as 10.0.0.1:6379",
        )
    place = socket_path(socket)
    chosen = tuple(one for one in numbers(platform or ()) for _ in range(devices))
    found = Node(place, chosen, address, tuple(context.args)).found()
    wanted = chosen or (DEFAULT_PLATFORM,) * devices
    planned = found or Node(place, wanted, address, tuple(context.args))
    planned.settings.check()
    if run:
        _announce(planned.platforms, place, found is not None)
        raise typer.Exit(planned.run(keep_daemon=found is None))
    for name, value in planned.environment().items():
        print_line(f"export {name}={shlex.quote(value)}")
    if found is None:
        print_line(shlex.join(planned.daemon_command()))
    print_line(shlex.join(planned.ray_command()))


@app.command()
def status(
    address: report.AddressOption = report.THIS_MACHINE,
    json_output: JsonOption = False,
) -> None:
    """Show the nodes of a farm, their devices and who has leased them."""
    report.show(address, json_output)


def _announce(platforms: tuple[str, ...], place: Path, is_found: bool) -> None:
    daemon = "found, and stays" if is_found else "ends with Ray"
    print_line(f"devices {', '.join(platforms)}; daemon at {place}: {daemon}")
