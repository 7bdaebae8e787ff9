"""`softnpu trace`: run a program and record what it, the daemon and the devices do; or record what runs."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from typer.core import TyperGroup

from softnpu.tools.console import err, format_bytes, format_count, print_line
from softnpu.tools.failures import ToolError
from softnpu.tools.groups import application
from softnpu.tools.status import PlatformOption, SocketOption, connect, socket_path

if TYPE_CHECKING:
    from softnpu.tools.trace.collector import Recording

_COMMANDS: Final = ("run", "attach", "--help")
_NO_END_S: Final = 1e9
_DEFAULT_FILE: Final = Path("trace.json")

OutputOption = Annotated[
    Path, typer.Option("--output", "-o", metavar="FILE", help="Where to write the trace.", dir_okay=False)
]
LayersOption = Annotated[
    bool,
    typer.Option("--layers", help="Layers as well, of models that are loaded meanwhile."),
]


class TraceGroup(TyperGroup):
    """Without the name of a command it is `run`: `softnpu trace -- PROGRAM`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in _COMMANDS:
            args = ["run", *args]
        return super().parse_args(ctx, args)


app = application("trace", "One timeline of programs, daemon and devices, for Perfetto.")
app.info.cls = TraceGroup


@app.command("run", context_settings={"allow_interspersed_args": False})
def run(
    command: Annotated[list[str], typer.Argument(help="The program and its arguments, after --.")],
    output: OutputOption = _DEFAULT_FILE,
    layers: LayersOption = False,
    platform: PlatformOption = None,
    socket: SocketOption = None,
) -> None:
    """Run a program as `softnpu run` does, and write what happens meanwhile; `run` itself may be left out.

    The exit code is the program's.
    """
    from softnpu.driver import Driver, native_library
    from softnpu.tools.run import environment_for, watch
    from softnpu.tools.trace.collector import POLL_S, collecting

    place = socket_path(socket)
    environment = environment_for(native_library.find(), place, platform, os.environ)
    _check_output(output)
    with Driver.open(place, autostart=False, role="monitor") as driver, collecting(driver, layers) as trace:
        code = watch(command, environment, trace.poll, POLL_S)
        _write(output, trace.finish())
    raise typer.Exit(code)


@app.command("attach")
def attach(
    output: OutputOption = _DEFAULT_FILE,
    layers: LayersOption = False,
    seconds: Annotated[
        float | None, typer.Option(help="How long; without it until Ctrl-C.", min=0.0, show_default=False)
    ] = None,
    socket: SocketOption = None,
) -> None:
    """Write what all programs that use a running daemon do from now on."""
    from softnpu.tools.trace.collector import POLL_S, collecting

    _check_output(output)
    interrupted = _Interrupted()
    with connect(socket_path(socket)) as driver, collecting(driver, layers) as trace:
        end = time.monotonic() + (_NO_END_S if seconds is None else seconds)
        if seconds is None:
            print_line(f"tracing daemon {driver.daemon_pid}; Ctrl-C ends it", console=err)
        while not interrupted.came and trace.recording.complete and (left := end - time.monotonic()) > 0:
            time.sleep(min(POLL_S, left))
            trace.poll()
        _write(output, trace.finish())


class _Interrupted:
    """Ctrl-C and SIGTERM end the trace, not this program: it writes its file then."""

    def __init__(self) -> None:
        self.came = False
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, self._note)

    def _note(self, *_: object) -> None:
        self.came = True


def _check_output(output: Path) -> None:
    """Refuse a file that cannot be written, before anything runs."""
    if not output.parent.is_dir():
        raise ToolError(
            f"file {output}", found=f"no folder {output.parent}", expected="a file in a folder that exists"
        )


def _write(output: Path, recording: Recording) -> None:
    from softnpu.tools.trace import chrome
    from softnpu.tools.trace.timeline import timeline_of

    timeline = timeline_of(recording)
    chrome.write(output, timeline, recording)
    said = chrome.summary(timeline, recording)
    line = (
        f"{output}: {format_bytes(output.stat().st_size)}, {format_count(said['records'], 'record')} of "
        f"{len(timeline.processes)} processes, "
        f"{format_count(timeline.submissions, 'submission')}, "
        f"{format_count(timeline.inferences, 'inference')}"
    )
    print_line(line, console=err)
    if said["lost"] or said["refused"]:
        lost = f"lost: {format_count(said['lost'], 'record')}, {format_count(said['refused'], 'session')}"
        print_line(lost, console=err)
    if not recording.complete:
        print_line("the daemon has ended meanwhile", console=err)
