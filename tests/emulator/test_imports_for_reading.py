"""Files that the device only reads: what the daemon accepts, and commands of no driver that write them."""

from __future__ import annotations

import os
import select
from pathlib import Path

import pytest

from softnpu.driver import ZeResult
from softnpu.emulator.common import local_files
from softnpu.emulator.interface import commands as cmd
from softnpu.emulator.interface import messages as msg
from softnpu.emulator.interface.commands import MemoryAt
from tests.support.wire import Wire, WireContext

_SIZE = 10_000


@pytest.fixture
def on_disk(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(os.urandom(_SIZE))
    return path


def _request(context: WireContext, offset: int = 0, size: int = _SIZE) -> msg.MemImportPart:
    return msg.MemImportPart(context=context.handle, kind="host", offset=offset, size=size, read_only=True)


def test_every_command_that_writes_is_refused_by_the_engine(
    wire: Wire, wire_context: WireContext, on_disk: Path
) -> None:
    before = on_disk.read_bytes()
    fd = os.open(on_disk, os.O_RDONLY)
    used = wire_context.request_memory().allocated
    placed = wire.ask(_request(wire_context), msg.MemAllocated, [fd])
    os.close(wire.take_fd())
    os.close(fd)
    assert wire_context.request_memory().allocated == used + _SIZE
    file, own = MemoryAt(placed.memory, 0), wire_context.alloc(_SIZE)
    there = MemoryAt(own.handle, 0)
    buffer = wire_context.alloc(4096, "control")

    def result(command: cmd.Command) -> int:
        return wire_context.queue().run(cmd.encode_buffer([cmd.encode_command(command)]), buffer)

    for command in (
        cmd.Copy(file, there, 64),
        cmd.CopyRegion(file, 16, there, 16, 8, 2),
        cmd.Fill(file, 64, b"\x21"),
        cmd.Timestamp(file),
        cmd.MetricSnapshot(file),
        cmd.EventSignal(file),
        cmd.EventReset(file),
    ):
        assert result(command) == ZeResult.ERROR_INVALID_ARGUMENT, command
    assert result(cmd.Copy(there, file, _SIZE)) == ZeResult.SUCCESS
    assert own.read() == before == on_disk.read_bytes()


def test_only_files_of_this_machine_that_are_open_for_reading_are_accepted(
    wire: Wire, wire_context: WireContext, on_disk: Path
) -> None:
    invalid, unsupported = ZeResult.ERROR_INVALID_ARGUMENT, ZeResult.ERROR_UNSUPPORTED_FEATURE
    read_end, write_end = os.pipe()
    reading, writing = os.open(on_disk, os.O_RDONLY), os.open(on_disk, os.O_RDWR)
    folder, by_name = os.open(on_disk.parent, os.O_RDONLY), os.open(on_disk, os.O_PATH)
    # a file system whose pages a program makes when they are read
    made = os.open("/proc/self/maps", os.O_RDONLY)
    for fd, offset, size, result in (
        (writing, 0, _SIZE, invalid),
        (by_name, 0, _SIZE, invalid),
        (read_end, 0, _SIZE, unsupported),
        (folder, 0, 1, unsupported),
        (made, 0, 1, unsupported),
        (reading, 1, _SIZE, invalid),
        (reading, -1, 1, invalid),
        (reading, 2**63 - 1, 1, invalid),
        (reading, 0, 0, ZeResult.ERROR_UNSUPPORTED_SIZE),
        (reading, 0, 2**62, invalid),
    ):
        assert wire.info(_request(wire_context, offset, size), [fd]).result == result, (fd, offset, size)
    for fd in (read_end, write_end, reading, writing, folder, by_name, made):
        os.close(fd)
    wire_context.check_works()


def test_what_a_descriptor_watches_is_not_listed(monkeypatch: pytest.MonkeyPatch, on_disk: Path) -> None:
    """With 150,000 watches of an inotify descriptor that kept all clients waiting for 0.7 s."""
    file = os.open(on_disk, os.O_RDONLY)
    assert local_files.is_local(file)
    reader, writer = os.pipe()
    with select.epoll() as poller:
        monkeypatch.setattr(local_files, "_mount_of", None)
        assert not any(map(local_files.is_local, (poller.fileno(), reader, writer)))
    for fd in (file, reader, writer):
        os.close(fd)
