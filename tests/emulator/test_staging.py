"""The staging file of engines: pieces that outlive one, and memory that comes back."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator

import numpy as np
import pytest

from softnpu.emulator.common import linux
from softnpu.emulator.engine.staging import Note, Staging, moved

_PAGE = 4096


class _Queue:
    """A queue that has noted this."""

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


def test_a_piece_begins_as_zeros_also_where_another_was(file: int) -> None:
    staging = Staging(file)
    for size in (100, 5 * _PAGE, 3):
        piece = staging.take(size)
        assert piece.array.size >= size
        assert piece.array.ctypes.data % 64 == 0
        assert not piece.array.any()
        piece.array[:] = 0xFF
        del piece


def test_pieces_do_not_share_a_byte(file: int) -> None:
    staging = Staging(file)
    pieces = [staging.take(size) for size in (1, 10_000, 4000, 70_000, 64)]
    for number, piece in enumerate(pieces, 1):
        piece.array[:] = number
    assert all((piece.array == number).all() for number, piece in enumerate(pieces, 1))


def test_a_piece_takes_memory_as_long_as_a_view_of_it_lives(file: int) -> None:
    staging = Staging(file)
    view = staging.take(8 * _PAGE).array[100:200]
    view[:] = 1
    assert _used(file) > 8 * _PAGE
    assert staging.take(8 * _PAGE).array.ctypes.data != view.ctypes.data - 100
    del view
    assert _used(file) == 0


def test_taking_and_giving_back_does_not_grow_the_file(file: int) -> None:
    staging = Staging(file)
    for size in (1 << 20, 100, 1 << 18) * 20:
        staging.take(size).array[:] = 1
    assert os.fstat(file).st_size <= 4 << 20


def test_the_next_engine_finds_what_was_noted_and_frees_the_rest(file: int) -> None:
    first = Staging(file)
    pieces = [first.take(3 * _PAGE) for _ in range(5)]
    for number, piece in enumerate(pieces, 1):
        piece.array[:] = number
    noted = [_Queue(pieces[1].note()), _Queue(pieces[3].note(7)), _Queue(None), _Queue(moved(2))]

    second = Staging(file)
    second.recover(noted)

    assert second.pending
    assert (second.find(pieces[1].note(), 3 * _PAGE) == 2).all()
    assert (second.find(pieces[3].note(7), 100) == 4).all()
    assert _used(file) == 2 * 4 * _PAGE
    fresh = [second.take(2 * _PAGE) for _ in range(8)]
    for piece in fresh:
        assert not piece.array.any()
        piece.array[:] = 9
    assert (second.find(pieces[1].note(), 3 * _PAGE) == 2).all()


def test_what_was_noted_is_freed_when_its_queue_has_gone_on_or_is_gone(file: int) -> None:
    first = Staging(file)
    pieces = [first.take(100) for _ in range(2)]
    queues = [_Queue(piece.note()) for piece in pieces]
    second = Staging(file)
    second.recover(queues)

    second.settle()
    assert _used(file) == 2 * _PAGE
    queues[0].note = None
    second.settle()
    assert _used(file) == _PAGE
    queues[1].closed = True
    second.settle()
    assert _used(file) == 0
    assert not second.pending


def test_an_engine_to_which_nothing_was_noted_begins_with_an_empty_file(file: int) -> None:
    first = Staging(file)
    piece = first.take(1 << 20)
    second = Staging(file)
    second.recover([_Queue(None), _Queue(moved(3))])
    assert os.fstat(file).st_size == 0
    assert not second.take(64).array.any()
    del piece


@pytest.mark.parametrize("size", [4 * _PAGE, 1 << 30])
def test_results_of_another_size_are_not_taken_for_those_of_a_step(file: int, size: int) -> None:
    first = Staging(file)
    piece = first.take(100)
    second = Staging(file)
    second.recover([_Queue(piece.note())])
    with pytest.raises(RuntimeError, match="commands have changed"):
        second.find(piece.note(), size)
    with pytest.raises(RuntimeError, match="commands have changed"):
        second.find(piece.note(1), 100)


def test_a_note_of_what_is_not_there_keeps_nothing(file: int) -> None:
    first = Staging(file)
    piece = first.take(3 * _PAGE)
    inside, behind = piece.note() + (1 << 24), piece.note() + (1 << 40)
    second = Staging(file)
    second.recover([_Queue(inside), _Queue(behind)])
    assert not second.pending
    assert _used(file) == 0


@pytest.mark.parametrize(("number", "page"), [(0, 0), (5, 3), ((1 << 23) - 1, 1 << 37)])
def test_a_note_says_where_and_how_far(number: int, page: int) -> None:
    assert Note.read(moved(number)) == Note(None, number)
    assert Note.read(page << 24 | number << 1 | 1) == Note(page, number)


def test_no_memory_for_a_piece_is_a_memory_error(file: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    staging = Staging(file)
    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(MemoryError, match="100 bytes"):
        staging.take(100)
    monkeypatch.undo()
    piece = staging.take(100)
    piece.array[:] = np.uint8(1)
