"""Allocations, their properties, and their end."""

from __future__ import annotations

import ctypes
import mmap
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from softnpu.emulator.common import linux
from softnpu.emulator.interface.result import ZeResult
from tests.conformance.api.enumerations import ExternalMemory, MemoryType
from tests.conformance.api.structures import DeviceMemDesc, HostMemDesc, Pointer
from tests.conformance.commands import copy, fill
from tests.conformance.holdings import Holdings
from tests.conformance.rig import Rig, ok

KINDS = {"host": MemoryType.HOST, "device": MemoryType.DEVICE, "shared": MemoryType.SHARED}
PAGE = 4096
MEGABYTE = 1 << 20


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_visible_to_host_and_device(rig: Rig, kind: str) -> None:
    target, source = rig.of_kind(kind, 1000), rig.data(bytes(range(64)))
    rig.api.write(target, b"\xa5" * 1000)
    assert rig.api.read(target, 1000) == b"\xa5" * 1000
    rig.execute(copy(target, source, 64))
    assert rig.api.read(target, 64) == bytes(range(64))
    assert rig.api.ze_mem_get_alloc_properties(rig.context, target).get().type == KINDS[kind]


def test_interior_pointer_has_properties_and_range_of_its_allocation(rig: Rig) -> None:
    pointer = rig.host(PAGE)
    properties = rig.api.ze_mem_get_alloc_properties(rig.context, pointer).get()
    assert properties.page_size == PAGE
    assert rig.api.ze_mem_get_alloc_properties(rig.context, pointer + 999).get() == properties
    exact = rig.api.ze_mem_get_address_range(rig.context, pointer).get()
    assert exact.base != 0
    assert exact.size == PAGE
    assert rig.api.ze_mem_get_address_range(rig.context, pointer + 500).get() == exact
    found = rig.api.ze_mem_get_address_range(rig.context, pointer + PAGE)
    assert found.result == ZeResult.ERROR_NOT_AVAILABLE or found.get().base != exact.base


def test_ids_ascend_from_one_and_are_not_used_again(rig: Rig) -> None:
    context, ids = rig.new_context(), []
    for _ in range(5):
        pointer = rig.host(64, context)
        ids.append(rig.api.ze_mem_get_alloc_properties(context, pointer).get().id)
        ok(rig.api.ze_mem_free(context, pointer))
    assert ids == [1, 2, 3, 4, 5]


def test_alignment_is_honoured(rig: Rig) -> None:
    for alignment in (1, 2, 8, 64, 1024, 4096, 1 << 13, 1 << 21, 1 << 30):
        rig.host(24)
        pointer = rig.api.ze_mem_alloc_host(rig.context, HostMemDesc(), 100, alignment).get()
        assert pointer % alignment == 0
        rig.execute(copy(pointer + 36, rig.data(bytes(range(64))), 64))
        assert rig.api.read(pointer, 100) == bytes(36) + bytes(range(64))
        desc = DeviceMemDesc(export=ExternalMemory.DMA_BUF)
        large = rig.api.ze_mem_alloc_device(rig.context, desc, 3 << 20, alignment, rig.device).get()
        assert large % alignment == 0


def test_alignment_may_be_any_power_of_two(rig: Rig) -> None:
    for power in (40, 47, 62, 63):
        pointer = rig.api.ze_mem_alloc_host(rig.context, HostMemDesc(), 100, 1 << power).get()
        assert pointer % PAGE == 0
        ok(rig.api.ze_mem_free(rig.context, pointer))


def test_host_flags_of_the_headers_are_accepted(rig: Rig) -> None:
    for flags in (0, 1, 2, 4):
        assert rig.api.ze_mem_alloc_host(rig.context, HostMemDesc(flags=flags), 64).get()


def test_new_memory_is_zeroed(rig: Rig) -> None:
    first = rig.host(PAGE, fill=b"\xff")
    ok(rig.api.ze_mem_free(rig.context, first))
    second = rig.api.ze_mem_alloc_host(rig.context, HostMemDesc(), PAGE).get()
    assert rig.api.read(second, PAGE) == bytes(PAGE)


def test_free_gives_bytes_and_object_back(rig: Rig, holdings: Holdings) -> None:
    before = rig.memory_in_use(), holdings.count().allocations
    for _ in range(100):
        pointer = rig.host(1 << 20)
        assert rig.memory_in_use() == before[0] + (1 << 20)
        ok(rig.api.ze_mem_free(rig.context, pointer))
    assert (rig.memory_in_use(), holdings.count().allocations) == before


