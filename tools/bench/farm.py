"""`bench farm`: Ray's overhead for a predictor against processes without Ray, and the gain of more nodes.

Both sides compute the same batches on the same devices, each process with half of one; they take turns, so
that only one side works at a time.
"""

from __future__ import annotations

import multiprocessing
import os
import statistics
import time
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

import numpy as np

from softnpu.emulator.interface.lease_messages import WHOLE_DEVICE
from softnpu.tools.bench.model import BenchModel
from softnpu.tools.bench.result import Measurement, compared
from softnpu.tools.shared.failures import ToolError

BENCH: Final = "farm"
_PLATFORM: Final = "4000"
_STORE: Final = 400 * 10**6
_DEADLINE_S: Final = 600.0
_WARM: Final = 2
_AHEAD: Final = 2
"""Batches in flight for each actor: it never waits for the next one."""


def run(model: BenchModel, rows: int, batches: int, rounds: int, processes: int) -> Iterator[Measurement]:
    """Yield the time of a batch against processes without Ray, and the throughput of several nodes.

    Measured once with results kept on this process's node, and once with results sent to another node.
    """
    from softnpu.tools.farm.local import local_farm

    devices, batch = (_PLATFORM,) * processes, _batch(model, rows)
    sizes = batches, rounds, processes
    with local_farm(_STORE, on_head=devices) as farm:
        name = f"a batch of {rows}, {processes} at once"
        yield _overhead(name, farm.nodes[0], _travelling(model), batch, *sizes)
    with local_farm(_STORE) as farm:
        travelling = _travelling(model)  # in this farm's object store
        name = f"{rows} rows for another node, {processes} at once"
        yield _overhead(name, farm.add(devices, num_cpus=processes), travelling, batch, *sizes)
        yield from _scaling(farm, travelling, batch, batches)


def _travelling(model: BenchModel) -> Any:
    from softnpu.farm import Model

    return Model.of(model.path, shapes=model.shapes)


def _overhead(
    name: str, node: Any, model: Any, batch: Any, batches: int, rounds: int, processes: int
) -> Measurement:
    """Return the time of a batch on a node's devices, against processes without Ray that take turns."""
    actors = _actors(model, processes, 0.5)
    ours = _Actors(actors, batch)
    ours.run(_WARM)
    with _Processes(node.socket, model, processes, batch) as peer:
        peer.run(_WARM)
        pairs = [_pair(ours, peer, batches, first=bool(turn % 2)) for turn in range(rounds)]
    _kill(actors)
    ratio = statistics.median(ours_s / peer_s for ours_s, peer_s in pairs)
    peer_s = statistics.median(peer_s for _, peer_s in pairs)
    return compared(BENCH, name, "s", ratio * peer_s, "without Ray", peer_s)


def _pair(ours: _Actors, peer: _Processes, batches: int, first: bool) -> tuple[float, float]:
    """Return seconds for a batch of both sides in turn; `first`: the peer begins."""
    peer_s = peer.run(batches) if first else 0.0
    ours_s = ours.run(batches)
    return ours_s, peer_s or peer.run(batches)


def _scaling(farm: Any, model: Any, batch: Any, batches: int) -> Iterator[Measurement]:
    """Yield batches a second of 1, 2, ... nodes with a device each, up to this machine's cores."""
    # the first node takes no more devices, so each step adds a node
    most = len(os.sched_getaffinity(0))
    platform_nodes = [farm.nodes[0]]
    alone = 0.0
    for count in range(1, most + 1):
        while len(platform_nodes) < count:
            platform_nodes.append(farm.add((_PLATFORM,)))
        actors = _actors(model, count, 1.0, spread=True)
        side = _Actors(actors, batch)
        side.run(_WARM)
        rate = count / side.run(batches)
        alone = alone or rate
        yield compared(
            BENCH, f"batches/s of {count} node{'s' if count > 1 else ''}", "1/s", rate, "1 node", alone
        )
        _kill(actors)


