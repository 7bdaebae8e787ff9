"""The engine's C++ part alone, with real rings, fences and queue states, and the runner that teaches it."""

from __future__ import annotations

import ctypes
import gc
import os
import select
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from softnpu.emulator.common import linux
from softnpu.emulator.common.spin import SpinBudget
from softnpu.emulator.engine.counters import Counters
from softnpu.emulator.engine.fast_path import native_calls
from softnpu.emulator.engine.fast_path.native_calls import FastPath
from softnpu.emulator.engine.fast_path.native_records import Kind, PreparedRecord
from softnpu.emulator.engine.fast_path.prepared import CalledInference, PreparedSubmissions
from softnpu.emulator.engine.memory.staging import Staging
from softnpu.emulator.engine.queues.context import EngineContext
from softnpu.emulator.engine.queues.queue import EngineQueue
from softnpu.emulator.engine.queues.queue_table import QueueTable
from softnpu.emulator.engine.queues.scheduler import Scheduler
from softnpu.emulator.engine.running.faults import InjectedFaults
from softnpu.emulator.engine.running.overlap import Overlap
from softnpu.emulator.engine.running.runner import Runner
from softnpu.emulator.engine.share import Share
from softnpu.emulator.interface import commands as cmd
from softnpu.emulator.interface import records
from softnpu.emulator.interface.records import PAGE
from softnpu.emulator.interface.result import ErrorInfo
from softnpu.emulator.interface.ring import DriverRing
from softnpu.emulator.interface.shared import EventRecord, FenceRecord, SharedMapping
from softnpu.emulator.links import engine as link
from softnpu.emulator.links.internal_errors import InternalErrors
from softnpu.emulator.platforms import check_platform

RING, FENCE, COMMANDS, DATA = 1, 2, 3, 4
"""Memory handles; each has its own pages."""
SLOTS = 4
_PAGES = {RING: 0, FENCE: 1, COMMANDS: 2, DATA: 3}
_INFER = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p)


class Session:
    """A session with one queue: the driver's end of its ring, a fence, an event, a page of data."""

    def __init__(self, rig: Rig, number: int, priority: int) -> None:
        self.doorbell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        fd = linux.memfd("fast-path", PAGE * len(_PAGES))
        self.mapping = SharedMapping(fd, PAGE * len(_PAGES))
        staging_fd = linux.memfd("staging")
        rig._fds.append(staging_fd)
        staging = Staging(staging_fd)
        self.context = EngineContext(number, number, self.doorbell, Share(), staging, lambda: None)
        segment = link.SegmentAdd(context=number, segment=1, size=PAGE * len(_PAGES))
        self.context.space.add_segment(segment, fd)
        for handle, page in _PAGES.items():
            self.context.space.add_memory(handle, 1, page * PAGE, PAGE)
        message = link.QueueAdd(
            context=number, queue=1, ring=RING, slots=SLOTS, priority=priority, turbo=False, state=number
        )
        self.queue = EngineQueue(self.context, message, self.context.space.memory(RING), rig.states)
        rig.queues.add(self.queue)
        rig.queues.wake(self.queue)
        self.ring = DriverRing(self.mapping, 0, SLOTS)
        self.fence = FenceRecord(self.mapping, PAGE)
        self.event = EventRecord(self.mapping, PAGE + 64)
        self._tail = self._tickets = self._size = 0

    def record(self, *commands: cmd.Command) -> None:
        """Write the command buffer."""
        data = cmd.encode_buffer([cmd.encode_command(command) for command in commands])
        self.mapping.buffer[2 * PAGE : 2 * PAGE + len(data)] = data
        self._size = len(data)

    def submit(self, *, cancelled: bool = False) -> int:
        """Submit it again, with the fence; return the ticket."""
        self._tail += 1
        self._tickets += 1
        ticket = 1000 + self._tickets
        self.fence.arm(ticket)
        if cancelled:
            self.fence.cancel(ticket)
        self.ring.fill(self._tail, COMMANDS, self._size, FENCE, 0, ticket)
        self.ring.publish(self._tail)
        return ticket

    @property
    def prepared(self) -> PreparedRecord:
        """The prepared record of its only submission."""
        assert isinstance(self.queue.prepared, PreparedSubmissions)
        (prepared,) = self.queue.prepared._by_content.values()
        return prepared.record

    @property
    def state_words(self) -> memoryview:
        """The state of its queue, which outlives the engine."""
        return self.queue.state_words


