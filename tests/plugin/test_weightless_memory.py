"""Memory taken by exports and imports: all processes together, relative to the weights."""

from __future__ import annotations

import ctypes
import io
import mmap
import os
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from softnpu.plugin import Core
from tests.conftest import StartDaemon
from tests.driver.test_compile_memory import STEADY, await_compilers, memory, peak, write_model
from tests.support.daemon import Daemon

_MB = 1 << 20
_SLACK = 8 * _MB
"""Libraries and buffers, whatever the size of the model."""
_TRIES = 16
"""A thread releases the pages of weights, and may wait for a core: once it did in four tries of four."""
DEFERRED = {"NPU_DEFER_WEIGHTS_LOAD": True}
_libc = ctypes.CDLL(None, use_errno=True)


@pytest.fixture
def daemon(start_daemon: StartDaemon) -> Daemon:
    """A daemon whose compilers neither start nor end during the measurement."""
    return start_daemon(tuning=STEADY)


@pytest.fixture
def pids(core: Core, daemon: Daemon, digits: Path) -> Callable[[], list[int]]:
    """This process, the daemon, its engine and its compilers, all with their libraries loaded."""
    parent = psutil.Process(daemon.pid)
    for _ in range(2):
        core.import_model(core.compile_model(digits).export_model())
    await_compilers(daemon)
    return lambda: [os.getpid(), parent.pid, *(child.pid for child in parent.children())]


def _exported(core: Core, folder: Path, layers: int, weightless: bool) -> tuple[Path, Path, int]:
    """The exported file, its weights file, and their size."""
    path = write_model(folder, layers, "float32")
    target = folder / "large.blob"
    config = DEFERRED | {"ENABLE_WEIGHTLESS": weightless}
    core.compile_model(path, "NPU", config).export_model(target)
    weights = path.with_suffix(".bin")
    size = weights.stat().st_size
    if weightless:
        return target, weights, size
    weights.unlink()
    return target, target, size


def _resident(path: Path) -> int:
    """Return the bytes of a file that are resident."""
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        with mmap.mmap(file.fileno(), size, mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE) as view:
            pages = -(-size // mmap.PAGESIZE)
            held = (ctypes.c_ubyte * pages)()
            address = ctypes.addressof(ctypes.c_char.from_buffer(view))
            assert _libc.mincore(ctypes.c_void_p(address), ctypes.c_size_t(size), held) == 0
            return sum(page & 1 for page in held) * mmap.PAGESIZE


def _drop(path: Path) -> None:
    """Evict a file from the page cache; skip the test where that is impossible."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    if _resident(path) > path.stat().st_size // 1000:
        pytest.skip("this file system keeps its files in memory")


@pytest.mark.parametrize("weightless", [True, False])
def test_an_import_holds_its_weights_once_and_a_deferred_one_not_at_all(
    core: Core, pids: Callable[[], list[int]], tmp_path: Path, weightless: bool
) -> None:
    target, weights, size = _exported(core, tmp_path, 2, weightless)
    _drop(weights)
    before = _resident(weights)
    with peak(pids) as most:
        deferred = core.import_model(target, "NPU", DEFERRED)
    touched = _resident(weights) - before
    assert touched < size // 100
    assert most[0] < _SLACK + size // 100
    assert deferred.load_ms == 0
    del deferred
    # compared with their digests, and loaded onto the device
    peaks, before = [], memory(pids())
    for _ in range(_TRIES):
        with peak(pids, before) as most:
            imported = core.import_model(target)
        assert imported.load_ms > 0
        del imported
        peaks.append(most[0])
        if peaks[-1] <= 1.1 * size:
            break
    assert min(peaks) <= 1.1 * size


def test_an_export_holds_the_weights_only_in_the_file_or_the_stream(
    core: Core, pids: Callable[[], list[int]], tmp_path: Path
) -> None:
    path = write_model(tmp_path, 2, "float32")
    size = path.with_suffix(".bin").stat().st_size
    compiled = core.compile_model(path, "NPU", DEFERRED)
    with peak(pids) as most:
        compiled.export_model(tmp_path / "large.blob")
    assert most[0] <= 1.1 * size
    with peak(pids) as most:
        stream = compiled.export_model()
    assert isinstance(stream, io.BytesIO)
    # the file's, mapped by the compiler, and the stream's
    assert most[0] <= 2.3 * size + _SLACK
