"""`bench load`: time to a new process's first result, from scratch and with each kind of cache.

FEIL, the first-ever inference latency, is compiling, loading and the first inference of a model that nobody
has compiled before. FIL, the first inference latency, is the same with a compiled model at hand. Every start
is a process of its own with a daemon of its own, which is up and idle; OpenVINO's CPU device starts beside it
in the same way.
"""

from __future__ import annotations

import enum
import os
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import psutil

from softnpu.emulator.interface.environment import ENV_ENGINE_CACHE
from softnpu.tools.bench import load_client
from softnpu.tools.bench.load_client import Start, Started, client
from softnpu.tools.bench.model import BenchModel
from softnpu.tools.bench.result import Measurement, absolute, compared
from softnpu.tools.bench.rounds import median
from softnpu.tools.shared.failures import ToolError
from softnpu.tools.shared.private_daemon import PrivateDaemon, private_daemon

BENCH = "load"
_PEER = "OpenVINO CPU"
_DEADLINE_S = 300.0
_ENGINE_CACHE_S = 60.0
_QUIET_S = 2.5  # a process starts a second after the load
_PAUSE_S = 0.05
_REST_S = 0.3
_FILL_PROGRAM = "softnpu.emulator.openvino.cache_fill"


class Way(enum.Enum):
    """The state that a starting program finds."""

    COLD = "cold"
    DRIVER_CACHE = "driver cache"
    CACHE_DIR = "CACHE_DIR"
    IMPORT = "import"
    LOADED = "driver cache, loaded by another process"
    LOADED_IMPORT = "import, loaded by another process"

    @property
    def prepared(self) -> Way:
        """The way whose files a start finds: another one if another process has the model loaded."""
        return {Way.LOADED: Way.DRIVER_CACHE, Way.LOADED_IMPORT: Way.IMPORT}.get(self, self)


_CACHED = {Way.COLD: False, Way.DRIVER_CACHE: True, Way.CACHE_DIR: True, Way.IMPORT: False}
_PEERS = {
    Way.COLD: Way.COLD,
    Way.DRIVER_CACHE: Way.CACHE_DIR,  # OpenVINO's CPU device has no cache of its own
    Way.CACHE_DIR: Way.CACHE_DIR,
    Way.IMPORT: Way.IMPORT,
    Way.LOADED: Way.CACHE_DIR,
    Way.LOADED_IMPORT: Way.IMPORT,
}


def run(model: BenchModel, rounds: int) -> Iterator[Measurement]:
    """Yield medians of `rounds` starts of each kind on both sides, which take turns."""
    with tempfile.TemporaryDirectory(prefix="softnpu-bench-") as folder:
        starts = _Starts(model, Path(folder))
        starts.prepare()
        ours: dict[Way, list[Started]] = defaultdict(list)
        theirs: dict[Way, list[Started]] = defaultdict(list)
        for _ in range(rounds):
            for way in Way:
                ours[way].append(starts.on_npu(way))
                if way in _PEERS.values():
                    theirs[way].append(starts.on_cpu(way))
    for way in Way:
        yield from _figures(f"{model.name}, {way.value}", way, ours[way], theirs[_PEERS[way]])
    different = {
        start.outputs for side in (ours, theirs) for starts_of in side.values() for start in starts_of
    }
    yield absolute(BENCH, f"{model.name}: outputs that differ", "outputs", len(different) - 1, exactly=0)


def _figures(
    name: str, way: Way, ours: Sequence[Started], theirs: Sequence[Started]
) -> Iterator[Measurement]:
    total = "FEIL" if way is Way.COLD else "FIL"
    for metric, field in ((total, "total_s"), ("compile", "opened_s"), ("first inference", "first_s")):
        mine, peer = (median([getattr(start, field) for start in side]) * 1e3 for side in (ours, theirs))
        yield compared(BENCH, f"{name}: {metric}", "ms", mine, _PEER, peer)
        if metric == "compile":  # the CPU device has no separate load
            yield absolute(BENCH, f"{name}: load", "ms", median([start.load_s for start in ours]) * 1e3)


