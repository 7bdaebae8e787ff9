"""`softnpu trace`: record new or running programs, with the daemon and the devices."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from typer.core import TyperGroup

from softnpu.emulator.interface.trace import DEFAULT_RECORDS, MAX_RECORDS, MIN_RECORDS
from softnpu.tools.shared.console import err, print_line
from softnpu.tools.shared.daemon_connection import PlatformOption, SocketOption, connect, socket_path
from softnpu.tools.shared.groups import application
from softnpu.tools.trace.record import check_output, record, write

_COMMANDS: Final = ("run", "attach", "--help", "-h")
_NO_END_S: Final = 1e9
_DEFAULT_FILE: Final = Path("trace.json")

OutputOption = Annotated[
    Path, typer.Option("--output", "-o", metavar="FILE", help="Where to write the trace.", dir_okay=False)
]
LayersOption = Annotated[
    bool,
    typer.Option("--layers", help="Record layers as well, of models loaded meanwhile."),
]
JsonOption = Annotated[
    bool, typer.Option("--json", help="Print the summary as one JSON document, to stdout, at the end.")
]
RecordsOption = Annotated[
    int,
    typer.Option(
        "--records",
        help="Records kept per process between two polls, a power of two; more for bursts.",
        min=MIN_RECORDS,
        max=MAX_RECORDS,
    ),
]


class TraceGroup(TyperGroup):
    """Runs `run` if no command is named: `softnpu trace -- PROGRAM`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in _COMMANDS:
            args = ["run", *args]
        return super().parse_args(ctx, args)


app = application(
    "trace",
    "One timeline of programs, daemon and devices, for Perfetto.\n\n"
    "`softnpu trace -o FILE --layers -- PROGRAM` is short for `softnpu trace run`.",
)
app.info.cls = TraceGroup


@app.command("run", context_settings={"allow_interspersed_args": False})
def run(
    command: Annotated[list[str], typer.Argument(help="The program and its arguments, after --.")],
    output: OutputOption = _DEFAULT_FILE,
    layers: LayersOption = False,
    records: RecordsOption = DEFAULT_RECORDS,
    json_output: JsonOption = False,
    platform: PlatformOption = None,
    socket: SocketOption = None,
) -> None:
    """Run a program as `softnpu run` does, and write what happens meanwhile; `run` itself may be left out.

    The exit code is the program's.
    """
    from softnpu.driver import native_library
    from softnpu.tools.run.cli import environment_for

    check_output(output)
    path = socket_path(socket)
    environment = environment_for(native_library.find(), path, platform, os.environ)
    raise typer.Exit(record(command, environment, path, output, layers, records, json_output))


@app.command("attach")
def attach(
    output: OutputOption = _DEFAULT_FILE,
    layers: LayersOption = False,
    records: RecordsOption = DEFAULT_RECORDS,
    seconds: Annotated[
        float | None, typer.Option(help="How long; without it until Ctrl-C.", min=0.0, show_default=False)
    ] = None,
    json_output: JsonOption = False,
    socket: SocketOption = None,
) -> None:
    """Record all programs of a running daemon."""
    from softnpu.tools.trace.collector import POLL_S, collecting

    check_output(output)
    interrupted = _Interrupted()
    with connect(socket_path(socket)) as driver, collecting(driver, layers, records) as trace:
        end = time.monotonic() + (_NO_END_S if seconds is None else seconds)
        if seconds is None:
            print_line(f"tracing daemon {driver.daemon_pid}; Ctrl-C ends it", console=err)
        while not interrupted.came and trace.recording.complete and (left := end - time.monotonic()) > 0:
            time.sleep(min(POLL_S, left))
            trace.poll()
        write(output, trace.finish(), json_output)


class _Interrupted:
    """Ctrl-C and SIGTERM end the trace; this program still writes its file."""

    def __init__(self) -> None:
        self.came = False
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._note)

    def _note(self, *_: object) -> None:
        self.came = True
