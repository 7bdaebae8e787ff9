"""Memory taken by a compilation: all processes together, relative to the weights."""

from __future__ import annotations

import re
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
from softnpu.emulator.supervisor.tuning import Tuning
from tests.conftest import StartDaemon
from tests.support.daemon import Daemon
from tests.support.serialized_forms import by_descriptor
from tests.support.waiting import wait_until, waits_for_job

_SIZE = 4096
_PERIOD_S = 0.01
_MAPPING = re.compile(
    rb"^[0-9a-f]+-[0-9a-f]+ .*?(\.so[.0-9]*)?\nSize:.*\n(?:\w+:.*\n)*?Pss: +(\d+)", re.MULTILINE
)
"""A mapping in smaps: whether it is a library, and its PSS in KiB."""
STEADY = Tuning(compiler_idle_s=600.0, compilers=2, spare_delay_s=0.0)
"""A daemon whose compilers stay: one that starts or ends meanwhile would be measured too."""


def await_compilers(daemon: Daemon) -> None:
    """Wait until both the worker that compiled and the spare are idle."""

    def settled() -> bool:
        children = psutil.Process(daemon.pid).children()
        workers = [child.pid for child in children if "softnpu.emulator.compiler" in child.cmdline()]
        return len(workers) == 2 and all(waits_for_job(pid) for pid in workers)

    wait_until(settled, what="two compilers that wait for a job")


def write_model(folder: Path, layers: int, kind: str) -> Path:
    """Write `layers` fully connected layers of 4096 x 4096 numbers that do not repeat."""
    rng = np.random.default_rng(0)
    data = ops.parameter([1, _SIZE], np.float32, name="data")
    value = data
    numbers = rng.standard_normal((_SIZE, _SIZE), np.float32) / 64
    for layer in range(layers):
        constant = ops.constant((numbers * np.float32(1 + layer / 64)).astype(kind))
        matrix = constant if kind == "float32" else ops.convert(constant, "f32")
        value = ops.relu(ops.matmul(value, matrix, False, True))
    path = folder / "large.xml"
    ov.serialize(ov.Model([value], [data], "large"), path)
    return path


@contextmanager
def peak(pids: Callable[[], list[int]], before: int | None = None) -> Iterator[list[int]]:
    """Sample the memory (PSS) of some processes; the list then has the growth of its peak in bytes.

    It grows from `before`, or from what it is now.

    Libraries are excluded: their share grows when another test that maps them ends.
    """
    if before is None:
        before = memory(pids())
    most = [0]
    stop = threading.Event()

    def sample() -> None:
        while not stop.wait(_PERIOD_S):
            most[0] = max(most[0], memory(pids()) - before)

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield most
    finally:
        stop.set()
        thread.join()


def memory(pids: list[int]) -> int:
    """Return the smaller of two sums, taken in opposite orders: a page that another process maps between
    two readings is counted twice in one of them."""
    return min(_sum(pids), _sum(pids[::-1]))


def _sum(pids: list[int]) -> int:
    total = 0
    for pid in pids:
        try:
            text = Path(f"/proc/{pid}/smaps").read_bytes()
        except OSError:
            continue  # it has ended meanwhile
        total += sum(int(size) for library, size in _MAPPING.findall(text) if not library) * 1024
    return total


@pytest.fixture
def daemon(start_daemon: StartDaemon) -> Daemon:
    """A private daemon: leftovers of other tests in the shared one would be measured too."""
    return start_daemon(tuning=STEADY)


@pytest.mark.parametrize(
    ("kind", "layers", "mapped"),
    [
        ("float16", 4, False),
        pytest.param("float32", 4, True, marks=pytest.mark.soak),
        pytest.param("float32", 16, False, marks=pytest.mark.soak),
        pytest.param("float16", 32, False, marks=pytest.mark.soak),
    ],
)
def test_weights_are_in_memory_once(
    daemon: Daemon, context: Context, digits: Path, tmp_path: Path, kind: str, layers: int, mapped: bool
) -> None:
    """From a file, and from a model that OpenVINO maps from one."""
    for _ in range(2):  # the first round loads the libraries, the second measures the model
        with GraphSource.from_ir(digits) as source:
            context.create_graph(source).destroy()
    parent = psutil.Process(daemon.pid)
    await_compilers(daemon)
    path = write_model(tmp_path, layers, kind)
    weights = path.with_suffix(".bin").stat().st_size
    model = ov.Core().read_model(path) if mapped else None
    pids = [psutil.Process().pid, parent.pid, *(child.pid for child in parent.children())]
    with (
        peak(lambda: pids) as most,
        GraphSource.from_ir(path) if model is None else by_descriptor(model, "large") as source,
    ):
        compile_source(context, source)
    print(f"{kind}: {weights >> 20} MB of weights, at most {most[0] >> 20} MB more")
    assert most[0] <= 1.1 * weights
