"""The status page: what a monitor sees without a session."""

from __future__ import annotations

import mmap
import os
import struct
from pathlib import Path

import pytest

from softnpu.driver import Context
from softnpu.emulator.interface import endpoint, records
from softnpu.emulator.interface.records import DeviceState, StatusWord
from tests.conftest import RunPython, StartDaemon
from tests.support.daemon import Daemon
from tests.support.waiting import wait_until
from tests.support.work import check_works


class _Page:
    """The page as a monitor maps it."""

    def __init__(self, daemon: Daemon) -> None:
        record = endpoint.read_record(daemon.socket)
        assert record is not None
        self.path = Path(record.status)
        self._data = self.path.open("rb")
        self.map = mmap.mmap(self._data.fileno(), 0, prot=mmap.PROT_READ)

    def close(self) -> None:
        self.map.close()
        self._data.close()

    @property
    def header(self) -> tuple[bytes, int, int, int, int]:
        magic, version, devices, pid, start = records.STATUS_HEADER.unpack_from(self.map, 0)
        return magic, version, devices, pid, start

    def word(self, name: StatusWord, device: int = 0) -> int:
        value: int = struct.unpack_from("=Q", self.map, records.status_offset(device) + 8 * name)[0]
        return value


def test_it_is_found_through_the_lock_file(daemon: Daemon) -> None:
    page = _Page(daemon)
    magic, version, devices, pid, start = page.header
    assert (magic, version, devices, pid) == (b"SNPUSTAT", 1, 1, daemon.pid)
    assert start > 1_600_000_000 * 10**9
    assert page.word(StatusWord.PLATFORM) == 4000
    assert page.word(StatusWord.STATE) == DeviceState.READY
    assert page.word(StatusWord.ENGINE_PID) == daemon.engine().engine_pid
    page.close()


def test_it_counts(daemon: Daemon, context: Context) -> None:
    page = _Page(daemon)
    assert page.word(StatusWord.CONTEXTS) == 1
    memory = context.alloc_host(1 << 20)
    assert page.word(StatusWord.MEMORY_USED) >= memory.size
    before = page.word(StatusWord.SUBMISSIONS), page.word(StatusWord.COMMANDS)

    check_works(context)

    wait_until(lambda: page.word(StatusWord.SUBMISSIONS) == before[0] + 1)
    assert page.word(StatusWord.COMMANDS) == before[1] + 1
    assert page.word(StatusWord.BUSY) > 0
    assert page.word(StatusWord.STAGED) == 0
    page.close()


def test_it_survives_an_engine_reset(daemon: Daemon, context: Context) -> None:
    page = _Page(daemon)
    check_works(context)
    wait_until(lambda: page.word(StatusWord.SUBMISSIONS) == 1)

    killed = daemon.kill_engine()
    wait_until(lambda: page.word(StatusWord.RESTARTS) == 1)
    wait_until(lambda: page.word(StatusWord.STATE) == DeviceState.READY)

    assert page.word(StatusWord.ENGINE_PID) not in (0, killed)
    check_works(context)
    wait_until(lambda: page.word(StatusWord.SUBMISSIONS) == 2)
    page.close()


def test_another_process_reads_it_without_a_session(start_daemon: StartDaemon, run_python: RunPython) -> None:
    daemon = start_daemon(devices=("3720", "5010"))
    code = """
        from softnpu.emulator.interface import places, records
        page = open(places.read_record(Path(given["socket"])).status, "rb").read()
        say([int.from_bytes(page[records.status_offset(d):][:8], "little") for d in range(2)])
    """
    assert run_python(code, socket=str(daemon.socket)) == [3720, 5010]
    assert daemon.status().session_count == 0


def test_it_can_only_be_read(daemon: Daemon) -> None:
    page = _Page(daemon)
    with page.path.open("rb") as file, pytest.raises(PermissionError):
        mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    with pytest.raises(PermissionError):
        os.truncate(page.path, 0)
    page.close()
