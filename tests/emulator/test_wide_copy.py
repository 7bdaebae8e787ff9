"""Large copies by several threads: exactly the requested bytes, at any alignment."""

from __future__ import annotations

import numpy as np
import pytest

from softnpu.emulator.engine import native_library
from softnpu.emulator.engine.commands.wide_copy import WIDE_BYTES, copy

_AROUND = 4096
_CHUNK = 1 << 20


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


@pytest.mark.parametrize("threads", [1, 2, 7])
@pytest.mark.parametrize("size", [0, 1, _CHUNK - 1, _CHUNK, 3 * _CHUNK + 5])
def test_any_number_of_threads_copies_the_same(source: np.ndarray, threads: int, size: int) -> None:
    library = native_library.library()
    if library is None:
        pytest.skip("the part of the engine in C++ is not built")
    target = np.zeros(size + 1, np.uint8)

    library.softnpu_copy(target.ctypes.data, source.ctypes.data, size, threads)

    assert np.array_equal(target[:size], source[:size])
    assert target[size] == 0


def test_a_library_of_another_build_is_not_used(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    if native_library.library() is None:
        pytest.skip("the part of the engine in C++ is not built")
    monkeypatch.setattr(native_library, "VERSION", native_library.VERSION + 1)

    assert native_library._load() is None
    assert "install softnpu again" in caplog.text
