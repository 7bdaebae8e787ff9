"""The `softnpu` command: all subcommands, and the exit codes.

Only imports that every call needs are here: `softnpu --help` must not load OpenVINO.
"""

from __future__ import annotations

import importlib.metadata
import sys
from typing import Annotated

import typer

from softnpu.emulator.common import streams
from softnpu.emulator.common.home import ensure_home
from softnpu.tools import clean, daemon, docs, doctor, logs, status
from softnpu.tools import compile as compiling
from softnpu.tools.check import cli as checking
from softnpu.tools.compare import cli as compare
from softnpu.tools.demo import cli as demo
from softnpu.tools.infer import cli as infer
from softnpu.tools.metrics import cli as metrics
from softnpu.tools.predict import cli as predicting
from softnpu.tools.report import cli as model_report
from softnpu.tools.run import cli as run
from softnpu.tools.shared.groups import INTERRUPTED, RootGroup
from softnpu.tools.stress import cli as stress
from softnpu.tools.top import cli as top

app = typer.Typer(
    name="softnpu",
    cls=RootGroup,
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["--help", "-h"]},  # of every command below it
)


def _print_version(wanted: bool) -> None:
    if wanted:
        try:
            version = importlib.metadata.version("softnpu")
        except importlib.metadata.PackageNotFoundError:
            version = "(not installed)"
        typer.echo(f"softnpu {version}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version.")
    ] = False,
) -> None:
    """A software NPU: programs written for Intel's NPU run on a machine that has none."""


app.command("demo")(demo.demo)
app.command("compile")(compiling.compile_model)
app.command("infer")(infer.infer)
app.command("predict")(predicting.predict)
app.command("compare")(compare.compare)
app.command("report")(model_report.report)
# everything after the program's name belongs to the program: none of its options is parsed as ours
app.command("run", context_settings={"allow_interspersed_args": False})(run.run)
app.command("check", context_settings={"allow_interspersed_args": False})(checking.check)
app.command("env")(run.env)
app.command("doctor")(doctor.doctor)
app.command("stress")(stress.stress)
app.command("daemon")(daemon.daemon)
app.command("status")(status.status)
app.command("top")(top.top)
app.command("metrics")(metrics.metrics)
app.command("stop")(daemon.stop)
app.command("logs")(logs.logs)
app.command("clean")(clean.clean)
app.command("docs")(docs.docs)


def main() -> None:
    """The console script. Exit codes: 0 done, 1 a failure, 2 wrong usage, 130 Ctrl-C."""
    streams.open_streams()  # output would go to a descriptor that has a stream's number
    try:
        doctor.home_is_missing = ensure_home()
        app(prog_name="softnpu")
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)


if __name__ == "__main__":
    main()
