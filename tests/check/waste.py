"""A program that wastes, and then does the same work without waste."""

from __future__ import annotations

from softnpu.driver import Driver
from tests.check.rig import Rig, barrier, copy, fill, infer
from tests.conformance.models import SIZE


def unused_memory(rig: Rig, right: bool) -> None:
    """Two of four allocations are never used; another program may use the fifth."""
    memory = [rig.memory() for _ in range(2 if right else 4)]
    rig.context.alloc_host(4096, export=True)
    rig.submit(rig.one, copy(memory[0], memory[1])).host_synchronize()


def recorded_again(rig: Rig, right: bool) -> None:
    """Record the same fill four times, or submit one list again. Two in flight at once have to be two."""
    memory = rig.memory()
    if right:
        other = rig.memory()
        once = rig.list(fill(memory))
        for _ in range(4):
            rig.one.execute_command_lists([once])
            rig.one.synchronize()
        for _ in range(4):
            rig.one.execute_command_lists([rig.list(fill(other))])
    else:
        for _ in range(4):
            rig.submit(rig.one, fill(memory)).host_synchronize()
    rig.one.synchronize()


def copied_again(rig: Rig, right: bool) -> None:
    """Upload the same bytes four times, or others."""
    source, target = rig.memory(1), rig.memory(0)
    once = rig.list(copy(target, source))
    for number in range(5):
        if right:
            source.view()[:] = number + 2
        rig.one.execute_command_lists([once])
        rig.one.synchronize()


def staged(rig: Rig, right: bool) -> None:
    """Copy an input to where the graph reads it, and the output from where it writes it."""
    graph = rig.graph()
    given, left, other, output, result = (rig.memory(size=SIZE) for _ in range(5))
    if right:
        rig.submit(rig.one, infer(graph, given, other, result)).host_synchronize()
        rig.submit(rig.one, copy(left, output, SIZE)).host_synchronize()
    else:
        steps = (copy(left, given, SIZE), barrier, infer(graph, left, other, output), barrier)
        rig.submit(rig.one, *steps, copy(result, output, SIZE)).host_synchronize()


def serial_waits(rig: Rig, right: bool) -> None:
    """Wait for each of nine submissions, or for the one before the last."""
    lists = [rig.list(fill(rig.memory())) for _ in range(9)]
    fences = [rig.one.create_fence() for _ in lists]
    for number, (each, fence) in enumerate(zip(lists, fences, strict=True)):
        rig.one.execute_command_lists([each], fence)
        if not right:
            fence.host_synchronize()
        elif number:
            fences[number - 1].host_synchronize()
    rig.one.synchronize()


def wasteful(rig: Rig) -> None:
    """Run the wasteful forms."""
    for each in PROGRAMS:
        each(rig, False)


def spared(rig: Rig) -> None:
    """Run the others."""
    for each in PROGRAMS:
        each(rig, True)


PROGRAMS = (unused_memory, recorded_again, copied_again, staged, serial_waits)

if __name__ == "__main__":
    with Driver.open() as driver:
        for form in (wasteful, spared):
            rig = Rig(driver)
            form(rig)
            rig.end()
