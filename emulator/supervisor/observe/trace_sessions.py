"""The running trace: its reader, and the rings of the processes that write it.

The tracer polls for rings. When it leaves, asks for the end, or has not asked for rings for long, the trace
ends: the word in the status page is 0 again, and the daemon keeps nothing of it.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable

import msgspec

from softnpu.emulator.common import linux
from softnpu.emulator.interface import messages as msg
from softnpu.emulator.interface import trace
from softnpu.emulator.interface import trace_messages as tracing
from softnpu.emulator.interface.messages import DeviceInfo
from softnpu.emulator.interface.result import ZeResult, refuse
from softnpu.emulator.interface.trace_messages import TraceRing, TraceRole
from softnpu.emulator.links import engine as link
from softnpu.emulator.supervisor.engines.device import Device
from softnpu.emulator.supervisor.engines.status_page import StatusPage
from softnpu.emulator.supervisor.engines.virtual_function import VirtualFunction
from softnpu.emulator.supervisor.reactor import Reactor, Timer
from softnpu.emulator.supervisor.requests.session import Session
from softnpu.emulator.supervisor.undoing import undoing

log = logging.getLogger(__name__)

TracerRequest = tracing.TraceStart | tracing.TraceRings | tracing.TraceStop

Answer = Callable[[msg.Message, list[int]], None]
_RINGS_AN_ANSWER = 12
_MOST_NOT_FETCHED = 64
"""Rings that the tracer has not fetched yet. Only these keep memory here."""
_MOST_JOINED = 1024
"""Sessions with a ring; each has at most one."""


class _Trace(msgspec.Struct):
    """One trace. `fetched` rings belong to the tracer and their writers, the others wait for it with a
    descriptor each."""

    number: int
    tracer: int
    records: int
    layers: bool
    waiting: list[tuple[TraceRing, int]] = msgspec.field(default_factory=list)
    ended: list[int] = msgspec.field(default_factory=list)
    sessions: dict[int, int] = msgspec.field(default_factory=dict)
    engines: dict[VirtualFunction, int] = msgspec.field(default_factory=dict)
    rings: int = 0
    refused: int = 0
    silence: Timer | None = None


class TraceSessions:
    """At most one trace at a time."""

    def __init__(
        self, reactor: Reactor, page: StatusPage, devices: Iterable[Device], silence_s: float
    ) -> None:
        self._silence_s = silence_s
        self._reactor = reactor
        self._page = page
        self._devices = devices
        self._last = 0
        self._trace: _Trace | None = None

    def answer(self, client: int, request: TracerRequest, post: Answer) -> None:
        """Serve a tracer: `post` sends the answer, with descriptors."""
        match request:
            case tracing.TraceStart():
                post(self._start(client, request), [])
            case tracing.TraceRings():
                self._rings(self._traced_by(client), post)
            case tracing.TraceStop():
                self._traced_by(client)
                self.close()
                post(msg.Ok(), [])

    def join(self, session: Session, number: int, answer: Answer) -> None:
        """Give a session its ring; refuses one that has it, and a trace that is over."""
        current = self._trace
        if current is None or current.number != number or session.number in current.sessions:
            raise refuse(
                ZeResult.ERROR_INVALID_ARGUMENT,
                "trace",
                found=f"session {session.number} asks for a ring in trace {number}",
                expected="one ring in the trace that the status page names",
            )
        if len(current.sessions) >= _MOST_JOINED or len(current.waiting) >= _MOST_NOT_FETCHED:
            current.refused += 1
            raise refuse(
                ZeResult.ERROR_OUT_OF_HOST_MEMORY,
                "trace",
                found=f"{len(current.sessions)} sessions with rings, {len(current.waiting)} rings to fetch",
                expected=f"at most {_MOST_JOINED} and {_MOST_NOT_FETCHED}",
            )
        fd, ring = self._add(
            current, TraceRole.CLIENT, session.pid, session=session.number, name=session.client
        )
        try:
            answer(tracing.TraceJoined(records=current.records), [fd])
            current.sessions[session.number] = ring
        except BaseException:
            self._end(current, ring)
            raise
        finally:
            os.close(fd)

    def announce(self, device: DeviceInfo, function: VirtualFunction) -> None:
        """Start tracing in a new engine; the ring of the previous one has ended."""
        current = self._trace
        if current is None:
            return
        self.engine_gone(function)
        if not function.engine_pid:
            return  # the next one will be announced
        fd, ring = self._add(
            current, TraceRole.ENGINE, function.engine_pid, device=device.index, name=device.name
        )
        try:
            current.engines[function] = ring
            function.post_trace(link.TraceBegin(records=current.records, layers=current.layers), [os.dup(fd)])
        finally:
            os.close(fd)

    def engine_gone(self, function: VirtualFunction) -> None:
        """Record that an engine's ring has no writer any more."""
        if self._trace is not None:
            self._end(self._trace, self._trace.engines.pop(function, 0))

    def client_gone(self, number: int) -> None:
        """Note the end of a session, which may be the tracer's."""
        current = self._trace
        if current is None:
            return
        self._end(current, current.sessions.pop(number, 0))
        if current.tracer == number:
            log.info("trace %d: its reader has left", current.number)
            self.close()

    def close(self) -> None:
        """End the trace, if one is running."""
        current, self._trace = self._trace, None
        if current is None:
            return
        self._page.set_trace(0)
        trace.stop()
        for function in (function for device in self._devices for function in device.functions):
            function.post_trace(link.TraceEnd(), [])
        for _, fd in current.waiting:
            os.close(fd)
        if current.silence is not None:
            current.silence.cancel()
        log.info("trace %d ends", current.number)

    # ------------------------------------------------------------

    def _start(self, client: int, request: tracing.TraceStart) -> tracing.TraceStarted:
        if self._trace is not None:
            raise refuse(
                ZeResult.ERROR_NOT_AVAILABLE,
                "trace",
                found=f"client {self._trace.tracer} makes one",
                expected="one at a time",
                hint="wait for its end",
            )
        records = request.records
        if not trace.MIN_RECORDS <= records <= trace.MAX_RECORDS or records & (records - 1):
            raise refuse(
                ZeResult.ERROR_INVALID_SIZE,
                "trace",
                found=f"rings of {records} records",
                expected=f"a power of two, {trace.MIN_RECORDS} to {trace.MAX_RECORDS}",
            )
        self._last += 1
        current = self._trace = _Trace(self._last, client, records, request.layers)
        with undoing() as undo:
            undo.callback(self.close)
            fd, _ = self._add(current, TraceRole.SUPERVISOR, os.getpid(), name="supervisor")
            try:
                trace.start(trace.TraceWriter(fd, records))
            finally:
                os.close(fd)
            for device in self._devices:
                for function in device.functions:
                    self.announce(device.info, function)
            self._listen(current)
            self._page.set_trace(current.number)
        log.info("client %d makes trace %d", client, current.number)
        return tracing.TraceStarted(trace=current.number)

    def _rings(self, current: _Trace, post: Answer) -> None:
        self._listen(current)
        now, waiting = current.waiting[:_RINGS_AN_ANSWER], current.waiting[_RINGS_AN_ANSWER:]
        # a ring is announced before its end
        later = {ring.ring for ring, _ in waiting}
        ended = tuple(ring for ring in current.ended if ring not in later)
        answer = tracing.TraceRingsAnswer(
            rings=tuple(ring for ring, _ in now), ended=ended, refused=current.refused
        )
        post(answer, [fd for _, fd in now])
        current.waiting = waiting
        current.ended = [ring for ring in current.ended if ring in later]
        for _, fd in now:
            os.close(fd)

    def _listen(self, current: _Trace) -> None:
        """Wait for the tracer's next request."""
        if current.silence is not None:
            current.silence.cancel()
        current.silence = self._reactor.after(self._silence_s, self._end_silent)

    def _end_silent(self) -> None:
        log.warning("the trace ends: its reader has not asked for rings for %g s", self._silence_s)
        self.close()

    def _traced_by(self, client: int) -> _Trace:
        current = self._trace
        if current is None or current.tracer != client:
            raise refuse(
                ZeResult.ERROR_INVALID_ARGUMENT,
                "trace",
                found=f"client {client} makes none",
                expected="a trace that this connection has begun, and that has not ended",
                hint="begin one; it ends when nobody asks for rings for 10 s",
            )
        return current

    def _add(
        self, current: _Trace, role: TraceRole, pid: int, session: int = 0, device: int = 0, name: str = ""
    ) -> tuple[int, int]:
        """Create a ring; return a descriptor for its writer, and its number."""
        fd = linux.fixed_memfd("trace", trace.ring_size(current.records))
        try:
            reader = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC)
        except BaseException:
            os.close(fd)
            raise
        current.rings += 1
        ring = TraceRing(
            ring=current.rings,
            role=role.value,
            pid=pid,
            records=current.records,
            session=session,
            device=device,
            name=name,
        )
        current.waiting.append((ring, reader))
        return fd, current.rings

    def _end(self, current: _Trace, ring: int) -> None:
        if ring:
            current.ended.append(ring)
