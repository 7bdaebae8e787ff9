"""Weights of this process as descriptors: large ones are copied by several threads, into several files."""

from __future__ import annotations

import mmap
import os
import threading
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import pytest

from softnpu.driver import process_memory
from softnpu.driver.errors import ZeError
from softnpu.driver.process_memory import Gathered, Piece, gather
from softnpu.emulator.blob.weight_space import WeightSpace
from softnpu.emulator.blob.weights import MAX_SOURCES
from softnpu.emulator.common import linux
from softnpu.emulator.interface.messages import WeightSource

pytestmark = pytest.mark.quick

Bytes = npt.NDArray[np.uint8]

_HUGE = 2 << 20
_LENGTHS = (70_000, 3, 4096, 200_000, 1, 64, 70_000)


@pytest.fixture(autouse=True)
def few_bytes_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_memory, "_SEVERAL_FROM", 1)


def _arrays() -> list[Bytes]:
    random = np.random.default_rng(3)
    return [random.integers(0, 256, length, np.uint8) for length in _LENGTHS]


def _pieces(arrays: list[Bytes]) -> list[Piece]:
    return [Piece(f"c{at}", int(array.ctypes.data), array.nbytes) for at, array in enumerate(arrays)]


def _close(gathered: Gathered) -> None:
    for file in gathered.files:
        os.close(file.fd)


def _content(gathered: Gathered, pieces: list[Piece]) -> list[bytes]:
    """Return what a reader of the files finds at the place of each piece."""
    sources = [WeightSource(offset=file.offset, length=file.length) for file in gathered.files]
    view = WeightSpace(sources, [file.fd for file in gathered.files], "model").view
    pairs = zip(gathered.offsets, pieces, strict=True)
    return [bytes(view[offset : offset + piece.length]) for offset, piece in pairs]


def test_every_piece_is_at_its_reported_place() -> None:
    arrays = _arrays()
    pieces = [*_pieces(arrays), Piece("again", int(arrays[0].ctypes.data), _LENGTHS[0])]
    gathered = gather(pieces, "pfnCreate2")
    try:
        assert len(gathered.files) == 4
        assert all(linux.has_seals(file.fd, linux.SEALS_IMMUTABLE) for file in gathered.files)
        assert _content(gathered, pieces) == [array.tobytes() for array in (*arrays, arrays[0])]
        assert gathered.offsets[-1] == gathered.offsets[0]
        assert sum(file.length for file in gathered.files) < sum(_LENGTHS) + 64 * len(_LENGTHS)
    finally:
        _close(gathered)


@pytest.mark.parametrize("grants", [True, False])
def test_large_copies_ask_for_huge_pages(monkeypatch: pytest.MonkeyPatch, grants: bool) -> None:
    monkeypatch.setattr(process_memory, "_MOST_COPIES", 1)
    asked, advise = [], linux._advise_call

    def note(start: int, length: int, advice: int) -> int:
        asked.append((start % _HUGE, length))
        return int(advise(start, length, advice)) if grants else -1

    monkeypatch.setattr(linux, "_advise_call", note)
    arrays = [np.full(3 * _HUGE // 2 + 5, value, np.uint8) for value in (1, 2)]
    pieces = _pieces(arrays)
    gathered = gather(pieces, "pfnCreate2")
    try:
        assert asked == [(0, 3 * _HUGE)], "whole ones, the rest in small pages"
        assert _content(gathered, pieces) == [array.tobytes() for array in arrays]
    finally:
        _close(gathered)


def test_files_of_the_program_and_of_copies_fit_a_message() -> None:
    arrays = _arrays()
    fds = [os.memfd_create(f"f{at}") for at in range(MAX_SOURCES + 2)]
    maps = []
    for at, fd in enumerate(fds):
        os.write(fd, bytes([at]) * 4096)
        maps.append(np.frombuffer(mmap.mmap(fd, 4096, prot=mmap.PROT_READ), np.uint8))
    pieces = _pieces(maps) + _pieces(arrays)
    gathered = gather(pieces, "pfnCreate2", {at: (fd, 0) for at, fd in enumerate(fds)})
    try:
        assert len(gathered.files) <= MAX_SOURCES
        assert _content(gathered, pieces) == [array.tobytes() for array in (*maps, *arrays)]
    finally:
        _close(gathered)
        for fd in fds:
            os.close(fd)


def test_a_single_piece_is_one_file() -> None:
    pieces = _pieces(_arrays()[:1])
    gathered = gather(pieces, "pfnCreate2")
    assert len(gathered.files) == 1
    _close(gathered)


def test_copying_works_without_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refused)
    arrays = _arrays()
    pieces = _pieces(arrays)
    gathered = gather(pieces, "pfnCreate2")
    assert _content(gathered, pieces) == [array.tobytes() for array in arrays]
    _close(gathered)


def _failing_at(number: int, failure: BaseException) -> Callable[..., int]:
    """`os.pwrite` that fails at its call of this number."""
    write, calls, lock = os.pwrite, iter(range(1000)), threading.Lock()

    def pwrite(fd: int, data: bytes, offset: int) -> int:
        with lock:
            call = next(calls)
        if call == number:
            raise failure
        return write(fd, data, offset)

    return pwrite


@pytest.mark.parametrize("number", range(len(_LENGTHS)))
def test_a_copy_without_space_leaves_no_file(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    pieces = _pieces(_arrays())
    before = set(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(os, "pwrite", _failing_at(number, OSError(12, "Cannot allocate memory")))
    with pytest.raises(ZeError, match="cannot be copied: Cannot allocate memory"):
        gather(pieces, "pfnCreate2")
    assert set(os.listdir("/proc/self/fd")) == before
    assert not [thread for thread in threading.enumerate() if thread.name == "weights"]


def test_an_interruption_leaves_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    pieces = _pieces(_arrays())
    before = set(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})  # Python interrupts the main thread only
    monkeypatch.setattr(os, "pwrite", _failing_at(2, KeyboardInterrupt()))
    with pytest.raises(KeyboardInterrupt):
        gather(pieces, "pfnCreate2")
    assert set(os.listdir("/proc/self/fd")) == before