class Raised(InternalErrors):
    """An error of an engine under test is never the end of just one submission."""

    def __init__(self) -> None:
        super().__init__("engine")

    def note(self, error: Exception, whose: str, object: str) -> ErrorInfo:  # noqa: ARG002
        raise AssertionError(whose) from error


class Rig:
    """An engine without a supervisor. A call ends as soon as there is nothing to run."""

    def __init__(self) -> None:
        self._fds = [linux.memfd("states", link.STATES_SIZE), linux.memfd("page", records.status_size(1))]
        self._states = linux.map_shared(self._fds[0], link.STATES_SIZE)
        self.states = memoryview(self._states).cast("Q")
        self.injections = self.states[link.LIVENESS // 8 + link.INJECTION_MESSAGES :]
        self.queues, self.scheduler = QueueTable(), Scheduler()
        self.counters = Counters(self._fds[1], 1, 0)
        platform = check_platform("4000")
        self.poller = select.epoll()
        self.channel = os.eventfd(1, os.EFD_CLOEXEC)  # ready from the start, as a channel with a message
        self._fds.append(self.channel)
        self.poller.register(self.channel, select.EPOLLIN)
        self.loop = SimpleNamespace(alive=True, send=print, read_messages=int, poll_doorbells=int)
        self.overlap = Overlap(self.queues, self.counters, False)
        self.runner = Runner(
            cast(Any, self.loop),
            self.queues,
            self.scheduler,
            self.counters,
            self.overlap,
            InjectedFaults(2000),
            platform,
            None,
            Raised(),
            2000,
        )
        library = native_calls.library()
        if library is None:
            pytest.skip("the part of the engine in C++ is not built")
        self.fast_path = self.runner.fast_path = FastPath(
            library,
            self.queues,
            self.scheduler,
            self.counters,
            self.injections,
            self.poller.fileno(),
            SpinBudget(0),
            self.overlap.copies,
            platform.timer_ns_per_tick,
        )
        self._sessions: list[Session] = []

    def session(self, priority: int = 1) -> Session:
        """Add a session."""
        self._sessions.append(Session(self, len(self._sessions) + 1, priority))
        return self._sessions[-1]

    def teach(self, session: Session, *commands: cmd.Command) -> None:
        """Have Python run a submission of these commands until it is prepared."""
        session.record(*commands)
        for _ in range(2):
            session.submit()
            self.runner.run(session.queue)
        assert session.prepared.size

    def call(self) -> bool:
        """Let C++ run prepared submissions; return whether it ran all that there was."""
        for session in self._sessions:
            if session.queue not in self.queues.awake:
                self.queues.wake(session.queue)
        while self.fast_path.call() == [self.channel]:  # it polls now and then, and finds a message
            if not any(queue.pending() for queue in self.queues.awake):
                return True
        return False

    def infer_by(self, session: Session, infer: Callable[[], int]) -> None:
        """Replace the first step of the session's submissions by an inference that makes this call."""
        self._callback = _INFER(lambda _: infer())
        self.fast_path._record.infer = ctypes.cast(self._callback, ctypes.c_void_p)
        session.prepared.steps[0].kind = Kind.INFER

    def call_to(self, session: Session, inference: Any) -> CalledInference:
        """Replace the first step of the session's submissions by a call of this inference."""
        prepared = session.queue.prepared
        assert isinstance(prepared, PreparedSubmissions)
        called = CalledInference(session.queue, prepared.record, inference)
        ((content, submission),) = prepared._by_content.items()
        submission.called, prepared._called[id(inference)] = called, (inference, {content})
        submission.record.steps[0].kind, submission.record.steps[0].at = Kind.CALL, id(called)
        return called

    def close(self) -> None:
        """Release everything."""
        for session in self._sessions:
            session.context.close()
        self.poller.close()
        for fd in self._fds:
            os.close(fd)
        self.__dict__.clear()
        gc.collect()
