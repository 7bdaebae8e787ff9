"""What the supervisor and an engine say to each other, over a channel of their own.

Both sides are ours and of one version, so nothing here is promised to anybody else. Contexts carry a
number that is unique over all sessions; the handles inside a context are the session's own.
The supervisor sends first and answers the client afterwards, so an engine that meets an unknown handle
in a command needs only to read its channel before it may call the handle bad.
"""

from __future__ import annotations

import struct

import msgspec

from softnpu.emulator.interface.injections import Injection
from softnpu.emulator.interface.messages import Message, WeightSource
from softnpu.emulator.interface.result import ErrorInfo

# ---------------------------------------------------------------- supervisor to engine


class Setup(Message, frozen=True, kw_only=True, tag="setup"):
    """First message. Descriptors: queue states, status page, staging.

    `careful`: an engine has died before it.
    `self_check`: what is loaded is tried out first, see `engine.self_check`.
    """

    device: int
    platform: str
    devices: int
    tdr_ms: int
    spin_us: int
    after_reset: bool = False
    self_check: bool = False


class Resume(Message, frozen=True, kw_only=True, tag="resume"):
    """All objects of the device have been announced: execute from now on."""


class ContextAdd(Message, frozen=True, kw_only=True, tag="context_add"):
    """Descriptor: the doorbell. Contexts of one `session` share one claim on the device's time."""

    context: int
    session: int = 0


class ContextDrop(Message, frozen=True, kw_only=True, tag="context_drop"):
    """Forget a context and all in it; answered by `ContextDropped` once nothing of it is in use."""

    context: int


class SegmentAdd(Message, frozen=True, kw_only=True, tag="segment_add"):
    """Descriptor: the segment."""

    context: int
    segment: int
    size: int


class SegmentDrop(Message, frozen=True, kw_only=True, tag="segment_drop"):
    context: int
    segment: int


class MemoryAdd(Message, frozen=True, kw_only=True, tag="memory_add"):
    context: int
    memory: int
    segment: int
    offset: int
    size: int


class MemoryDrop(Message, frozen=True, kw_only=True, tag="memory_drop"):
    context: int
    memory: tuple[int, ...]


class QueueAdd(Message, frozen=True, kw_only=True, tag="queue_add"):
    """`state` is the queue's record in the queue states; submission `condemned` must not run again.

    It ends with `verdict`.
    """

    context: int
    queue: int
    ring: int
    slots: int
    priority: int
    turbo: bool
    state: int
    condemned: int = 0
    background: bool = False
    condemned_info: ErrorInfo | None = None


class QueueWorkload(Message, frozen=True, kw_only=True, tag="queue_workload"):
    context: int
    queue: int
    background: bool


class QueueDrop(Message, frozen=True, kw_only=True, tag="queue_drop"):
    """Forget a queue; answered by `QueueDropped` once none of its submissions runs any more."""

    context: int
    queue: int


class QueueLose(Message, frozen=True, kw_only=True, tag="queue_lose"):
    """What waits in the queue, and all that will, ends with this fault (`ERROR_DEVICE_LOST`)."""

    context: int
    queue: int
    info: ErrorInfo


class Abort(Message, frozen=True, kw_only=True, tag="abort"):
    """End this submission with the fault, if it runs; its queue is lost."""

    context: int
    queue: int
    sequence: int
    info: ErrorInfo


class Ping(Message, frozen=True, kw_only=True, tag="ping"):
    """Asks for a sign of life: the number in `VITAL_ANSWERED`."""

    number: int


class ImageLoad(Message, frozen=True, kw_only=True, tag="image_load"):
    """Load a compiled model; answered by `ImageLoaded`.

    Descriptors: the blob, the placement if it has a length, then the sources of the weights. `check`: nobody
    has compared the weights with their digests yet.
    """

    image: int
    blob_length: int
    placement_length: int = 0
    weights: tuple[WeightSource, ...] = ()
    check: bool = False


class ImageUnload(Message, frozen=True, kw_only=True, tag="image_unload"):
    image: int


class GraphAdd(Message, frozen=True, kw_only=True, tag="graph_add"):
    """A graph handle of a context names this image from now on."""

    context: int
    graph: int
    image: int


class GraphDrop(Message, frozen=True, kw_only=True, tag="graph_drop"):
    context: int
    graph: int


