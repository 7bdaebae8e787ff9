"""Small wrong programs, each with its right twin: `python programs.py [NAME...]` runs both of each.

A program is a function of a `Rig` and `right`: whether it is to be the right one. `KINDS` says what is wrong
otherwise. All of them run in one process, since every finding names the function it was met in.
"""

from __future__ import annotations

import sys

from softnpu.driver import Driver
from tests.check import bounds, lifetimes, races, waits
from tests.check.rig import KINDS, PROGRAMS, Rig

__all__ = ["KINDS", "PROGRAMS", "bounds", "lifetimes", "races", "waits"]


def main(names: list[str]) -> None:
    """Run the wrong and the right form of each program."""
    with Driver.open() as driver:
        for name in names or PROGRAMS:
            for right in (False, True):
                rig = Rig(driver)
                (right_form if right else wrong_form)(name, rig)
                rig.end()


def wrong_form(name: str, rig: Rig) -> None:
    """Run the wrong form: a frame of its own tells it from the right one."""
    PROGRAMS[name](rig, False)


def right_form(name: str, rig: Rig) -> None:
    """Run the right form."""
    PROGRAMS[name](rig, True)


if __name__ == "__main__":
    main(sys.argv[1:])
