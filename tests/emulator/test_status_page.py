"""A monitor's view: the status page, which needs no session, and the tiles occupied by inferences."""

from __future__ import annotations

import mmap
import os
import struct
import time
from pathlib import Path

import pytest

from softnpu.driver import Context, GraphSource
from softnpu.emulator.interface import endpoint, records
from softnpu.emulator.interface.records import DeviceState, Latency, StatusWord
from softnpu.emulator.supervisor.engines import status_page
from softnpu.emulator.supervisor.engines.function_counts import FunctionCounts
from tests.conftest import OpenContext, RunPython, StartDaemon
from tests.support.daemon import Daemon
from tests.support.waiting import wait_until
from tests.support.work import barrier, check_works, recorded, run


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
        magic, version, devices, pid, start, *_ = records.STATUS_HEADER.unpack_from(self.map, 0)
        return magic, version, devices, pid, start

    def word(self, name: StatusWord, device: int = 0) -> int:
        value: int = struct.unpack_from("=Q", self.map, records.status_offset(device) + 8 * name)[0]
        return value


def test_it_is_found_through_the_lock_file_counts_and_survives_an_engine_reset(
    daemon: Daemon, context: Context
) -> None:
    page = _Page(daemon)
    magic, version, devices, pid, start = page.header
    assert (magic, version, devices, pid) == (b"SNPUSTAT", 1, 1, daemon.pid)
    assert start > 1_600_000_000 * 10**9
    assert page.word(StatusWord.PLATFORM) == 4000
    assert page.word(StatusWord.STATE) == DeviceState.READY
    assert page.word(StatusWord.ENGINE_PID) == daemon.engine().engine_pid
    assert page.word(StatusWord.CONTEXTS) == 1
    memory = context.alloc_host(1 << 20)
    assert page.word(StatusWord.MEMORY_USED) >= memory.size

    check_works(context)
    wait_until(lambda: page.word(StatusWord.SUBMISSIONS) == 1)
    assert page.word(StatusWord.COMMANDS) == 1
    assert page.word(StatusWord.BUSY) > 0
    assert page.word(StatusWord.STAGED) == 0

    killed = daemon.kill_engine()
    wait_until(lambda: page.word(StatusWord.RESTARTS) == 1)
    wait_until(lambda: page.word(StatusWord.STATE) == DeviceState.READY)
    assert page.word(StatusWord.ENGINE_PID) not in (0, killed)
    check_works(context)
    wait_until(lambda: page.word(StatusWord.SUBMISSIONS) == 2)
    page.close()


def test_another_process_reads_it_without_a_session_and_cannot_write(
    start_daemon: StartDaemon, run_python: RunPython
) -> None:
    daemon = start_daemon(devices=("3720", "5010"))
    code = """
        from softnpu.emulator.interface import endpoint, records
        page = open(endpoint.read_record(Path(given["socket"])).status, "rb").read()
        say([int.from_bytes(page[records.status_offset(d):][:8], "little") for d in range(2)])
    """
    assert run_python(code, socket=str(daemon.socket)) == [3720, 5010]
    assert daemon.status().session_count == 0
    page = _Page(daemon)
    with page.path.open("rb") as file, pytest.raises(PermissionError):
        mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    with pytest.raises(PermissionError):
        os.truncate(page.path, 0)
    page.close()


# ---------------------------------------------------------------- tiles


@pytest.mark.quick
@pytest.mark.parametrize(("asked", "occupied"), [("2", 2), ("6", 6), (None, 6)])
def test_a_graph_occupies_the_tiles_it_was_compiled_for(
    shared_daemon: Daemon, open_context: OpenContext, digits: Path, asked: str | None, occupied: int
) -> None:
    daemon, context = shared_daemon, open_context(shared_daemon)
    assert daemon.engine().device.tiles == 6
    with GraphSource.from_ir(digits) as source:
        graph = context.create_graph(source, config={"NPU_TILES": asked} if asked else {})
    graph.initialize()
    for index, argument in enumerate(graph.meta.arguments):
        graph.set_argument_value(index, context.alloc_host(argument.byte_size))
    queue = context.create_command_queue()
    commands = recorded(context, *[lambda c: c.append_graph_execute(graph)] * 50)
    run(queue, commands)  # counts device time, on no tile
    before = daemon.engine()
    run(queue, commands)
    after = daemon.engine()
    assert after.inferences == before.inferences + 50
    busy_ns = after.busy_ns - before.busy_ns
    assert busy_ns > 0
    assert after.tile_busy_ns - before.tile_busy_ns == pytest.approx(occupied * busy_ns, rel=0.01)


@pytest.mark.quick
def test_work_without_inferences_occupies_none(shared_daemon: Daemon, open_context: OpenContext) -> None:
    daemon, context = shared_daemon, open_context(shared_daemon)
    before = daemon.engine()
    run(context.create_command_queue(), barrier(context))
    assert daemon.engine().submissions == before.submissions + 1
    assert daemon.engine().tile_busy_ns == before.tile_busy_ns


def test_a_time_that_an_engine_made_up_leaves_room_for_those_of_others() -> None:
    page = status_page.StatusPage(1)
    for time_ns in (2**200, -5, *[2**63] * 4):
        page.count_time(0, Latency.LOAD, time_ns)
    page.count_time(0, Latency.LOAD, 1000)
    (loads,) = (each for each in page.histograms(0) if each.of == "load")
    assert sum(loads.counts) == 7
    assert loads.sum_ns < 2**63
    page.close()


def test_many_readers_of_sums_take_a_bounded_part_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """16 streams at 1 ms would read every engine's page 16,000 times a second."""
    page, own = status_page.StatusPage(1), status_page.StatusPage(1)
    counts, clock, reads = FunctionCounts(page, 0), [100.0], [0]
    counts.add(own)

    def read() -> None:
        reads[0] += 1
        clock[0] += 0.001

    with monkeypatch.context() as patched:
        patched.setattr(counts, "refresh", read)
        patched.setattr(time, "monotonic", lambda: clock[0])
        for _ in range(16_000):
            counts.refresh_if_due()
            clock[0] += 1 / 16_000
    assert 15 <= reads[0] <= 20
    page.close()
    own.close()
