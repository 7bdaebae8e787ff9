"""The engines' staging file: pieces that outlive an engine, and reclaimed memory."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator

import numpy as np
import pytest

from softnpu.emulator.common import linux
from softnpu.emulator.engine.memory.staging import Note, Piece, Staging, moved
from softnpu.emulator.engine.share import Share
from softnpu.emulator.interface.result import Refused, ZeResult

pytestmark = pytest.mark.quick

_PAGE = 4096


class _Queue:
    """A queue with these notes."""

    def __init__(self, note: int | None) -> None:
        self.closed = False
        self.note = note

    def pending_effect(self) -> int | None:
        return self.note


@pytest.fixture
def file() -> Iterator[int]:
    fd = linux.memfd("staging")
    yield fd
    os.close(fd)


def _used(file: int) -> int:
    return os.fstat(file).st_blocks * 512


def _pieces(staging: Staging, *sizes: int) -> list[Piece]:
    """Allocate pieces, which must be 0, and fill them with 1, 2, and so on."""
    pieces = [staging.take(size, Share()) for size in sizes]
    for number, piece in enumerate(pieces, 1):
        assert piece.array.ctypes.data % 64 == 0
        assert not piece.array.any()
        piece.array[:] = number
    return pieces


def _next_engine(file: int, *notes: int | None) -> tuple[Staging, list[_Queue]]:
    """Return the staging of an engine after one with these notes."""
    staging, queues = Staging(file), [_Queue(note) for note in notes]
    staging.recover(queues)
    return staging, queues


def test_pieces_share_no_byte(file: int) -> None:
    staging = Staging(file)
    for _ in range(2):  # the second time in used memory
        pieces = _pieces(staging, 1, 10_000, 4000, 5 * _PAGE, 64)
        assert all((piece.array == number).all() for number, piece in enumerate(pieces, 1))


def test_a_piece_takes_memory_as_long_as_a_view_of_it_lives(file: int) -> None:
    staging = Staging(file)
    view = _pieces(staging, 8 * _PAGE)[0].array[100:200]
    assert _used(file) > 8 * _PAGE
    assert staging.take(8 * _PAGE, Share()).array.ctypes.data != view.ctypes.data - 100
    del view
    assert _used(file) == 0


def test_taking_and_giving_back_does_not_grow_the_file(file: int) -> None:
    staging = Staging(file)
    for size in (1 << 20, 100, 1 << 18) * 20:
        _pieces(staging, size)
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


def test_the_next_engine_finds_what_was_noted_and_frees_the_rest(file: int) -> None:
    pieces = _pieces(Staging(file), *[3 * _PAGE] * 5)
    second, _ = _next_engine(file, pieces[1].note(), pieces[3].note(7), None, moved(2))

    assert second.pending
    assert (second.find(pieces[1].note(), 3 * _PAGE) == 2).all()
    assert (second.find(pieces[3].note(7), 100) == 4).all()
    assert _used(file) == 2 * 4 * _PAGE
    fresh = _pieces(second, *[2 * _PAGE] * 8)
    assert (second.find(pieces[1].note(), 3 * _PAGE) == 2).all()
    del fresh


def test_what_was_noted_is_freed_when_its_queue_has_gone_on_or_is_gone(file: int) -> None:
    pieces = _pieces(Staging(file), 100, 100)
    second, queues = _next_engine(file, *[piece.note() for piece in pieces])
    used = []
    for change in ({}, {"note": None}, {"closed": True}):
        vars(queues[0 if "note" in change else 1]).update(change)
        second.settle()
        used.append(_used(file) // _PAGE)
    assert used == [2, 1, 0]
    assert not second.pending


def test_an_engine_to_which_nothing_was_noted_begins_with_an_empty_file(file: int) -> None:
    piece = Staging(file).take(1 << 20, Share())
    second, _ = _next_engine(file, None, moved(3))
    assert os.fstat(file).st_size == 0
    _pieces(second, 64)
    del piece


def test_results_of_another_size_or_step_and_notes_of_nothing_are_not_taken_for_results(file: int) -> None:
    (piece,) = _pieces(Staging(file), 100)
    inside, behind = piece.note() + (1 << 24), piece.note() + (1 << 40)
    second, _ = _next_engine(file, piece.note(), inside, behind)
    for note, size in ((piece.note(), 4 * _PAGE), (piece.note(), 1 << 30), (piece.note(1), 100), (inside, 1)):
        with pytest.raises(RuntimeError, match="commands have changed"):
            second.find(note, size)
    third, _ = _next_engine(file, inside, behind)
    assert not third.pending
    assert _used(file) == 0


@pytest.mark.parametrize(("number", "page"), [(0, 0), (5, 3), ((1 << 23) - 1, 1 << 37)])
def test_a_note_says_where_and_how_far(number: int, page: int) -> None:
    assert Note.read(moved(number)) == Note(None, number)
    assert Note.read(page << 24 | number << 1 | 1) == Note(page, number)


def test_no_memory_for_a_piece_is_a_memory_error(file: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    staging = Staging(file)
    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", full)
        with pytest.raises(MemoryError, match="100 bytes"):
            staging.take(100, Share())
    staging.take(100, Share()).array[:] = np.uint8(1)
