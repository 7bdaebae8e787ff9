"""Graphs of several sessions: compiled, shared, loaded and run, while clients, engines, compilers die."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import invariant, precondition, rule

from softnpu.driver import ZeResult
from softnpu.emulator.interface import records
from tests.conftest import StartDaemon
from tests.stateful.daemon_model import (
    Client,
    ModelMemory,
    SequenceDaemons,
    SessionsModel,
    run,
    short_and_long,
    some,
    zeros,
)
from tests.support.models import Array, write_scale

_CLIENTS, _GRAPHS, _COUNT, _SLOTS, _BUFFER = 3, 4, 256, 8, 32 * 1024
_BYTES = 4 * _COUNT
_BIG = 2 << 20
_LONG = 300  # times that a list fills big memory: an engine is to die in the middle of it
_FACTORS = (0.5, 1.5, 3.0)


@dataclass
class ModelGraph:
    """A graph: its model, and whether it is on the device for its session."""

    name: str
    factor: float
    initialized: bool = False


@dataclass
class SessionModel:
    """A client's state beyond its accounts. `compiling`: name and factor of jobs in flight."""

    client: Client
    graphs: list[ModelGraph] = field(default_factory=list)
    compiling: dict[str, float] = field(default_factory=dict)
    submitted: int = 0


