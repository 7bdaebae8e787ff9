"""The control messages of tracing; part of `messages`. `trace` has the rings."""

from __future__ import annotations

import enum

import msgspec

from softnpu.emulator.interface.message import Message
from softnpu.emulator.interface.trace import DEFAULT_RECORDS


class TraceRole(enum.StrEnum):
    """The process that writes a ring."""

    CLIENT = "client"
    SUPERVISOR = "supervisor"
    ENGINE = "engine"


class TraceStart(Message, frozen=True, kw_only=True, tag="trace_start"):
    """Begin a trace, with rings of `records` records (a power of two). Answer: `TraceStarted`.

    `layers`: with the layers of inferences. It ends with `TraceStop`, with the connection, or after 10 s
    without `TraceRings`.
    """

    records: int = DEFAULT_RECORDS
    layers: bool = False


class TraceRings(Message, frozen=True, kw_only=True, tag="trace_rings"):
    """Ask for new rings since the last request. Answer: `TraceRingsAnswer`."""


class TraceStop(Message, frozen=True, kw_only=True, tag="trace_stop"):
    """End the trace. Answer: `Ok`."""


class TraceJoin(Message, frozen=True, kw_only=True, tag="trace_join"):
    """Request a session's ring in trace number `trace`. Answer: `TraceJoined`."""

    trace: int


class TraceStarted(Message, frozen=True, kw_only=True, tag="trace_started"):
    """The trace has begun. The word TRACE of the status page is its number while it lasts."""

    trace: int


class TraceRing(msgspec.Struct, frozen=True, kw_only=True):
    """A ring and its writer. `role`: a `TraceRole`. `name`: the program.

    `session`: if it is a client's. `device`: if it is an engine's.
    """

    ring: int
    role: str
    pid: int
    records: int
    session: int = 0
    device: int = 0
    name: str = ""


class TraceRingsAnswer(Message, frozen=True, kw_only=True, tag="trace_rings_answer"):
    """Descriptors: one for each of `rings`, for reading.

    `ended`: rings without a writer. `refused`: sessions that got none so far.
    """

    rings: tuple[TraceRing, ...] = ()
    ended: tuple[int, ...] = ()
    refused: int = 0


class TraceJoined(Message, frozen=True, kw_only=True, tag="trace_joined"):
    """Descriptor: the ring, with room for `records` records."""

    records: int
