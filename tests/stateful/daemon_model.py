"""A model of the daemon's accounts, by owner, compared with the daemon's own report."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar, cast

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule, run_state_machine_as_test

from softnpu.emulator.interface import messages as msg
from softnpu.emulator.interface import records
from tests.conftest import StartDaemon
from tests.stateful.remote_session import RemoteSession
from tests.support.daemon import Daemon
from tests.support.models import Array
from tests.support.waiting import wait_gone, wait_until
from tests.support.wire import Wire

_QUIET_S = 20.0
some = st.integers(0, 1000)
short_and_long = pytest.mark.parametrize(
    "long", [False, pytest.param(True, marks=[pytest.mark.soak, pytest.mark.timeout(3600)])]
)


def run(machine: Callable[[], RuleBasedStateMachine], examples: int, steps: int, long: bool) -> None:
    """Run a model. The short form is deterministic; the long one has other sequences in each run."""
    phases = (Phase.generate, Phase.shrink) if long else (Phase.generate,)
    run_state_machine_as_test(
        cast(type[RuleBasedStateMachine], machine),  # it is only called, so a factory will do
        settings=settings(
            max_examples=examples * (40 if long else 1),
            stateful_step_count=steps * (2 if long else 1),
            derandomize=not long,
            database=None,
            deadline=None,
            phases=phases,
            suppress_health_check=list(HealthCheck),
            print_blob=True,
        ),
    )


@dataclass
class ModelMemory:
    """An allocation: its bytes, which the model shares with its importers."""

    context: str
    data: Array
    exportable: bool = False


@dataclass
class Client:
    """A session in the model. `queues` and `graphs`: the context of each."""

    remote: RemoteSession
    contexts: list[str] = field(default_factory=list)
    memory: dict[str, ModelMemory] = field(default_factory=dict)
    queues: dict[str, tuple[str, int]] = field(default_factory=dict)
    graphs: dict[str, str] = field(default_factory=dict)

    @property
    def memory_used(self) -> int:
        rings = sum(records.ring_size(slots) for _, slots in self.queues.values())
        return rings + sum(block.data.size for block in self.memory.values())

    @property
    def allocations(self) -> int:
        return len(self.memory) + len(self.queues)

    @property
    def handles(self) -> int:
        return len(self.contexts) + self.allocations + len(self.queues) + len(self.graphs)

    def drop_context(self, context: str) -> None:
        """Drop a context and everything in it."""
        self.contexts.remove(context)
        self.memory = {name: block for name, block in self.memory.items() if block.context != context}
        self.queues = {name: entry for name, entry in self.queues.items() if entry[0] != context}
        self.graphs = {name: owner for name, owner in self.graphs.items() if owner != context}


class SequenceDaemons:
    """One daemon for all sequences; a new one after a failed sequence."""

    def __init__(self, start_daemon: StartDaemon, **settings: Any) -> None:
        self.clean = False
        self._start = start_daemon
        self._settings = settings
        self._daemon: Daemon | None = None

    def daemon(self) -> Daemon:
        """Return the daemon for the next sequence, which must declare at its end that it is `clean`."""
        if self._daemon is not None and not self.clean:
            self._daemon.kill()
            self._daemon = None
        if self._daemon is None:
            self._daemon = self._start(**self._settings)
        self.clean = False
        return self._daemon


class DaemonModel(RuleBasedStateMachine):
    """A daemon, its clients, and the accounts of both after every step."""

    def __init__(self, daemons: SequenceDaemons) -> None:
        super().__init__()
        self.daemon = daemon = daemons.daemon()
        self.daemons = daemons
        self._agreed = True
        self.clients: list[Client] = []
        self.engine_kills = 0
        self._names = 0
        self._monitor = Wire(daemon.socket)
        self._monitor.hello("monitor")
        self._descriptors = daemon.base_fd_count()
        self._restarts = self.status().engines[0].restarts

    def status(self) -> msg.StatusAnswer:
        return self._monitor.ask(msg.Status(), msg.StatusAnswer)

    def name(self, what: str) -> str:
        self._names += 1
        return f"{what} {self._names}"

    def pick(self, index: int) -> Client:
        return self.clients[index % len(self.clients)]

    def open_client(self) -> Client:
        client = Client(RemoteSession(self.daemon.socket))
        self.clients.append(client)
        return client

    def kill_engine(self) -> None:
        """Kill the engine (SIGKILL). Nobody waits for the next one: that is part of the test."""
        self.engine_kills += 1
        pid = wait_until(lambda: self.status().engines[0].engine_pid, what="an engine to kill")
        os.kill(pid, signal.SIGKILL)
        wait_gone(pid)

    def check_accounts(self) -> None:
        """Check sessions, memory, handles: exact, as soon as the dead are gone."""
        self._agreed = False
        expected = self._expected()
        reported: dict[str, object] = {}

        def agree() -> bool:
            reported.clear()
            reported.update(self._reported(self.status()))
            return reported == expected

        try:
            wait_until(agree, _QUIET_S)
        except AssertionError:
            wrong = {
                key: (reported.get(key), value)
                for key, value in expected.items()
                if reported.get(key) != value
            }
            raise AssertionError(f"reported and expected: {wrong}") from None
        self._agreed = True

    def _expected(self) -> dict[str, object]:
        sessions = {
            client.remote.session: (
                client.memory_used,
                len(client.contexts),
                client.allocations,
                len(client.queues),
                len(client.graphs),
            )
            for client in self.clients
        }
        return {
            "sessions": sessions,
            "device": (
                sum(client.memory_used for client in self.clients),
                sum(len(client.contexts) for client in self.clients),
                sum(len(client.queues) for client in self.clients),
                sum(len(client.graphs) for client in self.clients),
            ),
            "user": (
                len(self.clients) + 1,
                len(self.clients),
                sum(client.memory_used for client in self.clients),
                sum(client.handles for client in self.clients),
            ),
        }

    @staticmethod
    def _reported(state: msg.StatusAnswer) -> dict[str, object]:
        (engine,), (user,) = state.engines, state.users
        sessions = {
            entry.session: (
                entry.memory_used,
                entry.contexts,
                entry.allocations,
                entry.queues,
                entry.graphs,
            )
            for entry in state.sessions
        }
        return {
            "sessions": sessions,
            "device": (engine.memory_used, engine.contexts, engine.queues, engine.graphs),
            "user": (user.connections, user.sessions, user.memory_used, user.handles),
        }

    def teardown(self) -> None:
        """Remaining clients leave; the daemon is as before, and nobody has been blamed for anything."""
        for number, client in enumerate(self.clients):
            if number % 2 or not self._agreed:
                client.remote.kill()
            else:
                client.remote.leave()
        self.clients.clear()
        if not self._agreed:
            self._monitor.close()
            return
        self.check_accounts()
        wait_until(lambda: self.status().engines[0].state == "ready", _QUIET_S, "the engine ready again")
        wait_until(lambda: self.daemon.base_fd_count() <= self._descriptors, _QUIET_S, "descriptors closed")
        engine = self.status().engines[0]
        assert engine.images == 0
        assert engine.restarts == self._restarts + self.engine_kills, "an engine died that nobody killed"
        self._monitor.close()
        self.daemons.clean = True


class Owner(Protocol):
    """A session's state beyond its accounts."""

    client: Client


S = TypeVar("S", bound=Owner)


class SessionsModel(DaemonModel, Generic[S]):
    """A model with more to know of each client."""

    def __init__(self, daemons: SequenceDaemons) -> None:
        super().__init__(daemons)
        self.sessions: list[S] = []

    def session(self, index: int) -> S:
        return self.sessions[index % len(self.sessions)]

    @precondition(lambda self: len(self.sessions) > 1)
    @rule(which=some, killed=st.booleans())
    def close_or_kill_client(self, which: int, killed: bool) -> None:
        session = self.session(which)
        if killed:
            session.client.remote.kill()
        else:
            session.client.remote.leave()
        self.sessions.remove(session)
        self.clients.remove(session.client)


def zeros(size: int) -> Array:
    return np.zeros(size, np.uint8)
