"""The engines' staging file: buffers that outlive an engine, and reclaimed memory."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator

import numpy as np
import pytest

from softnpu.emulator.common import linux
from softnpu.emulator.engine.memory.staging import LogEntry, Staging, StagingBuffer, moved
from softnpu.emulator.engine.share import Share
from softnpu.emulator.interface.result import Refused, ZeResult

pytestmark = pytest.mark.quick

_PAGE = 4096


class _Queue:
    """A queue with these log entries."""

    def __init__(self, entry: int | None) -> None:
        self.closed = False
        self.entry = entry

    def pending_intent(self) -> int | None:
        return self.entry


@pytest.fixture
def file() -> Iterator[int]:
    fd = linux.memfd("staging")
    yield fd
    os.close(fd)


def _used(file: int) -> int:
    return os.fstat(file).st_blocks * 512


def _buffers(staging: Staging, *sizes: int) -> list[StagingBuffer]:
    """Allocate buffers, which must be 0, and fill them with 1, 2, and so on."""
    buffers = [staging.take(size, Share()) for size in sizes]
    for number, buffer in enumerate(buffers, 1):
        assert buffer.array.ctypes.data % 64 == 0
        assert not buffer.array.any()
        buffer.array[:] = number
    return buffers


def _next_engine(file: int, *entries: int | None) -> tuple[Staging, list[_Queue]]:
    """Return the staging of an engine after one with these log entries."""
    staging, queues = Staging(file), [_Queue(entry) for entry in entries]
    staging.recover(queues)
    return staging, queues


def test_buffers_share_no_byte(file: int) -> None:
    staging = Staging(file)
    for _ in range(2):  # the second time in used memory
        buffers = _buffers(staging, 1, 10_000, 4000, 5 * _PAGE, 64)
        assert all((buffer.array == number).all() for number, buffer in enumerate(buffers, 1))


def test_a_buffer_takes_memory_as_long_as_a_view_of_it_lives(file: int) -> None:
    staging = Staging(file)
    view = _buffers(staging, 8 * _PAGE)[0].array[100:200]
    assert _used(file) > 8 * _PAGE
    assert staging.take(8 * _PAGE, Share()).array.ctypes.data != view.ctypes.data - 100
    del view
    assert _used(file) == 0


def test_taking_and_giving_back_does_not_grow_the_file(file: int) -> None:
    staging = Staging(file)
    for size in (1 << 20, 100, 1 << 18) * 20:
        _buffers(staging, size)
    assert os.fstat(file).st_size <= 4 << 20


def test_a_session_has_so_much_staging_and_no_more(file: int) -> None:
    staging, mine, other = Staging(file, 8 * _PAGE), Share(), Share()
    kept = [staging.take(_PAGE, mine) for _ in range(4)]
    with pytest.raises(
        Refused, match=f"this session has {8 * _PAGE}; expected at most {8 * _PAGE}"
    ) as caught:
        staging.take(1, mine)
    assert caught.value.info.result == ZeResult.ERROR_OUT_OF_DEVICE_MEMORY
    kept.append(staging.take(6 * _PAGE, other))
    kept.pop(0)
    staging.take(_PAGE, mine)
    del kept
    staging.take(1, other)
    assert (mine.staging_bytes, other.staging_bytes) == (0, _PAGE)


def test_the_next_engine_finds_what_was_logged_and_frees_the_rest(file: int) -> None:
    buffers = _buffers(Staging(file), *[3 * _PAGE] * 5)
    second, _ = _next_engine(file, buffers[1].entry(), buffers[3].entry(7), None, moved(2))

    assert second.pending
    assert (second.find(buffers[1].entry(), 3 * _PAGE) == 2).all()
    assert (second.find(buffers[3].entry(7), 100) == 4).all()
    assert _used(file) == 2 * 4 * _PAGE
    fresh = _buffers(second, *[2 * _PAGE] * 8)
    assert (second.find(buffers[1].entry(), 3 * _PAGE) == 2).all()
    del fresh


def test_what_was_logged_is_freed_when_its_queue_has_gone_on_or_is_gone(file: int) -> None:
    buffers = _buffers(Staging(file), 100, 100)
    second, queues = _next_engine(file, *[buffer.entry() for buffer in buffers])
    used = []
    for change in ({}, {"entry": None}, {"closed": True}):
        vars(queues[0 if "entry" in change else 1]).update(change)
        second.settle()
        used.append(_used(file) // _PAGE)
    assert used == [2, 1, 0]
    assert not second.pending


def test_an_engine_to_which_nothing_was_logged_begins_with_an_empty_file(file: int) -> None:
    buffer = Staging(file).take(1 << 20, Share())
    second, _ = _next_engine(file, None, moved(3))
    assert os.fstat(file).st_size == 0
    _buffers(second, 64)
    del buffer


def test_results_of_another_size_or_step_and_entries_of_nothing_are_not_taken_for_results(file: int) -> None:
    (buffer,) = _buffers(Staging(file), 100)
    inside, behind = buffer.entry() + (1 << 24), buffer.entry() + (1 << 40)
    second, _ = _next_engine(file, buffer.entry(), inside, behind)
    for entry, size in (
        (buffer.entry(), 4 * _PAGE),
        (buffer.entry(), 1 << 30),
        (buffer.entry(1), 100),
        (inside, 1),
    ):
        with pytest.raises(RuntimeError, match="commands have changed"):
            second.find(entry, size)
    third, _ = _next_engine(file, inside, behind)
    assert not third.pending
    assert _used(file) == 0


@pytest.mark.parametrize(("number", "page"), [(0, 0), (5, 3), ((1 << 23) - 1, 1 << 37)])
def test_an_entry_says_where_and_how_far(number: int, page: int) -> None:
    assert LogEntry.read(moved(number)) == LogEntry(None, number)
    assert LogEntry.read(page << 24 | number << 1 | 1) == LogEntry(page, number)


def test_no_memory_for_a_buffer_is_a_memory_error(file: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    staging = Staging(file)
    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", full)
        with pytest.raises(MemoryError, match="100 bytes"):
            staging.take(100, Share())
    staging.take(100, Share()).array[:] = np.uint8(1)
