"""Memory that a compilation takes: all processes together, next to the weights themselves."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import openvino as ov
import psutil
import pytest
from openvino import opset15 as ops

from softnpu.driver import Context, GraphSource
from softnpu.driver.graph_creation import compile_source
from tests.conftest import StartDaemon
from tests.support.daemon import Daemon
from tests.support.serialized_forms import by_descriptor
from tests.support.waiting import wait_until, waits_for_frame

_SIZE = 4096
_PERIOD_S = 0.01
_MB = 1 << 20
_POOL = "softnpu.emulator.supervisor.compilers"
STEADY = {f"{_POOL}:_IDLE_S": 600.0, f"{_POOL}:_WORKERS": 2, f"{_POOL}:_SPARE_AFTER_S": 0.0}
"""Patches for a daemon whose compilers stay: one that ends or begins meanwhile would be measured too."""


def await_compilers(daemon: Daemon) -> None:
    """Waits until the worker that has compiled and the spare are both there, and sleep."""

    def settled() -> bool:
        children = psutil.Process(daemon.pid).children()
        workers = [child.pid for child in children if "softnpu.emulator.compiler" in child.cmdline()]
        return len(workers) == 2 and all(waits_for_frame(pid) for pid in workers)

    wait_until(settled, what="two compilers that wait for a job")


def write_model(folder: Path, layers: int, kind: str) -> Path:
    """`layers` fully connected layers of 4096 x 4096 numbers that do not repeat."""
    rng = np.random.default_rng(0)
    data = ops.parameter([1, _SIZE], np.float32, name="data")
    value = data
    for _ in range(layers):
        weights = rng.standard_normal((_SIZE, _SIZE), np.float32) / 64
        constant = ops.constant(weights.astype(kind))
        matrix = constant if kind == "float32" else ops.convert(constant, "f32")
        value = ops.relu(ops.matmul(value, matrix, False, True))
    path = folder / "large.xml"
    ov.serialize(ov.Model([value], [data], "large"), path)
    return path


@contextmanager
def peak(pids: Callable[[], list[int]]) -> Iterator[list[int]]:
    """Samples the memory of some processes (PSS); the list then has the growth of its peak in bytes."""
    before = _memory(pids())
    most = [0]
    stop = threading.Event()

    def sample() -> None:
        while not stop.wait(_PERIOD_S):
            most[0] = max(most[0], _memory(pids()) - before)

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield most
    finally:
        stop.set()
        thread.join()


def _memory(pids: list[int]) -> int:
    """The smaller of two sums, in opposite orders: a page that another process maps between two readings
    counts once too often in one of them."""
    return min(_sum(pids), _sum(pids[::-1]))


def _sum(pids: list[int]) -> int:
    total = 0
    for pid in pids:
        try:
            text = Path(f"/proc/{pid}/smaps_rollup").read_text()
        except OSError:
            continue  # it has ended meanwhile
        total += int(text.partition("\nPss:")[2].split()[0]) * 1024
    return total


def _tell(kind: str, weights: int, most: int) -> None:
    share = most / weights
    print(f"{kind}: {weights / _MB:.0f} MB of weights, at most {most / _MB:.0f} MB more: {share:.3f}")


def _family(daemon: Daemon) -> Callable[[], list[int]]:
    """This process, the daemon, its engine and its compilers."""
    parent = psutil.Process(daemon.pid)
    return lambda: [psutil.Process().pid, parent.pid, *(child.pid for child in parent.children())]


@pytest.fixture
def daemon(start_daemon: StartDaemon) -> Daemon:
    """One of its own: what other tests left in the shared one would be measured too."""
    return start_daemon(patches=STEADY)


@pytest.fixture
def warm(daemon: Daemon, context: Context, digits: Path) -> Callable[[], list[int]]:
    """Processes that have loaded their libraries: what comes now is the model."""
    for _ in range(2):
        with GraphSource.from_ir(digits) as source:
            context.create_graph(source).destroy()
    await_compilers(daemon)
    return _family(daemon)


def check_file(context: Context, pids: Callable[[], list[int]], folder: Path, layers: int, kind: str) -> None:
    path = write_model(folder, layers, kind)
    weights = path.with_suffix(".bin").stat().st_size
    with GraphSource.from_ir(path) as source, peak(pids) as most:
        compile_source(context, source)
    _tell(kind, weights, most[0])
    assert most[0] <= 1.1 * weights


@pytest.mark.parametrize("kind", ["float32", "float16"])
def test_weights_in_a_file_are_in_memory_once(
    context: Context, warm: Callable[[], list[int]], tmp_path: Path, kind: str
) -> None:
    check_file(context, warm, tmp_path, 4 if kind == "float32" else 8, kind)


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["float32", "float16"])
def test_a_gigabyte_of_weights_in_a_file_is_in_memory_once(
    context: Context, warm: Callable[[], list[int]], tmp_path: Path, kind: str
) -> None:
    check_file(context, warm, tmp_path, 16 if kind == "float32" else 32, kind)


def test_a_model_that_openvino_maps_from_a_file_is_in_memory_once(
    context: Context, warm: Callable[[], list[int]], tmp_path: Path
) -> None:
    path = write_model(tmp_path, 4, "float32")
    weights = path.with_suffix(".bin").stat().st_size
    model = ov.Core().read_model(path)
    with peak(warm) as most, by_descriptor(model, "large") as source:
        compile_source(context, source)
    _tell("mapped", weights, most[0])
    assert most[0] <= 1.1 * weights
