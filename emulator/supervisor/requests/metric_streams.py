"""Streams of samples: the counters of a device, written into memory of a client at a steady period."""

from __future__ import annotations

import os
import time

import msgspec

from softnpu.emulator.common import linux
from softnpu.emulator.interface import messages as msg
from softnpu.emulator.interface import metrics
from softnpu.emulator.interface.handles import HandleKind, HandleTable
from softnpu.emulator.interface.records import StatusWord
from softnpu.emulator.interface.result import ZeResult, refuse
from softnpu.emulator.supervisor.engines.device import Device
from softnpu.emulator.supervisor.limits import Account
from softnpu.emulator.supervisor.reactor import Reactor, Timer
from softnpu.emulator.supervisor.requests.session_state import Call, SessionState
from softnpu.emulator.supervisor.state.objects import Context
from softnpu.emulator.supervisor.undoing import undoing

_SAMPLES_AT = metrics.STREAM_HEADER.size
_WORDS = (
    StatusWord.BUSY,
    StatusWord.TILE_BUSY,
    StatusWord.SUBMISSIONS,
    StatusWord.COMMANDS,
    StatusWord.INFERENCES,
    StatusWord.OVERLAPPED,
    StatusWord.READ,
    StatusWord.WRITTEN,
    StatusWord.STAGED,
)
"""The fields of a snapshot behind its time."""


class MetricStream:
    """Samples of one device. The client has the memory for reading only."""

    def __init__(self, device: Device, reactor: Reactor, period_ns: int) -> None:
        self._device = device
        self._reactor = reactor
        self._period_ns = period_ns
        self._samples = 0
        fd = linux.fixed_memfd("metrics", metrics.stream_size())
        try:
            self._map = linux.map_shared(fd, metrics.stream_size())
            self.reader_fd = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC)
        finally:
            os.close(fd)
        self._due_ns = time.monotonic_ns()
        self._timer: Timer | None = None
        self._sample()

    def close(self) -> None:
        """End the stream; the client keeps what it has mapped."""
        if self._timer is not None:
            self._timer.cancel()
        self._map.close()
        os.close(self.reader_fd)

    def _sample(self) -> None:
        """Write a sample, then the number of samples: a reader never sees half of one as the newest."""
        self._device.refresh_if_due()
        values = (time.monotonic_ns(), *(self._device.counter(word) for word in _WORDS))
        at = _SAMPLES_AT + self._samples % metrics.STREAM_CAPACITY * metrics.SNAPSHOT.size
        metrics.SNAPSHOT.struct.pack_into(self._map, at, *values)
        self._samples += 1
        metrics.STREAM_HEADER.struct.pack_into(self._map, 0, self._samples, metrics.STREAM_CAPACITY)
        # a period that passed while the daemon was busy is left out
        self._due_ns = max(self._due_ns + self._period_ns, values[0])
        self._timer = self._reactor.after((self._due_ns - values[0]) / 1e9, self._sample)


class _Owned(msgspec.Struct):
    context: Context
    stream: MetricStream


class MetricRequests:
    """The requests of a session on streams."""

    def __init__(self, state: SessionState) -> None:
        self._state = state
        self._streams: HandleTable[_Owned] = HandleTable(HandleKind.STREAM, metrics.MAX_STREAMS)
        self._account = Account(state.user.streams, state.segments)  # a memory file each

    def open(self, call: Call, request: msg.MetricStreamOpen) -> None:
        context = self._state.contexts.get(request.context)
        if not metrics.MIN_PERIOD_NS <= request.period <= metrics.MAX_PERIOD_NS:
            raise refuse(
                ZeResult.ERROR_INVALID_ARGUMENT,
                "metric streamer",
                found=f"sampling period of {request.period} ns",
                expected=f"{metrics.MIN_PERIOD_NS} to {metrics.MAX_PERIOD_NS} ns",
            )
        self._streams.check_room()
        state = self._state
        state.user.streams.check()
        state.segments.check()
        device = self._state.device_of(context)
        with undoing() as undo:
            stream = MetricStream(device, self._state.reactor, request.period)
            undo.callback(self._count)
            undo.callback(stream.close)
            handle = self._streams.add(_Owned(context, stream))
            undo.callback(self._streams.pop, handle)
            self._count()
            self._state.post(call.number, msg.MetricStreamOpened(stream=handle), [stream.reader_fd])

    def close(self, call: Call, request: msg.MetricStreamClose) -> None:
        self._end(request.stream)
        self._state.answer_ok(call)

    def drop_context(self, context: Context) -> None:
        """End the streams of a context that is destroyed."""
        for handle in [handle for handle, owned in self._streams.items() if owned.context is context]:
            self._end(handle)

    def _end(self, handle: int) -> None:
        self._streams.pop(handle).stream.close()
        self._count()

    def _count(self) -> None:
        self._account.set(len(self._streams))
