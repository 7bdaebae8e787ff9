"""Shared mappings of files on a disk: the device reads them in place, and never writes them."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import numpy as np
import pytest

from softnpu.emulator.interface.result import ZeResult
from tests.conformance.api.structures import FOR_READING, CopyRegion, HostMemDesc, Pointer
from tests.conformance.commands import copy, copy_region, fill, infer, timestamp
from tests.conformance.models import COUNT, FACTOR, Model
from tests.conformance.models import SIZE as TENSOR
from tests.conformance.rig import DEADLINE, Rig, ok, packed

PAGE = 4096
SIZE = 2 * PAGE + 100


class MappedFile:
    """A file of a disk, mapped for reading; its descriptor is closed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.write_bytes(packed(range(COUNT)) + os.urandom(SIZE - TENSOR))
        with path.open("rb") as file:
            self._mapping = mmap.mmap(file.fileno(), SIZE, prot=mmap.PROT_READ)
        self.address: int = np.frombuffer(self._mapping, np.uint8).ctypes.data

    def memory(self, rig: Rig) -> Pointer:
        """Import it, of the blob's own size rather than whole pages."""
        desc = HostMemDesc(flags=FOR_READING, system_memory=(self.address, SIZE))
        memory = rig.api.ze_mem_alloc_host(rig.context, desc, SIZE).get()
        assert memory == self.address
        return memory


@pytest.fixture
def file(tmp_path: Path) -> MappedFile:
    return MappedFile(tmp_path / "data")


def test_commands_read_it_in_place(rig: Rig, file: MappedFile, model: Model) -> None:
    memory = file.memory(rig)
    assert rig.api.ze_mem_get_address_range(rig.context, memory).get().size == SIZE
    target, output, graph = rig.host(SIZE), rig.host(TENSOR), rig.graph(model)
    rig.bind(graph, memory, rig.tensor(2), output)
    rig.execute(copy(target, memory, SIZE), infer(graph))
    assert rig.api.read(target, SIZE) == file.path.read_bytes()
    assert rig.values(output) == [at + 2 * FACTOR for at in range(COUNT)]
    with file.path.open("r+b") as again:
        again.write(packed(5))
    rig.execute(infer(graph))
    assert rig.values(output) == [5 + 2 * FACTOR] * COUNT
    ok(rig.api.ze_mem_free(rig.context, memory))


def test_no_command_may_write_it(rig: Rig, file: MappedFile, model: Model) -> None:
    memory, source, before = file.memory(rig), rig.host(PAGE), file.path.read_bytes()
    commands, graph = rig.command_list(), rig.graph(model)
    region = CopyRegion(0, 0, 0, 8, 2, 1)
    for append in (
        copy(memory, source, PAGE),
        copy_region((memory, region, 16), (source, region, 16)),
        fill(memory + 8, b"\x21", 8),
        timestamp(memory),
    ):
        assert append(rig.api, commands) == ZeResult.ERROR_INVALID_ARGUMENT
    assert rig.api.ze_graph_set_argument_value(graph, 2, memory) == ZeResult.ERROR_INVALID_ARGUMENT
    assert file.path.read_bytes() == before
    rig.check_works()


@pytest.mark.parametrize("left", [PAGE, SIZE - 50], ids=["pages", "part-of-a-page"])
def test_a_cut_loses_the_queue_that_reads_it_and_no_other(rig: Rig, file: MappedFile, left: int) -> None:
    memory, target = file.memory(rig), rig.host(SIZE)
    queue, other = rig.queue(), rig.queue()
    os.truncate(file.path, left)
    rig.submit(queue, rig.copy_list(target, memory, SIZE))
    assert rig.api.ze_command_queue_synchronize(queue, DEADLINE) == ZeResult.ERROR_DEVICE_LOST
    rig.check_works(other)
