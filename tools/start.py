"""The console script: Ctrl-C ends it without a word, also while it imports what it needs."""

from __future__ import annotations

import signal


def main() -> None:
    """Run `softnpu`."""
    handler = signal.getsignal(signal.SIGINT)
    if handler is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from softnpu.tools import cli

    signal.signal(signal.SIGINT, handler)
    cli.main()
