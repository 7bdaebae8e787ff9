"""The console script: Ctrl-C ends it silently, even during imports.

A base installation has the script without its packages: it says how to install them.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # that of `typing` takes longer to import than all of this
if TYPE_CHECKING:
    from typing import Final

_EXTRA: Final = ("typer", "rich", "platformdirs", "posix_ipc")
"""Packages of the extra `tools`."""


def main() -> None:
    """Run `softnpu`."""
    if sys.argv[1:2] == ["run"]:
        _run_quickly(sys.argv[2:])
    import signal  # late: a program that is run waits for each import

    handler = signal.getsignal(signal.SIGINT)
    if handler is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        from softnpu.driver import starter
        from softnpu.tools import cli

        starter.may_begin_early = False
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in _EXTRA:
            raise
        sys.exit(
            f"softnpu: the command line needs {package}, which is not installed. Install what the extra "
            f"softnpu[tools] has: {sys.executable} -m pip install {' '.join(_EXTRA)}"
        )

    signal.signal(signal.SIGINT, handler)
    cli.main()


def _run_quickly(arguments: list[str]) -> None:
    from softnpu.tools.run import quick_run

    try:
        quick_run.try_to_run(arguments)
    except KeyboardInterrupt:
        import os
        import signal

        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
