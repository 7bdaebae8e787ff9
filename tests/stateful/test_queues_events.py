"""Queues, fences and events of several sessions, while clients and engines are killed.

Lists wait first and signal last, and read only memory that no list writes: so their results depend neither
on which queue was faster, nor on whether an engine died midway.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any

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
from tests.support.models import Array
from tests.support.waiting import wait_until

_CLIENTS, _QUEUES, _EVENTS, _SLOTS = 3, 4, 6, 8
_BYTES, _BUFFER = 4096, 4096
_NEVER_MS = 3_600_000
_spans = st.tuples(st.integers(0, _BYTES - 1), st.integers(1, 600), st.integers(0, 255))
_data = st.lists(st.tuples(st.sampled_from(["fill", "copy", "barrier"]), _spans), max_size=6)
_events = st.lists(st.integers(0, _EVENTS - 1), max_size=2)


@dataclass
class Submission:
    """A list: the events that it waits for, its work, the events that it signals."""

    waits: list[int]
    data: list[tuple[str, tuple[int, int, int]]]
    signals: list[int]
    fence: int
    cancelled: bool = False


@dataclass
class ModelQueue:
    """A queue and all of its submissions; `done` of them have ended, with these results."""

    name: str
    target: Array
    submissions: list[Submission] = field(default_factory=list)
    results: list[int] = field(default_factory=list)
    lost: bool = False

    @property
    def done(self) -> int:
        return len(self.results)

    @property
    def waiting(self) -> list[Submission]:
        return self.submissions[self.done :]


@dataclass
class SessionModel:
    """A client's state beyond its accounts."""

    client: Client
    context: str
    source: Array
    events: list[bool] = field(default_factory=lambda: [False] * _EVENTS)
    queues: list[ModelQueue] = field(default_factory=list)

    def play(self) -> None:
        """Advance everything that can advance."""
        while any(self._step(queue) for queue in self.queues):
            pass

    def _step(self, queue: ModelQueue) -> bool:
        if not queue.waiting:
            return False
        submission = queue.waiting[0]
        if queue.lost or submission.cancelled:
            result = ZeResult.ERROR_DEVICE_LOST if queue.lost else ZeResult.ERROR_NOT_AVAILABLE
            queue.results.append(int(result))
            return True
        if not all(self.events[event] for event in submission.waits):
            return False
        for kind, (start, size, value) in submission.data:
            end = min(_BYTES, start + size)
            if kind == "fill":
                queue.target[start:end] = value
            elif kind == "copy":
                queue.target[start:end] = self.source[start:end]
        for event in submission.signals:
            self.events[event] = True
        queue.results.append(0)
        return True

    def refers_to(self, event: int) -> bool:
        """Return whether a pending submission waits for the event or signals it."""
        return any(
            event in (*submission.waits, *submission.signals)
            for queue in self.queues
            for submission in queue.waiting
        )