class _Starts:
    """Starts processes; their caches and exported models lie in `folder`."""

    def __init__(self, model: BenchModel, folder: Path) -> None:
        self._model = model
        self._folder = folder
        self._count = 0

    def prepare(self) -> None:
        """Fill the caches, including the engine's, and write the exported models."""
        with self._daemon(Way.DRIVER_CACHE) as daemon:
            for way in (Way.DRIVER_CACHE, Way.CACHE_DIR, Way.IMPORT):
                _run(self._order("npu", way, daemon.socket, prepare=True))
            self._wait_for_engine_cache(daemon)
        for way in (Way.CACHE_DIR, Way.IMPORT):
            _run(self._order("cpu", way, None, prepare=True))

    def on_npu(self, way: Way) -> Started:
        """Start on an emulated device. Raise `ToolError` if the start was of another kind."""
        with self._daemon(way) as daemon, ExitStack() as stack:
            if way is not way.prepared:
                stack.enter_context(_held(self._order("npu", way, daemon.socket)))
            started = _run(self._order("npu", way, daemon.socket))
        started.check(f"start '{way.value}'", _CACHED[way.prepared])
        return started

    def on_cpu(self, way: Way) -> Started:
        """Start on OpenVINO's CPU device."""
        return _run(self._order("cpu", way, None))

    @contextmanager
    def _daemon(self, way: Way) -> Iterator[PrivateDaemon]:
        """Yield a daemon whose engine finds the files of `prepare`, or nothing if the start is cold."""
        path = self._folder / "engine" if way is not Way.COLD else Path(self._cache("engine", way))
        with variable(ENV_ENGINE_CACHE, str(path)), private_daemon() as daemon:
            wait_for_rest(daemon)
            yield daemon

    def _wait_for_engine_cache(self, daemon: PrivateDaemon) -> None:
        """Wait until no process fills the engine's cache, which does not keep every model."""
        end = time.monotonic() + _ENGINE_CACHE_S
        quiet_since = time.monotonic()
        while time.monotonic() - quiet_since < _QUIET_S:
            if any(_fills_cache(process) for process in _children(daemon.pid)):
                quiet_since = time.monotonic()
            if time.monotonic() > end:
                raise ToolError(
                    "cache of the engine",
                    found="being filled",
                    expected=f"an end within {_ENGINE_CACHE_S:g} s",
                )
            time.sleep(_PAUSE_S)

    def _order(self, side: str, way: Way, socket: Path | None, prepare: bool = False) -> Start:
        exported, cache = str(self._folder / f"{side}.blob"), self._cache(side, way)
        exports, imports = (way.prepared is Way.IMPORT and prepare is wanted for wanted in (True, False))
        return Start(
            name=f"start '{way.value}' on the {side}",
            side=side,
            model=str(self._model.path),
            shapes={name: tuple(shape) for name, shape in self._model.shapes.items()},
            socket="" if socket is None else str(socket),
            driver_cache="" if way is Way.CACHE_DIR else cache,
            cache_dir=cache if way is Way.CACHE_DIR else "",
            imports=exported if imports else "",
            exports=exported if exports else "",
        )

    def _cache(self, side: str, way: Way) -> str:
        """Return the directory of a cache; an unused one for a cold start."""
        way = way.prepared
        if way is Way.IMPORT:
            return ""
        self._count += 1
        name = f"empty-{self._count}" if way is Way.COLD else f"{side}-{way.name.lower()}"
        path = self._folder / name
        path.mkdir(exist_ok=True)
        return str(path)


@contextmanager
def variable(name: str, value: str) -> Iterator[None]:
    before = os.environ.get(name)
    os.environ[name] = value
    try:
        yield
    finally:
        del os.environ[name]
        os.environ.update({} if before is None else {name: before})


def wait_for_rest(daemon: PrivateDaemon) -> None:
    """Wait until a daemon's processes are idle: a spare worker loads OpenVINO a second after its start."""
    end = time.monotonic() + _DEADLINE_S
    time.sleep(_QUIET_S)
    before = -1.0
    while time.monotonic() < end and before != (now := _cpu_s(daemon.pid)):
        before = now
        time.sleep(_REST_S)


def _cpu_s(pid: int) -> float:
    """Return CPU seconds used by a daemon's processes."""
    total = 0.0
    for process in (psutil.Process(pid), *_children(pid)):
        with suppress(psutil.Error):  # it has just ended
            times = process.cpu_times()
            total += times.user + times.system
    return total


def _fills_cache(process: psutil.Process) -> bool:
    try:
        return _FILL_PROGRAM in process.cmdline()
    except psutil.Error:  # it has just ended
        return False


def _children(pid: int) -> list[psutil.Process]:
    children: list[psutil.Process] = psutil.Process(pid).children(recursive=True)
    return children


@contextmanager
def _held(start: Start) -> Iterator[Started]:
    """Yield the result of a process that keeps the model loaded."""
    with client(start) as process:
        yield load_client.run(process)


def _run(start: Start) -> Started:
    with _held(start) as started:
        return started