def _batch(model: BenchModel, rows: int) -> dict[str, Any]:
    rng = np.random.default_rng(1)
    if len(model.shapes) != 1:
        raise ToolError(
            f"model {model.name}",
            found=f"{len(model.shapes)} shapes",
            expected="one: --shape NAME=1,D,D,... of its only input",
        )
    ((name, shape),) = model.shapes.items()
    return {name: rng.random((rows, *shape[1:]), np.float32)}


def _actors(model: Any, count: int, devices: float, spread: bool = False) -> list[Any]:
    import ray

    from softnpu import farm

    kind = ray.remote(farm.Predictor).options(
        num_cpus=0,
        resources={farm.resource(_PLATFORM): devices},
        scheduling_strategy="SPREAD" if spread else "DEFAULT",
    )
    return [kind.remote(model) for _ in range(count)]


def _kill(actors: Sequence[Any]) -> None:
    import ray

    for actor in actors:
        ray.kill(actor)


class _Actors:
    """Predictors in actors that read the batch from the object store."""

    def __init__(self, actors: Sequence[Any], batch: Any) -> None:
        import ray

        self._actors = actors
        self._batch = ray.put(batch)

    def run(self, batches: int) -> float:
        """Return seconds for a batch of each actor, over this many."""
        import ray

        begun = time.monotonic()
        left = {id(actor): batches for actor in self._actors}
        flight: dict[Any, Any] = {}
        for actor in self._actors:
            for _ in range(min(_AHEAD, batches)):
                self._send(actor, left, flight)
        while flight:
            (done,), _ = ray.wait(list(flight), timeout=_DEADLINE_S)
            ray.get(done)
            actor = flight.pop(done)
            if left[id(actor)]:
                self._send(actor, left, flight)
        return (time.monotonic() - begun) / batches

    def _send(self, actor: Any, left: dict[int, int], flight: dict[Any, Any]) -> None:
        left[id(actor)] -= 1
        flight[actor.__call__.remote(self._batch)] = actor


class _Processes:
    """The same in processes without Ray."""

    def __init__(self, socket: Path, model: Any, count: int, batch: Any) -> None:
        from softnpu.farm import blobs

        spawn = multiprocessing.get_context("spawn")
        path = blobs.fetched(model, _PLATFORM)
        self._pipes: list[Connection] = []
        self._processes = []
        for _ in range(count):
            ours, theirs = spawn.Pipe()
            process = spawn.Process(
                target=_compute, args=(theirs, socket, path, model.name, batch), daemon=True
            )
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)

    def __enter__(self) -> _Processes:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(self, batches: int) -> float:
        """Return seconds for a batch of each process, over this many."""
        begun = time.monotonic()
        for pipe in self._pipes:
            pipe.send(batches)
        for pipe in self._pipes:
            if not pipe.poll(_DEADLINE_S) or pipe.recv() != batches:
                raise ToolError("a process", found="no answer", expected=f"{batches} batches")
        return (time.monotonic() - begun) / batches

    def close(self) -> None:
        """End the processes; idempotent."""
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.join(_DEADLINE_S)
        self._pipes, self._processes = [], []


def _compute(pipe: Connection, socket: Path, path: Path, name: str, batch: Any) -> None:
    """Compute as many batches as the pipe requests, repeatedly, until it is closed."""
    from softnpu.driver import Lease
    from softnpu.farm.request_pool import RequestPool
    from softnpu.plugin import Core

    with Lease.take(socket, platform=_PLATFORM, share=WHOLE_DEVICE // 2) as lease:
        os.environ.update(lease.environment())
        core = Core()
        pool = RequestPool(name, [core.import_model(path, device) for device in core.available_devices])
        while True:
            try:
                batches = pipe.recv()
            except EOFError:
                return
            for _ in range(batches):
                pool.infer(*pool.rules.checked(batch, ()))
            pipe.send(batches)
