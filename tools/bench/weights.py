"""`bench weights`: compiling a model with large weights, from a file and from the program's memory.

The peer is OpenVINO's CPU device. Every compilation is a process of its own with a daemon of its own, idle.
Memory is measured in separate processes, because sampling slows them: the growth of all processes together,
from just before the model exists.

A virtual machine may have returned free memory to its host, and reclaiming it takes longer than anything
measured here: before each compilation, as much as it needs is used once.
"""

from __future__ import annotations

import tempfile
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import openvino as ov

from softnpu.tools.bench import large_model, load_client
from softnpu.tools.bench.load import wait_for_rest
from softnpu.tools.bench.load_client import Start, Started, client
from softnpu.tools.bench.memory import total
from softnpu.tools.bench.result import Measurement, absolute, compared
from softnpu.tools.bench.rounds import median
from softnpu.tools.shared.console import format_bytes
from softnpu.tools.shared.private_daemon import private_daemon

BENCH: Final = "weights"
_PEER: Final = "OpenVINO CPU"
_WEIGHTS: Final = "the weights"
_PAUSE_S: Final = 0.03
_GIB: Final = 1 << 30
_COPIES: Final = 3  # of the weights: the program's, the device's, and the converted one


class Kind(NamedTuple):
    """A compilation: where the weights are, and whether the driver's cache has the model."""

    source: str
    cached: bool


class Memory(NamedTuple):
    """Growth of all processes in bytes: at most, and with the model loaded."""

    peak: int
    after: int


_FILE: Final = "file"
_PROCESS: Final = "process memory"
_KINDS: Final = (Kind(_FILE, False), Kind(_FILE, True), Kind(_PROCESS, False))


def run(size: int, rounds: int) -> Iterator[Measurement]:
    """Yield medians of `rounds` compilations of each kind of about `size` bytes, and their memory."""
    with tempfile.TemporaryDirectory(prefix="softnpu-bench-") as folder:
        compilations = Compilations(size, Path(folder))
        compilations.prepare()
        ours: dict[Kind, list[Started]] = defaultdict(list)
        theirs: dict[str, list[Started]] = defaultdict(list)
        for _ in range(rounds):
            for kind in _KINDS:
                ours[kind].append(compilations.on_npu(kind)[0])
                if not kind.cached:
                    theirs[kind.source].append(compilations.on_cpu(kind.source)[0])
        for kind in _KINDS:
            mine, peer = ([answer.loaded_s for answer in side] for side in (ours[kind], theirs[kind.source]))
            metric = f"{_name(size)}, {kind.source}: compile, {'cached' if kind.cached else 'cold'}"
            yield compared(BENCH, metric, "s", median(mine), _PEER, median(peer))
        yield from _memory(compilations, size)
        answers = [answer for side in (*ours.values(), *theirs.values()) for answer in side]
        different = len({answer.outputs for answer in answers}) - 1
        yield absolute(BENCH, f"{_name(size)}: outputs that differ", "outputs", different, exactly=0)


def _memory(compilations: Compilations, size: int) -> Iterator[Measurement]:
    weights = large_model.weights_of(size)
    for source in (_FILE, _PROCESS):
        (_, mine), (_, peer) = (
            compilations.on_npu(Kind(source, False), watched=True),
            compilations.on_cpu(source, watched=True),
        )
        name = f"{_name(size)}, {source}"
        for metric, value, other in (
            ("memory", mine.after, peer.after),
            ("peak memory", mine.peak, peer.peak),
        ):
            yield compared(BENCH, f"{name}: {metric}", "GiB", value / _GIB, _PEER, other / _GIB)
        yield compared(BENCH, f"{name}: peak memory", "GiB", mine.peak / _GIB, _WEIGHTS, weights / _GIB)


def _name(size: int) -> str:
    return format_bytes(size)


class Compilations:
    """Starts processes; the model's file and the cache lie in `folder`."""

    def __init__(self, size: int, folder: Path) -> None:
        self._size = size
        self._folder = folder
        self._model = folder / "large.xml"
        self._count = 0

    def prepare(self) -> None:
        """Write the file, and fill the driver's cache."""
        ov.serialize(large_model.build(self._size), self._model)
        self.on_npu(Kind(_FILE, True), prepare=True)

    def on_npu(self, kind: Kind, *, watched: bool = False, prepare: bool = False) -> tuple[Started, Memory]:
        """Compile on an emulated device. Raise `ToolError` if the compilation was of another kind."""
        self._count += 1
        cache = self._folder / ("cache" if kind.cached else f"empty-{self._count}")
        cache.mkdir(exist_ok=True)
        with private_daemon() as daemon:
            wait_for_rest(daemon)
            start = self._start("npu", kind.source, str(daemon.socket), str(cache))
            answer, memory = _compile(start, daemon.pid, watched)
        answer.check(f"model of {_name(self._size)}", kind.cached and not prepare)
        return answer, memory

    def on_cpu(self, source: str, *, watched: bool = False) -> tuple[Started, Memory]:
        """Compile on OpenVINO's CPU device."""
        return _compile(self._start("cpu", source), None, watched)

    def _start(self, side: str, source: str, socket: str = "", cache: str = "") -> Start:
        model = str(self._model) if source == _FILE else ""
        name = f"compilation on the {side}"
        return Start(name=name, side=side, size=self._size, model=model, socket=socket, driver_cache=cache)


def _compile(start: Start, daemon: int | None, watched: bool) -> tuple[Started, Memory]:
    with ExitStack() as stack:
        process = stack.enter_context(client(start))
        watch = stack.enter_context(_Watch(daemon, process.pid)) if watched else None
        if watch is None:
            _use_memory(_COPIES * large_model.weights_of(start.size))
        answer = load_client.run(process)
        return answer, Memory(0, 0) if watch is None else watch.stop()


def _use_memory(size: int) -> None:
    """Make the host provide this many bytes, which are free again afterwards."""
    np.ones(size, np.uint8)


class _Watch:
    """Samples the memory of a program and its daemon repeatedly."""

    def __init__(self, daemon: int | None, pid: int) -> None:
        self._daemon, self._pids = daemon, [pid]
        self._before = self._peak = total(daemon, self._pids)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look)

    def stop(self) -> Memory:
        """Return the growth since the beginning."""
        after = total(self._daemon, self._pids)
        self._end()
        return Memory(max(self._peak, after) - self._before, after - self._before)

    def _look(self) -> None:
        while not self._ended.wait(_PAUSE_S):
            self._peak = max(self._peak, total(self._daemon, self._pids))

    def _end(self) -> None:
        self._ended.set()
        self._thread.join()

    def __enter__(self) -> _Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end()