class QueuesAndEvents(SessionsModel[SessionModel]):
    """Results, fences, events and memory match the model after every step."""

    # ------------------------------------------------------------ connecting and leaving

    @precondition(lambda self: len(self.sessions) < _CLIENTS)
    @rule()
    def open_prepared_client(self) -> None:
        client = self.open_client()
        client.remote.call("context", "context")
        client.contexts.append("context")
        session = SessionModel(client, "context", zeros(_BYTES))
        self._allocate(session, "source", _BYTES, "host")
        self._allocate(session, "events", _EVENTS * records.SIGNAL_SIZE, "control")
        self.sessions.append(session)
        self._add_queue(session, "normal")

    def _allocate(self, session: SessionModel, name: str, size: int, kind: str) -> None:
        session.client.remote.call("allocate", session.context, name, size, kind)
        session.client.remote.call("write", name, 0, 0, size)
        session.client.memory[name] = ModelMemory(session.context, zeros(size))

    @precondition(lambda self: self.sessions and self.engine_kills < 1)
    @rule()
    def the_engine_dies(self) -> None:
        self.kill_engine()

    # ------------------------------------------------------------ queues

    @precondition(lambda self: self.sessions)
    @rule(which=some, priority=st.sampled_from(["low", "normal", "high"]))
    def create_queue(self, which: int, priority: str) -> None:
        session = self.session(which)
        if len(session.queues) < _QUEUES:
            self._add_queue(session, priority)

    def _add_queue(self, session: SessionModel, priority: str) -> None:
        queue = ModelQueue(self.name("queue"), zeros(_BYTES))
        session.client.remote.call("queue", session.context, queue.name, _SLOTS, priority)
        session.client.queues[queue.name] = (session.context, _SLOTS)
        self._allocate(session, f"{queue.name} target", _BYTES, "device")
        self._allocate(session, f"{queue.name} buffer", _SLOTS * _BUFFER, "control")
        self._allocate(session, f"{queue.name} fences", _SLOTS * records.SIGNAL_SIZE, "control")
        session.queues.append(queue)

    @precondition(lambda self: any(len(session.queues) > 1 for session in self.sessions))
    @rule(which=some, index=some)
    def destroy_queue(self, which: int, index: int) -> None:
        session = self.session(which)
        if len(session.queues) < 2:
            return
        queue = session.queues.pop(index % len(session.queues))
        session.client.remote.call("drop_queue", queue.name)
        names = [f"{queue.name} {part}" for part in ("target", "buffer", "fences")]
        session.client.remote.call("free", *names)
        del session.client.queues[queue.name]
        for name in names:
            del session.client.memory[name]

    # ------------------------------------------------------------ work

    @precondition(lambda self: self.sessions)
    @rule(which=some, index=some, waits=_events, data=_data, signals=_events)
    def submit(
        self,
        which: int,
        index: int,
        waits: list[int],
        data: list[tuple[str, tuple[int, int, int]]],
        signals: list[int],
    ) -> None:
        session = self.session(which)
        queue = session.queues[index % len(session.queues)]
        if len(queue.waiting) == _SLOTS:
            return
        slot = len(queue.submissions) % _SLOTS
        submission = Submission(waits, data, signals, slot)
        commands: list[list[Any]] = [["wait", "events", event] for event in waits]
        target = f"{queue.name} target"
        for kind, (start, size, value) in data:
            length = min(_BYTES, start + size) - start
            if kind == "fill":
                commands.append(["fill", target, start, length, value])
            elif kind == "copy":
                commands.append(["copy", target, start, "source", start, length])
            else:
                commands.append(["barrier"])
        commands += [["signal", "events", event] for event in signals]
        buffer, fences = f"{queue.name} buffer", f"{queue.name} fences"
        session.client.remote.call("submit", queue.name, buffer, slot * _BUFFER, commands, fences, slot)
        queue.submissions.append(submission)
        session.play()

    @precondition(lambda self: any(queue.waiting for session in self.sessions for queue in session.queues))
    @rule(which=some)
    def signal_what_is_waited_for(self, which: int) -> None:
        blocked = [(s, q) for s in self.sessions for q in s.queues if q.waiting]
        session, queue = blocked[which % len(blocked)]
        events = [event for event in queue.waiting[0].waits if not session.events[event]]
        session.client.remote.call("signal", queue.name, "events", events[0])
        session.events[events[0]] = True
        session.play()

    @precondition(lambda self: any(queue.waiting for session in self.sessions for queue in session.queues))
    @rule(which=some, behind=st.integers(0, 2))
    def cancel(self, which: int, behind: int) -> None:
        blocked = [(s, q) for s in self.sessions for q in s.queues if q.waiting]
        session, queue = blocked[which % len(blocked)]
        submission = queue.waiting[behind % len(queue.waiting)]
        session.client.remote.call("cancel", queue.name, f"{queue.name} fences", submission.fence)
        submission.cancelled = True
        session.play()

    @precondition(lambda self: self.sessions)
    @rule(which=some, event=st.integers(0, _EVENTS - 1))
    def reset_an_event(self, which: int, event: int) -> None:
        session = self.session(which)
        if not session.refers_to(event):
            session.client.remote.call("reset", "events", event)
            session.events[event] = False

    @precondition(lambda self: self.sessions)
    @rule(which=some, value=st.integers(0, 255), start=st.integers(0, _BYTES - 1), size=st.integers(1, 999))
    def write_the_source(self, which: int, value: int, start: int, size: int) -> None:
        session = self.session(which)
        if any(queue.waiting for queue in session.queues):
            return
        end = min(_BYTES, start + size)
        session.client.remote.call("write", "source", start, value, end - start)
        session.source[start:end] = value

    @precondition(lambda self: self.sessions)
    @rule(which=some, index=some)
    def break_a_ring(self, which: int, index: int) -> None:
        session = self.session(which)
        queue = session.queues[index % len(session.queues)]
        if queue.waiting or len(session.queues) < 2:
            return
        session.client.remote.call("break_ring", queue.name)
        queue.submissions.append(Submission([], [], [], -1))
        queue.lost = True
        session.play()

    # ------------------------------------------------------------ invariants

    @invariant()
    def everything_is_as_expected(self) -> None:
        self.check_accounts()
        for session in self.sessions:
            for queue in session.queues:
                self._check_queue(session, queue)
            remote = session.client.remote
            for event, signalled in enumerate(session.events):
                state = remote.call("event", "events", event)
                assert (state > records.EventState.HOST_RESET) == signalled, f"event {event}"

    def _check_queue(self, session: SessionModel, queue: ModelQueue) -> None:
        remote = session.client.remote
        completed = wait_until(
            lambda: max(0, remote.call("completed", queue.name) - queue.done + 1),
            60.0,
            f"submission {queue.done} of {queue.name}",
        )
        assert completed == 1, "something has ended that cannot"
        assert remote.call("lost", queue.name) == queue.lost
        last = list(zip(queue.submissions, queue.results, strict=False))[-_SLOTS:]
        for submission, result in last:
            if submission.fence >= 0 and submission.fence not in {w.fence for w in queue.waiting}:
                assert remote.call("fence", f"{queue.name} fences", submission.fence)[1] == result
        digest = hashlib.blake2b(queue.target.tobytes()).hexdigest()
        assert remote.call("digest", f"{queue.name} target") == digest, f"memory of {queue.name}"


@short_and_long
def test_queues_and_events(start_daemon: StartDaemon, long: bool) -> None:
    daemons = SequenceDaemons(start_daemon, tdr_ms=_NEVER_MS)
    run(lambda: QueuesAndEvents(daemons), examples=6, steps=35, long=long)
