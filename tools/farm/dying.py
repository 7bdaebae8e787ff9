"""`python -m softnpu.tools.farm.dying PARENT PROGRAM...`: a program that gets SIGTERM when PARENT dies."""

from __future__ import annotations

import os
import signal
import sys

from softnpu.emulator.common import linux


def main(arguments: list[str]) -> None:
    """Become the program."""
    linux.die_with_parent(int(arguments[0]), signal.SIGTERM)
    os.execvp(arguments[1], arguments[1:])


if __name__ == "__main__":
    main(sys.argv[1:])
