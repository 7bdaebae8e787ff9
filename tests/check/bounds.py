"""Wrong programs: what passes the end of an allocation, on the device and on the host."""

from __future__ import annotations

import ctypes
from contextlib import suppress

from softnpu.driver import CommandList, ZeError
from softnpu.driver.region import CopyRegion
from tests.check.rig import BYTES, HALF, Rig, copy, program


@program("out-of-bounds")
def copy_past_the_end(rig: Rig, right: bool) -> None:
    memory, other = rig.memory(), rig.memory(size=2 * BYTES)
    with suppress(ZeError):
        rig.submit(rig.one, copy(other, memory, BYTES + (0 if right else 1))).host_synchronize()


@program("out-of-bounds")
def into_the_neighbour(rig: Rig, right: bool) -> None:
    """One range for two allocations that lie beside each other."""
    first, second = sorted((rig.memory(), rig.memory()), key=lambda memory: memory.address)
    large = rig.memory(size=8 * BYTES)
    size = BYTES if right else second.address + HALF - first.address
    with suppress(ZeError):
        rig.submit(rig.one, copy(large, first, size)).host_synchronize()


@program("out-of-bounds")
def rows_past_the_end(rig: Rig, right: bool) -> None:
    target, source = rig.memory(), rig.memory()

    def region(commands: CommandList) -> None:
        rectangle = CopyRegion(64, 0, 0, 64 if right else 65, BYTES // 128)
        commands.append_memory_copy_region(target, rectangle, 128, source, rectangle, 128)

    with suppress(ZeError):
        rig.submit(rig.one, region).host_synchronize()


@program("out-of-bounds")
def write_beyond(rig: Rig, right: bool) -> None:
    memory = rig.memory()
    ctypes.memset(memory.address + BYTES - 4, 2, 4 if right else 8)


@program("out-of-bounds")
def read_beyond(rig: Rig, right: bool) -> None:
    memory = rig.memory()
    ctypes.string_at(memory.address + BYTES - (1 if right else 0), 1)


@program("out-of-bounds")
def write_into_the_rest_of_the_page(rig: Rig, right: bool) -> None:
    memory = rig.memory(size=100)
    ctypes.memset(memory.address + 96, 2, 4 if right else 8)
    memory.destroy()


@program("out-of-bounds")
def never_freed(rig: Rig, right: bool) -> None:
    context = rig.context.device.create_context()
    memory = context.alloc_host(1000)
    ctypes.memset(memory.address + (999 if right else 1001), 2, 1)
    context.destroy()
