"""The `softnpu` command: what it can do, and how a failure is told.

Only what every call needs is imported here: `softnpu --help` must not load OpenVINO.
"""

from __future__ import annotations

import typer

from softnpu.tools import daemon, infer, status
from softnpu.tools.demo import cli as demo
from softnpu.tools.groups import RootGroup

app = typer.Typer(
    name="softnpu",
    cls=RootGroup,
    help="A software NPU: programs written for Intel's NPU run on a machine that has none.",
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,
)
app.command("demo")(demo.demo)
app.command("infer")(infer.infer)
app.command("daemon")(daemon.daemon)
app.command("status")(status.status)
app.command("stop")(daemon.stop)


def main() -> None:
    """The console script. Exit codes: 0 done, 1 a failure told on stderr, 2 wrong usage."""
    app(prog_name="softnpu")


if __name__ == "__main__":
    main()
