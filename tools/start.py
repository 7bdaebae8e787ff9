"""The console script: Ctrl-C ends it silently, even during imports.

A base installation has the script without its packages: it says how to install them.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # `signal` takes ten times as long to import
import sys

TYPE_CHECKING = False  # that of `typing` takes longer to import than all of this
if TYPE_CHECKING:
    from typing import Final

_EXTRA: Final = ("typer", "rich", "platformdirs", "posix_ipc")
"""Packages of the extra `tools`."""


def main() -> None:
    """Run `softnpu`."""
    handler = _signal.getsignal(_signal.SIGINT)
    if handler is _signal.default_int_handler:
        _signal.signal(_signal.SIGINT, _signal.SIG_DFL)
    try:
        if sys.argv[1:2] == ["run"]:
            from softnpu.tools.run import quick_run

            quick_run.try_to_run(sys.argv[2:])
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

    _signal.signal(_signal.SIGINT, handler)
    cli.main()