class InjectionAdd(Message, frozen=True, kw_only=True, tag="injection_add"):
    """A fault that a user asks for. Descriptor: the counters, of which two at 2 * `place` are its own."""

    id: int
    place: int
    counters: int
    injection: Injection


class InjectionDrop(Message, frozen=True, kw_only=True, tag="injection_drop"):
    """This fault is not wanted any more; harmless if the engine does not know it."""

    id: int


EngineCommand = (  # every message to an engine
    Setup | Resume | ContextAdd | ContextDrop | SegmentAdd | SegmentDrop | MemoryAdd | MemoryDrop | QueueAdd
    | QueueWorkload | QueueDrop | QueueLose | Abort | Ping | ImageLoad | ImageUnload | GraphAdd | GraphDrop
    | InjectionAdd | InjectionDrop
)  # fmt: skip

# ---------------------------------------------------------------- engine to supervisor


class Ready(Message, frozen=True, kw_only=True, tag="ready"):
    """The engine executes from now on."""


class ContextDropped(Message, frozen=True, kw_only=True, tag="context_dropped"):
    context: int


class QueueDropped(Message, frozen=True, kw_only=True, tag="queue_dropped"):
    context: int
    queue: int


class ImageLoaded(Message, frozen=True, kw_only=True, tag="image_loaded"):
    image: int
    load_ms: float
    info: ErrorInfo | None = None


class SubmissionFailed(Message, frozen=True, kw_only=True, tag="submission_failed"):
    """For the log: a submission ended with an error."""

    context: int
    queue: int
    sequence: int
    info: ErrorInfo


Report = Ready | ContextDropped | QueueDropped | ImageLoaded | SubmissionFailed

command_decoder: msgspec.msgpack.Decoder[EngineCommand] = msgspec.msgpack.Decoder(EngineCommand)
report_decoder: msgspec.msgpack.Decoder[Report] = msgspec.msgpack.Decoder(Report)

# ---------------------------------------------------------------- queue states
#
# One record of 128 bytes a queue, in memory that only the supervisor and the engine map: what an engine
# must know to go on where a dead one stopped. Written by the engine. Behind the last one: its signs of life.

QUEUE_STATE_SIZE = 128
QUEUE_STATES = 16384
STATE_COMPLETED = 0
"""Index of the u64 "submissions that have ended"."""
STATE_RUNNING = 1
"""Index of the u64 "submission that is running", 0 when none is."""
STATE_STARTED = 2
"""Index of the u64 "start of that submission, or of its command", CLOCK_MONOTONIC in nanoseconds."""
STATE_REACHED = 3
"""Index of the u64 "commands that need not run again": a submission << `REACHED_BITS`, and how many of it."""
STATE_EFFECT_STEP = 4
"""Index of the u64 "command whose effect has begun": a submission << `REACHED_BITS`, and which of it."""
STATE_EFFECT_VALUE = 5
"""Index of the u64 that this command noted before: what the next engine needs to do it exactly once."""
STATE_EFFECT_EVENT = 6
"""Index of the u64 "memory handle of the event that this command changes", 0: it changes none.

The value is the number of changes of this event before.
"""
STATE_EFFECT_OFFSET = 7
"""Index of the u64 "where the event lies in this memory"."""
STATE_INJECTED = 8
"""Index of the u64 "submission that is to end with an injected failure", also if the engine dies first."""
STATE_INJECTED_RESULT = 9
"""Index of the u64 "result of that failure"."""
REACHED_BITS = 24
REACHED_MASK = (1 << REACHED_BITS) - 1
QUEUE_STATE = struct.Struct("=QQQQ96x")

LIVENESS = QUEUE_STATE_SIZE * QUEUE_STATES
"""Where the signs of life start, in bytes."""
LIVENESS_PING = 0
"""Index of the u64 "number of the last `Ping` that was read"."""
LIVENESS_OTHER_THREADS_NS = 1
"""Index of the u64 "nanoseconds of CPU that the engine's other threads had used by then"."""
LIVENESS_WORDS = struct.Struct("=QQ")
MESSAGES_WAITING = 2
"""Index, from `VITALS` on, of the u64 "orders wait in the supervisor because the socket is full" (0 or 1)."""
INJECTION_MESSAGES = 3
"""Index, from `VITALS` on, of the u64 "orders about injections that this engine was sent"."""
STATES_SIZE = LIVENESS + 64