def test_freed_pointer_is_unknown(rig: Rig) -> None:
    pointer = rig.host(64)
    ok(rig.api.ze_mem_free(rig.context, pointer))
    assert rig.api.ze_mem_get_alloc_properties(rig.context, pointer).result == ZeResult.ERROR_NOT_AVAILABLE
    assert rig.api.ze_mem_get_address_range(rig.context, pointer).result == ZeResult.ERROR_NOT_AVAILABLE
    assert rig.api.ze_mem_free(rig.context, pointer) == ZeResult.ERROR_INVALID_ARGUMENT


def test_failed_free_leaves_the_allocation(rig: Rig) -> None:
    pointer = rig.host(64, fill=b"\x11")
    assert rig.api.ze_mem_free(rig.context, pointer + 8) == ZeResult.ERROR_INVALID_ARGUMENT
    assert rig.api.read(pointer, 64) == b"\x11" * 64
    ok(rig.api.ze_mem_free(rig.context, pointer))


def test_memory_in_use_by_the_device_survives_its_free(rig: Rig) -> None:
    target, source = rig.host(64), rig.data(b"\x42" * 64)
    gate, queue = rig.event(), rig.queue()
    rig.submit(queue, rig.gated_copy(gate, target, source, 64))
    ok(rig.api.ze_mem_free(rig.context, source))
    rig.signal(gate)
    rig.finish(queue)
    assert rig.api.read(target, 64) == b"\x42" * 64


def test_too_much_memory_is_refused(rig: Rig) -> None:
    allowed = (
        ZeResult.ERROR_UNSUPPORTED_SIZE,
        ZeResult.ERROR_OUT_OF_HOST_MEMORY,
        ZeResult.ERROR_OUT_OF_DEVICE_MEMORY,
    )
    assert rig.api.ze_mem_alloc_host(rig.context, HostMemDesc(), 1 << 60).result in allowed
    assert rig.host(64)


@pytest.fixture
def exported(rig: Rig) -> Iterator[tuple[Pointer, int]]:
    """Yield 5000 bytes of exported memory, and its descriptor."""
    desc = DeviceMemDesc(export=ExternalMemory.DMA_BUF)
    pointer = rig.api.ze_mem_alloc_device(rig.context, desc, 5000, 0, rig.device).get()
    found = rig.api.ze_mem_get_alloc_properties(rig.context, pointer, export=ExternalMemory.DMA_BUF).get()
    yield pointer, found.fd
    os.close(found.fd)


def test_imported_memory_is_the_exported_memory_and_outlives_it(
    rig: Rig, exported: tuple[Pointer, int]
) -> None:
    pointer, fd = exported
    assert os.lseek(fd, 0, os.SEEK_END) == 2 * PAGE
    context = rig.new_context()
    imported = rig.api.ze_mem_alloc_host(context, HostMemDesc(import_fd=fd), 5000).get()
    rig.api.write(pointer, b"to the other side")
    assert rig.api.read(imported, 17) == b"to the other side"
    rig.api.write(imported + 4990, b"and back")
    assert rig.api.read(pointer + 4990, 8) == b"and back"
    rig.execute(fill(imported, b"\x5c", 5000), context=context)
    assert rig.api.read(pointer, 5000) == b"\x5c" * 5000
    ok(rig.api.ze_mem_free(rig.context, pointer))
    assert rig.api.read(imported, 5000) == b"\x5c" * 5000


def test_shared_memory_is_exported_and_imported_by_either_descriptor(rig: Rig) -> None:
    plain, other = (DeviceMemDesc(), HostMemDesc()), rig.new_context()
    exporting = (DeviceMemDesc(export=ExternalMemory.DMA_BUF), HostMemDesc(export=ExternalMemory.DMA_BUF))
    for descs in ((exporting[0], plain[1]), (plain[0], exporting[1])):
        pointer = rig.api.ze_mem_alloc_shared(rig.context, *descs, 5000, 0, rig.device).get()
        found = rig.api.ze_mem_get_alloc_properties(rig.context, pointer, export=ExternalMemory.DMA_BUF).get()
        rig.api.write(pointer, b"for everybody")
        importing = (DeviceMemDesc(import_fd=found.fd), HostMemDesc(import_fd=found.fd))
        for others in ((importing[0], plain[1]), (plain[0], importing[1])):
            imported = rig.api.ze_mem_alloc_shared(other, *others, 5000, 0, rig.device).get()
            assert rig.api.read(imported, 13) == b"for everybody"
            assert rig.api.ze_mem_get_alloc_properties(other, imported).get().type == MemoryType.SHARED
        os.close(found.fd)


