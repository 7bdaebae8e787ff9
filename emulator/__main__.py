"""The daemon as a program; started by `daemon.start_background`, not by hand (use `softnpu daemon`)."""

import sys

from softnpu.emulator.daemon import run_as_program

if __name__ == "__main__":
    sys.exit(run_as_program(sys.argv[1:]))
