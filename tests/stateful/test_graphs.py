"""Graphs of several sessions: compiled, shared, loaded and run, while clients, engines, compilers die."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule

from softnpu.driver import ZeResult
from softnpu.emulator.interface import records
from tests.conftest import StartDaemon, StartPython
from tests.stateful.stage import Stage
from tests.stateful.world import Client, Place, Theatre, World, run, zeros
from tests.support.models import Array, write_scale

_CLIENTS, _GRAPHS, _COUNT, _SLOTS, _BUFFER = 3, 4, 256, 8, 32 * 1024
_BYTES = 4 * _COUNT
_BIG = 2 << 20
_LONG = 300  # times that a list fills big memory: an engine is to die in the middle of it
_FACTORS = (0.5, 1.5, 3.0)
_some = st.integers(0, 1000)


@dataclass
class ModelGraph:
    """A graph: which model it is of, and whether it is on the device for its session."""

    name: str
    factor: float
    initialized: bool = False


@dataclass
class Scene:
    """What one client has beside its accounts. `compiling`: name and factor of jobs under way."""

    client: Client
    graphs: list[ModelGraph] = field(default_factory=list)
    compiling: dict[str, float] = field(default_factory=dict)
    submitted: int = 0


class Graphs(World):
    """Every inference has the numbers of its own model, and images are shared and given back."""

    def __init__(self, theatre: Theatre, models: dict[float, Path]) -> None:
        super().__init__(theatre)
        self.models = models
        self.scenes: list[Scene] = []
        self.worker_killed = False
        self.at_risk: set[str] = set()

    def scene(self, index: int) -> Scene:
        return self.scenes[index % len(self.scenes)]

    # ------------------------------------------------------------ coming and going

    @precondition(lambda self: len(self.scenes) < _CLIENTS)
    @rule(factor=st.sampled_from(_FACTORS))
    def enter_with_a_graph(self, factor: float) -> None:
        client = self.enter()
        actor = client.actor
        actor.do("context", "context")
        client.contexts.append("context")
        sizes = {"buffer": _SLOTS * _BUFFER, "fences": _SLOTS * records.SIGNAL_SIZE, "big": _BIG}
        sizes |= {f"in {slot}": _BYTES for slot in range(_SLOTS)}
        sizes |= {f"out {slot}": _BYTES for slot in range(_SLOTS)}
        for name, size in sizes.items():
            actor.do("allocate", "context", name, size, "control" if name in ("buffer", "fences") else "host")
            client.places[name] = Place("context", zeros(size))
        actor.do("queue", "context", "queue", _SLOTS)
        client.queues["queue"] = ("context", _SLOTS)
        scene = Scene(client)
        self.scenes.append(scene)
        name = self._begin(scene, factor)
        assert actor.do("compiled", name) == 0
        actor.do("initialize", name)
        scene.graphs.append(ModelGraph(name, factor, initialized=True))
        client.graphs[name] = "context"

    @precondition(lambda self: len(self.scenes) > 1)
    @rule(which=_some, killed=st.booleans())
    def a_client_leaves(self, which: int, killed: bool) -> None:
        scene = self.scene(which)
        if killed:
            scene.client.actor.kill()
        else:
            scene.client.actor.leave()
        self.scenes.remove(scene)
        self.clients.remove(scene.client)

    # ------------------------------------------------------------ compiling

    @precondition(lambda self: self.scenes)
    @rule(which=_some, factor=st.sampled_from(_FACTORS))
    def begin_to_compile(self, which: int, factor: float) -> None:
        scene = self.scene(which)
        if len(scene.graphs) + len(scene.compiling) == _GRAPHS:
            return
        scene.compiling[self._begin(scene, factor)] = factor

    def _begin(self, scene: Scene, factor: float) -> str:
        name, xml = self.name("graph"), self.models[factor]
        weights = xml.with_suffix(".bin")
        fds = [os.open(path, os.O_RDONLY | os.O_CLOEXEC) for path in (xml, weights)]
        try:
            sizes = xml.stat().st_size, weights.stat().st_size
            scene.client.actor.give("compile", "context", name, *sizes, fds=fds)
        finally:
            for fd in fds:
                os.close(fd)
        return name

    @precondition(lambda self: any(scene.compiling for scene in self.scenes))
    @rule(which=_some)
    def wait_for_a_compilation(self, which: int) -> None:
        scene, name = self._compiling(which)
        factor = scene.compiling.pop(name)
        result = scene.client.actor.do("compiled", name)
        if name in self.at_risk:
            # it may have ended before its worker did: what comes next must not depend on that
            assert result in (0, ZeResult.ERROR_MODULE_BUILD_FAILURE)
            self._drop(scene, name)
            return
        assert result == 0
        scene.graphs.append(ModelGraph(name, factor))
        scene.client.graphs[name] = "context"

    @precondition(lambda self: any(scene.compiling for scene in self.scenes))
    @rule(which=_some)
    def cancel_a_compilation(self, which: int) -> None:
        scene, name = self._compiling(which)
        del scene.compiling[name]
        scene.client.actor.do("call_off", name)
        self._drop(scene, name)

    @precondition(lambda self: any(scene.compiling for scene in self.scenes) and not self.worker_killed)
    @rule()
    def a_compiler_dies(self) -> None:
        workers = self.status().compiler_pids
        self.worker_killed = True
        self.at_risk = {name for scene in self.scenes for name in scene.compiling}
        for pid in workers:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue  # it has ended by itself

    def _compiling(self, which: int) -> tuple[Scene, str]:
        jobs = [(scene, name) for scene in self.scenes for name in scene.compiling]
        return jobs[which % len(jobs)]

    @staticmethod
    def _drop(scene: Scene, name: str) -> None:
        """A graph that may or may not have come into being."""
        if scene.client.actor.do("has_graph", name):
            scene.client.actor.do("drop_graph", name)

    # ------------------------------------------------------------ graphs

    @precondition(lambda self: any(scene.graphs for scene in self.scenes))
    @rule(which=_some)
    def initialize(self, which: int) -> None:
        scene, graph = self._graph(which)
        scene.client.actor.do("initialize", graph.name)
        graph.initialized = True

    @precondition(lambda self: any(scene.graphs for scene in self.scenes))
    @rule(which=_some)
    def destroy(self, which: int) -> None:
        scene, graph = self._graph(which)
        scene.client.actor.do("drop_graph", graph.name)
        scene.graphs.remove(graph)
        del scene.client.graphs[graph.name]

    @precondition(lambda self: any(scene.graphs for scene in self.scenes))
    @rule(which=_some, seed=_some, count=st.integers(1, _SLOTS))
    def infer(self, which: int, seed: int, count: int) -> None:
        self._infer(which, seed, count, killed=False)

    @precondition(
        lambda self: self.engine_kills < 2 and any(g.initialized for s in self.scenes for g in s.graphs)
    )
    @rule(which=_some, seed=_some)
    def the_engine_dies_while_it_infers(self, which: int, seed: int) -> None:
        self._infer(which, seed, _SLOTS, killed=True)

    def _infer(self, which: int, seed: int, count: int, killed: bool) -> None:
        scene, graph = self._graph(which, initialized=killed)
        actor = scene.client.actor
        random = np.random.default_rng(seed)
        expected: list[Array] = []
        numbers = []
        for slot in range(count):
            data = random.standard_normal(_COUNT).astype(np.float32)
            actor.do("fill_floats", f"in {slot}", data.tobytes().hex())
            actor.do("write", f"out {slot}", 0, 0, _BYTES)
            expected.append(data * _weights(graph.factor))
            orders: list[list[Any]] = [["fill", "big", 0, _BIG, 7]] * (_LONG if killed else 0)
            orders.append(["infer", graph.name, f"in {slot}", f"out {slot}"])
            at = scene.submitted % _SLOTS
            numbers.append(actor.do("submit", "queue", "buffer", at * _BUFFER, orders, "fences", at))
            scene.submitted += 1
            if killed and slot == count // 2:
                self.kill_engine()
        for slot, number in enumerate(numbers):
            result = actor.do("wait", "queue", number)
            out = bytes.fromhex(actor.do("content", f"out {slot}"))
            if graph.initialized:
                assert actor.do("fence", "fences", (scene.submitted - count + slot) % _SLOTS)[1] == 0
                assert result == 0
                assert out == expected[slot].tobytes(), f"numbers of {graph.name}, factor {graph.factor}"
            else:
                assert out == bytes(_BYTES), "a graph that is not on the device does nothing"
                last = actor.do("fence", "fences", (scene.submitted - count + slot) % _SLOTS)[1]
                assert last == ZeResult.ERROR_UNINITIALIZED

    def _graph(self, which: int, initialized: bool = False) -> tuple[Scene, ModelGraph]:
        graphs = [
            (scene, graph)
            for scene in self.scenes
            for graph in scene.graphs
            if graph.initialized or not initialized
        ]
        return graphs[which % len(graphs)]

    # ------------------------------------------------------------ what always holds

    @invariant()
    def accounts_are_exact(self) -> None:
        if any(scene.compiling for scene in self.scenes):
            return  # a graph may come at any moment
        self.check_accounts()
        factors = {graph.factor for scene in self.scenes for graph in scene.graphs}
        images = self.status().engines[0].images
        assert images == len(factors), f"{images} images, and graphs of {factors}"
        assert self.status().users[0].compiles == 0

    @invariant()
    def nobody_is_blamed(self) -> None:
        engine = self.status().engines[0]
        assert (engine.aborted, engine.offences, engine.hangs) == (0, 0, 0)


def _weights(factor: float) -> Array:
    """The constants that `write_scale` makes."""
    return np.full(_COUNT, factor, np.float32) + np.arange(_COUNT, dtype=np.float32) / _COUNT


@pytest.mark.parametrize(
    "long", [False, pytest.param(True, marks=[pytest.mark.soak, pytest.mark.timeout(3600)])]
)
def test_graphs(start_daemon: StartDaemon, start_python: StartPython, private_dir: Path, long: bool) -> None:
    models = {
        factor: write_scale(private_dir, factor, name=f"scale_{number}", count=_COUNT)
        for number, factor in enumerate(_FACTORS)
    }
    theatre = Theatre(start_daemon, Stage(start_python, private_dir))
    run(lambda: Graphs(theatre, models), examples=5, steps=30, long=long)
