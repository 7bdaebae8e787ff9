"""Memory of the program that the device uses in place, and why other memory is refused."""

from __future__ import annotations

import ctypes
import mmap
import os
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from softnpu.driver import CommandQueue, Context, ZeResult
from softnpu.driver.process_maps import find_area, read_areas
from softnpu.emulator.common import linux
from tests.support.work import copy, failure, run

_PAGE = mmap.PAGESIZE


def _mapped(fd: int, pages: int = 4) -> mmap.mmap:
    os.ftruncate(fd, pages * _PAGE)
    return mmap.mmap(fd, pages * _PAGE)


def _address(mapping: mmap.mmap) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(mapping))


@pytest.fixture
def sealed() -> Iterator[mmap.mmap]:
    """A mapping of a sealed memory file whose descriptor is closed."""
    fd = linux.memfd("program")
    mapping = _mapped(fd)
    linux.seal(fd, linux.SEALS_FIXED_SIZE)
    yield mapping
    os.close(fd)


def test_two_imports_of_one_file_are_the_same_memory(
    context: Context, queue: CommandQueue, sealed: mmap.mmap
) -> None:
    """A command that overwrites its own input is detected, also through two mappings of the file."""
    fd = next(
        int(name)
        for name in os.listdir("/proc/self/fd")
        if os.path.realpath(f"/proc/self/fd/{name}").startswith("/memfd:softnpu-program")
    )
    again = mmap.mmap(fd, 4 * _PAGE)
    sealed[:] = bytes(range(256)) * (4 * _PAGE // 256)
    sealed[2 * _PAGE : 3 * _PAGE] = os.urandom(_PAGE)
    expected = sealed[2 * _PAGE : 3 * _PAGE]
    one = context.import_system_memory(_address(sealed), 4 * _PAGE)
    two = context.import_system_memory(_address(again) + 2 * _PAGE, 2 * _PAGE)
    run(queue, copy(context, two.address + 64, one.address + 2 * _PAGE, _PAGE))
    assert sealed[2 * _PAGE + 64 : 3 * _PAGE + 64] == expected


def test_other_memory_is_refused_with_the_reason(context: Context, sealed: mmap.mmap, tmp_path: Path) -> None:
    with open(tmp_path / "file", "w+b") as file:
        on_disk = _mapped(file.fileno())
    private = mmap.mmap(-1, 4 * _PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    unsupported = ZeResult.ERROR_UNSUPPORTED_FEATURE
    base = _address(sealed)
    for address, size, result, found in (
        (_address(on_disk), _PAGE, unsupported, "no shared memory"),
        (_address(private), _PAGE, unsupported, "private pages"),
        (base, 1 << 30, unsupported, "not in one mapping"),
        (base + 64, _PAGE, ZeResult.ERROR_INVALID_ARGUMENT, "parts of pages"),
        (base, 100, ZeResult.ERROR_INVALID_ARGUMENT, "parts of pages"),
        (base, 0, ZeResult.ERROR_UNSUPPORTED_SIZE, "0 bytes"),
        (0, _PAGE, ZeResult.ERROR_INVALID_NULL_POINTER, "null"),
    ):
        error = failure(partial(context.import_system_memory, address, size), result)
        assert found in error.info.found
    memory = context.import_system_memory(base, 2 * _PAGE)
    twice = failure(
        lambda: context.import_system_memory(base + _PAGE, _PAGE), ZeResult.ERROR_INVALID_ARGUMENT
    )
    assert "part of" in twice.info.found
    memory.destroy()
    context.import_system_memory(base + _PAGE, _PAGE)


def test_memory_for_reading_only_has_a_buffer_for_reading(context: Context, sealed: mmap.mmap) -> None:
    memory = context.import_system_memory(_address(sealed), _PAGE, read_only=True)
    buffer = memory.buffer()
    sealed[:4] = b"read"
    assert bytes(buffer[:4]) == b"read"
    with pytest.raises(TypeError):
        buffer[0] = 0


def test_a_mapping_is_found_by_any_address_in_it() -> None:
    with Path("/proc/self/maps").open() as file:
        areas = [area for area in read_areas() if "heap" not in area.path and file.name != area.path]
    found = [area for area in areas if area == find_area(area.start) == find_area(area.end - 1)]
    assert len(found) > len(areas) * 9 // 10  # other threads map memory meanwhile
    assert find_area(_PAGE) is None


def test_the_cost_of_a_refusal_does_not_depend_on_the_number_of_mappings(context: Context) -> None:
    private = mmap.mmap(-1, _PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)

    def cpu_time() -> float:
        before = time.thread_time()
        for _ in range(20):
            failure(
                partial(context.import_system_memory, _address(private), _PAGE),
                ZeResult.ERROR_UNSUPPORTED_FEATURE,
            )
        return time.thread_time() - before

    alone = cpu_time()
    # neighbours with different permissions are not merged
    many = [
        mmap.mmap(-1, _PAGE, prot=mmap.PROT_READ | (index % 2) * mmap.PROT_WRITE) for index in range(20_000)
    ]
    assert cpu_time() < 10 * alone
    del many