def test_import_of_another_descriptor_is_refused(rig: Rig, tmp_path: Path) -> None:
    with open(tmp_path / "file", "w+b") as file:
        file.truncate(2 * PAGE)
        made = rig.api.ze_mem_alloc_host(rig.context, HostMemDesc(import_fd=file.fileno()), 5000)
    assert made.result not in (ZeResult.SUCCESS, ZeResult.NOT_READY)


def test_a_descriptor_that_is_not_open_refuses_the_call_and_nothing_else(rig: Rig) -> None:
    before = rig.memory_in_use()
    for fd in (-1, 12345, (1 << 31) - 1):
        made = rig.api.ze_mem_alloc_host(rig.context, HostMemDesc(import_fd=fd), PAGE)
        assert made.result == ZeResult.ERROR_INVALID_ARGUMENT, fd
    assert str(fd) in rig.api.ze_driver_get_last_error_description(rig.driver).get()
    assert rig.memory_in_use() == before
    rig.check_works()


def test_descriptor_of_memory_that_is_not_exported_is_refused(rig: Rig) -> None:
    found = rig.api.ze_mem_get_alloc_properties(rig.context, rig.host(64), export=ExternalMemory.DMA_BUF)
    assert found.result not in (ZeResult.SUCCESS, ZeResult.NOT_READY)


def test_allocations_come_from_many_threads(rig: Rig) -> None:
    found: list[list[int]] = [[] for _ in range(4)]

    def allocate(pointers: list[int]) -> None:
        for size in range(1, 40):
            pointers.append(rig.host(size))

    threads = [threading.Thread(target=allocate, args=(pointers,)) for pointers in found]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert len({pointer for pointers in found for pointer in pointers}) == 4 * 39


@pytest.fixture
def program_memory() -> Iterator[tuple[mmap.mmap, int]]:
    """Yield three pages of a sealed memory file mapped by the program, and their address."""
    fd = linux.memfd("program", 3 * PAGE)
    linux.seal(fd, linux.SEALS_FIXED_SIZE)
    mapping = mmap.mmap(fd, 3 * PAGE)
    yield mapping, ctypes.addressof(ctypes.c_char.from_buffer(mapping))
    os.close(fd)


def test_memory_of_the_program_is_used_in_place(rig: Rig, program_memory: tuple[mmap.mmap, int]) -> None:
    mapping, address = program_memory
    desc = HostMemDesc(system_memory=(address + PAGE, PAGE))
    memory = rig.api.ze_mem_alloc_host(rig.context, desc, PAGE, PAGE).get()
    assert memory == address + PAGE
    assert rig.api.ze_mem_get_alloc_properties(rig.context, memory).get().type == MemoryType.HOST
    rig.execute(fill(memory, b"\x11", PAGE))
    assert mapping[:] == bytes(PAGE) + b"\x11" * PAGE + bytes(PAGE)
    mapping[PAGE : PAGE + 4] = b"\1\2\3\4"
    target = rig.host(8)
    rig.execute(copy(target, memory, 8))
    assert rig.api.read(target, 8) == b"\1\2\3\4" + b"\x11" * 4
    twice = rig.api.ze_mem_alloc_host(rig.context, HostMemDesc(system_memory=(address, 2 * PAGE)), 2 * PAGE)
    assert twice.result == ZeResult.ERROR_INVALID_ARGUMENT
    ok(rig.api.ze_mem_free(rig.context, memory))
    assert mapping[PAGE] == 1  # still the program's memory


def test_private_memory_of_the_program_is_not_imported(rig: Rig) -> None:
    private = mmap.mmap(-1, PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    address = ctypes.addressof(ctypes.c_char.from_buffer(private))
    for at, size, result in (
        (address, PAGE, ZeResult.ERROR_UNSUPPORTED_FEATURE),
        (address, 0, ZeResult.ERROR_UNSUPPORTED_SIZE),
        (0, PAGE, ZeResult.ERROR_INVALID_NULL_POINTER),
    ):
        desc = HostMemDesc(system_memory=(at, size))
        assert rig.api.ze_mem_alloc_host(rig.context, desc, PAGE).result == result
