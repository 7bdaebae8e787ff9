"""Shared memory files that their owner can truncate: both drivers import them; what a truncation costs."""

from __future__ import annotations

import ctypes
import mmap
import os
from collections.abc import Iterator

import pytest

from softnpu.emulator.common import linux
from softnpu.emulator.interface.result import ZeResult
from tests.conformance.api.structures import DeviceMemDesc, HostMemDesc
from tests.conformance.commands import copy, fill
from tests.conformance.rig import DEADLINE, Rig, ok

PAGE = 4096
SIZE = 2 * PAGE + 100


@pytest.fixture
def foreign() -> Iterator[int]:
    """Yield the descriptor of a file with an unsealed size, as from `shm_open`."""
    fd = linux.memfd("foreign", SIZE)
    yield fd
    os.close(fd)


def test_all_of_it_is_used_in_place_and_its_size_stays(rig: Rig, foreign: int) -> None:
    memory = rig.api.ze_mem_alloc_host(rig.context, HostMemDesc(import_fd=foreign), SIZE).get()
    assert rig.api.ze_mem_get_address_range(rig.context, memory).get().size == SIZE
    rig.execute(fill(memory, b"\x21", SIZE))
    assert os.pread(foreign, SIZE + 1, 0) == b"\x21" * SIZE
    os.pwrite(foreign, b"of the other program", PAGE)
    assert rig.api.read(memory + PAGE, 12) == b"of the other"
    target = rig.host(20)
    rig.execute(copy(target, memory + PAGE, 20))
    assert rig.api.read(target, 20) == b"of the other program"
    ok(rig.api.ze_mem_free(rig.context, memory))
    desc = DeviceMemDesc(import_fd=foreign)
    memory = rig.api.ze_mem_alloc_device(rig.context, desc, SIZE, 0, rig.device).get()
    assert rig.api.read(memory, 1) == b"\x21"


def test_it_is_used_where_the_program_has_mapped_it(rig: Rig, foreign: int) -> None:
    mapping = mmap.mmap(foreign, SIZE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(mapping))
    memory = rig.api.ze_mem_alloc_host(rig.context, HostMemDesc(system_memory=(address, PAGE)), PAGE).get()
    assert memory == address
    rig.execute(fill(memory, b"\x22", PAGE))
    assert mapping[:] == b"\x22" * PAGE + bytes(SIZE - PAGE)
    # the last page of the mapping is beyond the end of the file
    behind = HostMemDesc(system_memory=(address + 2 * PAGE, PAGE))
    made = rig.api.ze_mem_alloc_host(rig.context, behind, PAGE)
    assert made.result not in (ZeResult.SUCCESS, ZeResult.NOT_READY)
    assert os.fstat(foreign).st_size == SIZE


@pytest.mark.parametrize("left", [PAGE, SIZE - 1])
def test_a_cut_loses_the_queue_that_uses_it_and_no_other(rig: Rig, foreign: int, left: int) -> None:
    memory = rig.api.ze_mem_alloc_host(rig.context, HostMemDesc(import_fd=foreign), SIZE).get()
    queue, other = rig.queue(), rig.queue()
    rig.execute(fill(memory, b"\x23", SIZE), queue=queue)
    os.ftruncate(foreign, left)
    target = rig.host(SIZE)
    rig.submit(queue, rig.copy_list(target, memory, SIZE))
    assert rig.api.ze_command_queue_synchronize(queue, DEADLINE) == ZeResult.ERROR_DEVICE_LOST
    rig.check_works(other)


def test_what_cannot_be_shared_is_refused(rig: Rig, foreign: int) -> None:
    for_reading = os.open(f"/proc/self/fd/{foreign}", os.O_RDONLY)
    empty = linux.memfd("empty")
    for fd in (for_reading, empty):
        made = rig.api.ze_mem_alloc_host(rig.context, HostMemDesc(import_fd=fd), PAGE)
        assert made.result not in (ZeResult.SUCCESS, ZeResult.NOT_READY)
        os.close(fd)
