"""The `softnpu` command of a test, in a process forked after the imports."""

from __future__ import annotations

import sys

from typer.testing import CliRunner

from softnpu.tools import cli
from softnpu.tools.shared import console


def warm_up() -> None:
    """Trigger the lazy imports of parsing a command line and showing help."""
    assert CliRunner().invoke(cli.app, ["status", "--help"]).exit_code == 0


def run_command(arguments: list[str], _descriptors: list[int]) -> int:
    """Run `softnpu ARGUMENTS` as the main program of this process."""
    sys.argv = ["softnpu", *arguments]
    # they read the environment when they were created
    console.out.__init__()  # type: ignore[misc]
    console.err.__init__(stderr=True)  # type: ignore[misc]
    cli.main()
    return 0
