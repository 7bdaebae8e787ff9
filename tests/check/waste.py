"""A program that wastes, and then does the same work without waste."""

from __future__ import annotations

from softnpu.driver import Driver
from tests.check.rig import Rig, copy


def unused_memory(rig: Rig, right: bool) -> None:
    """Two of four allocations are never used; another program may use the fifth."""
    memory = [rig.memory() for _ in range(2 if right else 4)]
    rig.context.alloc_host(4096, export=True)
    rig.submit(rig.one, copy(memory[0], memory[1])).host_synchronize()


def wasteful(rig: Rig) -> None:
    """Run the wasteful forms."""
    for each in PROGRAMS:
        each(rig, False)


def spared(rig: Rig) -> None:
    """Run the others."""
    for each in PROGRAMS:
        each(rig, True)


PROGRAMS = (unused_memory,)

if __name__ == "__main__":
    with Driver.open() as driver:
        for form in (wasteful, spared):
            rig = Rig(driver)
            form(rig)
            rig.end()
