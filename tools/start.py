"""The console script: Ctrl-C ends it without a word, also while it imports what it needs."""

from __future__ import annotations

import signal
import sys


def main() -> None:
    """Run `softnpu`."""
    handler = signal.getsignal(signal.SIGINT)
    if handler is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    if sys.argv[1:2] == ["run"]:
        from softnpu.tools import quick_run

        quick_run.try_to_run(sys.argv[2:])
    from softnpu.tools import cli

    signal.signal(signal.SIGINT, handler)
    cli.main()
