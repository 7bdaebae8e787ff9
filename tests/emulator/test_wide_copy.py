"""Large copies by several threads: exactly the requested bytes, at any alignment."""

from __future__ import annotations

import functools
import os
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from softnpu.emulator.engine import native_library
from softnpu.emulator.engine.commands import wide_copy
from softnpu.emulator.engine.commands.wide_copy import WIDE_BYTES, copy

_AROUND = 4096


@pytest.fixture(scope="module")
def source() -> np.ndarray:
    return np.random.default_rng(16).integers(0, 256, WIDE_BYTES + 4 * _AROUND, np.uint8)


@pytest.mark.parametrize("size", [WIDE_BYTES, WIDE_BYTES + 1, WIDE_BYTES + 63, WIDE_BYTES + _AROUND - 1])
@pytest.mark.parametrize(("target_at", "source_at"), [(0, 0), (1, 0), (0, 1), (63, 17), (64, 5)])
def test_a_wide_copy_writes_its_bytes_and_no_others(
    source: np.ndarray, size: int, target_at: int, source_at: int
) -> None:
    target = np.full(size + 2 * _AROUND, 0xA5, np.uint8)
    start = _AROUND + target_at

    copy(target[start : start + size], source[source_at : source_at + size])

    assert np.array_equal(target[start : start + size], source[source_at : source_at + size])
    assert (target[:start] == 0xA5).all()
    assert (target[start + size :] == 0xA5).all()


def test_a_copy_that_gets_no_more_threads_is_made_by_those_there(
    source: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_left(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    helpers = functools.cache(lambda: ThreadPoolExecutor(1))
    monkeypatch.setattr(wide_copy, "_helpers", helpers)
    monkeypatch.setattr(threading.Thread, "start", none_left)
    target = np.zeros(WIDE_BYTES, np.uint8)

    copy(target, source[:WIDE_BYTES])

    assert np.array_equal(target, source[:WIDE_BYTES])
    assert not helpers.cache_info().currsize  # nothing is kept that no thread has done


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core has no helper")
@pytest.mark.parametrize("failing", ["the caller", "the helper"])
def test_a_copy_that_fails_has_no_thread_that_still_writes(
    source: np.ndarray, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    caller, writing = threading.get_ident(), threading.Event()
    has_begun, will_fail = threading.Event(), threading.Event()

    def copy_chunk(target: np.ndarray, data: np.ndarray) -> None:
        is_caller = threading.get_ident() == caller
        if is_caller == (failing == "the caller"):
            will_fail.set()
            assert has_begun.wait(60)
            raise MemoryError
        writing.set()
        has_begun.set()
        assert will_fail.wait(60)  # or the caller copies all, if the helper gets no core
        target[:] = data
        writing.clear()

    monkeypatch.setattr(np, "copyto", copy_chunk)
    with pytest.raises(MemoryError):
        copy(np.zeros(4 * WIDE_BYTES, np.uint8), np.resize(source, 4 * WIDE_BYTES))
    assert not writing.is_set()


def test_a_library_of_another_build_is_not_used(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    if native_library.library() is None:
        pytest.skip("the part of the engine in C++ is not built")
    monkeypatch.setattr(native_library, "VERSION", native_library.VERSION + 1)

    assert native_library._load() is None
    assert "install softnpu again" in caplog.text