class Graphs(SessionsModel[SessionModel]):
    """Every inference gives the numbers of its own model, and images are shared and released."""

    def __init__(self, daemons: SequenceDaemons, models: dict[float, Path]) -> None:
        super().__init__(daemons)
        self.models = models
        self.worker_killed = False
        self.at_risk: set[str] = set()

    # ------------------------------------------------------------ connecting and leaving

    @precondition(lambda self: len(self.sessions) < _CLIENTS)
    @rule(factor=st.sampled_from(_FACTORS))
    def open_client_with_graph(self, factor: float) -> None:
        client = self.open_client()
        remote = client.remote
        remote.call("context", "context")
        client.contexts.append("context")
        sizes = {"buffer": _SLOTS * _BUFFER, "fences": _SLOTS * records.SIGNAL_SIZE, "big": _BIG}
        sizes |= {f"in {slot}": _BYTES for slot in range(_SLOTS)}
        sizes |= {f"out {slot}": _BYTES for slot in range(_SLOTS)}
        for name, size in sizes.items():
            remote.call(
                "allocate", "context", name, size, "control" if name in ("buffer", "fences") else "host"
            )
            client.memory[name] = ModelMemory("context", zeros(size))
        remote.call("queue", "context", "queue", _SLOTS)
        client.queues["queue"] = ("context", _SLOTS)
        session = SessionModel(client)
        self.sessions.append(session)
        name = self._begin(session, factor)
        assert remote.call("compiled", name) == 0
        remote.call("initialize", name)
        session.graphs.append(ModelGraph(name, factor, initialized=True))
        client.graphs[name] = "context"

    # ------------------------------------------------------------ compiling

    @precondition(lambda self: self.sessions)
    @rule(which=some, factor=st.sampled_from(_FACTORS))
    def begin_to_compile(self, which: int, factor: float) -> None:
        session = self.session(which)
        if len(session.graphs) + len(session.compiling) == _GRAPHS:
            return
        session.compiling[self._begin(session, factor)] = factor

    def _begin(self, session: SessionModel, factor: float) -> str:
        name = self.name("graph")
        session.client.remote.call("compile", "context", name, str(self.models[factor]))
        return name

    @precondition(lambda self: any(session.compiling for session in self.sessions))
    @rule(which=some)
    def wait_for_a_compilation(self, which: int) -> None:
        session, name = self._compiling(which)
        factor = session.compiling.pop(name)
        result = session.client.remote.call("compiled", name)
        if name in self.at_risk:
            # it may have ended before its worker did: the next step must not depend on that
            assert result in (0, ZeResult.ERROR_MODULE_BUILD_FAILURE)
            self._drop(session, name)
            return
        assert result == 0
        session.graphs.append(ModelGraph(name, factor))
        session.client.graphs[name] = "context"

    @precondition(lambda self: any(session.compiling for session in self.sessions))
    @rule(which=some)
    def cancel_a_compilation(self, which: int) -> None:
        session, name = self._compiling(which)
        del session.compiling[name]
        session.client.remote.call("cancel_compile", name)
        self._drop(session, name)

    @precondition(lambda self: any(session.compiling for session in self.sessions) and not self.worker_killed)
    @rule()
    def a_compiler_dies(self) -> None:
        workers = self.status().compiler_pids
        self.worker_killed = True
        self.at_risk = {name for session in self.sessions for name in session.compiling}
        for pid in workers:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue  # it has ended by itself

    def _compiling(self, which: int) -> tuple[SessionModel, str]:
        jobs = [(session, name) for session in self.sessions for name in session.compiling]
        return jobs[which % len(jobs)]

    @staticmethod
    def _drop(session: SessionModel, name: str) -> None:
        """Drop a graph that may or may not exist."""
        if session.client.remote.call("has_graph", name):
            session.client.remote.call("drop_graph", name)

    # ------------------------------------------------------------ graphs

    @precondition(lambda self: any(session.graphs for session in self.sessions))
    @rule(which=some)
    def initialize(self, which: int) -> None:
        session, graph = self._graph(which)
        session.client.remote.call("initialize", graph.name)
        graph.initialized = True

    @precondition(lambda self: any(session.graphs for session in self.sessions))
    @rule(which=some)
    def destroy(self, which: int) -> None:
        session, graph = self._graph(which)
        session.client.remote.call("drop_graph", graph.name)
        session.graphs.remove(graph)
        del session.client.graphs[graph.name]

    @precondition(lambda self: any(session.graphs for session in self.sessions))
    @rule(which=some, seed=some, count=st.integers(1, _SLOTS))
    def infer(self, which: int, seed: int, count: int) -> None:
        self._infer(which, seed, count, killed=False)

    @precondition(
        lambda self: self.engine_kills < 2 and any(g.initialized for s in self.sessions for g in s.graphs)
    )
    @rule(which=some, seed=some)
    def the_engine_dies_while_it_infers(self, which: int, seed: int) -> None:
        self._infer(which, seed, _SLOTS, killed=True)

    def _infer(self, which: int, seed: int, count: int, killed: bool) -> None:
        session, graph = self._graph(which, initialized=killed)
        remote = session.client.remote
        random = np.random.default_rng(seed)
        expected: list[Array] = []
        numbers = []
        for slot in range(count):
            data = random.standard_normal(_COUNT).astype(np.float32)
            remote.call("fill_floats", f"in {slot}", data.tobytes().hex())
            remote.call("write", f"out {slot}", 0, 0, _BYTES)
            expected.append(data * _weights(graph.factor))
            commands: list[list[Any]] = [["fill", "big", 0, _BIG, 7]] * (_LONG if killed else 0)
            commands.append(["infer", graph.name, f"in {slot}", f"out {slot}"])
            at = session.submitted % _SLOTS
            numbers.append(remote.call("submit", "queue", "buffer", at * _BUFFER, commands, "fences", at))
            session.submitted += 1
            if killed and slot == count // 2:
                self.kill_engine()
        for slot, number in enumerate(numbers):
            result = remote.call("wait", "queue", number)
            out = bytes.fromhex(remote.call("content", f"out {slot}"))
            if graph.initialized:
                assert remote.call("fence", "fences", (session.submitted - count + slot) % _SLOTS)[1] == 0
                assert result == 0
                assert out == expected[slot].tobytes(), f"numbers of {graph.name}, factor {graph.factor}"
            else:
                assert out == bytes(_BYTES), "a graph that is not on the device does nothing"
                last = remote.call("fence", "fences", (session.submitted - count + slot) % _SLOTS)[1]
                assert last == ZeResult.ERROR_UNINITIALIZED

    def _graph(self, which: int, initialized: bool = False) -> tuple[SessionModel, ModelGraph]:
        graphs = [
            (session, graph)
            for session in self.sessions
            for graph in session.graphs
            if graph.initialized or not initialized
        ]
        return graphs[which % len(graphs)]

    # ------------------------------------------------------------ invariants

    @invariant()
    def accounts_are_exact(self) -> None:
        if any(session.compiling for session in self.sessions):
            return  # a graph may arrive at any moment
        self.check_accounts()
        factors = {graph.factor for session in self.sessions for graph in session.graphs}
        images = self.status().engines[0].images
        assert images == len(factors), f"{images} images, and graphs of {factors}"
        assert self.status().users[0].compiles == 0

    @invariant()
    def nobody_is_blamed(self) -> None:
        engine = self.status().engines[0]
        assert (engine.aborted, engine.offences, engine.hangs) == (0, 0, 0)


def _weights(factor: float) -> Array:
    """Return the constants that `write_scale` makes."""
    return np.full(_COUNT, factor, np.float32) + np.arange(_COUNT, dtype=np.float32) / _COUNT


@short_and_long
def test_graphs(start_daemon: StartDaemon, private_dir: Path, long: bool) -> None:
    models = {
        factor: write_scale(private_dir, factor, name=f"scale_{number}", count=_COUNT)
        for number, factor in enumerate(_FACTORS)
    }
    daemons = SequenceDaemons(start_daemon)
    run(lambda: Graphs(daemons, models), examples=5, steps=30, long=long)
