"""The private protocol between the supervisor and an engine.

Both sides have the same version, so it may change at any time. The number of a context is unique over all
sessions; handles inside a context are the session's own. The supervisor sends a message before it answers the
client: an engine that does not know a handle reads its channel before it refuses the handle.
"""

from __future__ import annotations

import enum
import struct

import msgspec

from softnpu.emulator.interface.injections import Injection
from softnpu.emulator.interface.messages import Clock, Message, WeightSource
from softnpu.emulator.interface.result import ErrorInfo

MOST_PLACED = 1000  # less than a frame has room for

# ---------------------------------------------------------------- supervisor to engine


class Setup(Message, frozen=True, kw_only=True, tag="setup"):
    """First message. Descriptors: queue states, status page, staging.

    `device`, `devices`: its part of this page, and how many there are. `session_memory`: the limit of a
    session, in bytes; its staging has the same. `cpu_cache`: it serves the daemon's own user, and may use the
    engine cache. `shared`: others may use the daemon. `after_reset`: it replaces a dead engine. `self_check`:
    see `engine.self_check`. `kernels`: which own kernels run. `clock`: the clock that the device shows.
    `inference_us`: the modelled time of every inference, 0 for the predicted one. `check`: the folder for
    notes of what it runs, empty: none.
    """

    device: int
    platform: str
    devices: int
    tdr_ms: int
    spin_us: int
    session_memory: int
    cpu_cache: bool = True
    after_reset: bool = False
    self_check: bool = False
    kernels: str = "all"
    clock: Clock = Clock.HOST
    inference_us: int = 0
    shared: bool = False
    check: str = ""


class Resume(Message, frozen=True, kw_only=True, tag="resume"):
    """Start executing: all objects of the device have been announced."""


class OfContext(Message, frozen=True, kw_only=True):
    """Base of the messages about a context, or an object in it."""

    context: int


class ContextAdd(OfContext, frozen=True, kw_only=True, tag="context_add"):
    """Descriptor: the doorbell. Contexts of one `session` share its part of the device's time."""

    session: int = 0


class ContextDrop(OfContext, frozen=True, kw_only=True, tag="context_drop"):
    """Drop a context with all its objects; answered by `ContextDropped` once none of them is in use."""


class ContextRelease(OfContext, frozen=True, kw_only=True, tag="context_release"):
    """Drop what the engine caches for the next commands of a context."""


class SegmentAdd(OfContext, frozen=True, kw_only=True, tag="segment_add"):
    """Descriptor: the segment, which is `size` bytes from `start` on.

    `foreign`: the minimum size of its file, if others can truncate it; else 0. `read_only`: such a file that
    commands only read.
    """

    segment: int
    size: int
    start: int = 0
    foreign: int = 0
    read_only: bool = False


class SegmentDrop(OfContext, frozen=True, kw_only=True, tag="segment_drop"):
    """Drop a segment; what is to be `reported` is answered by `SegmentUnmapped`."""

    segment: int
    reported: bool = False


class Placed(msgspec.Struct, frozen=True, array_like=True):
    """An allocation, at `offset` of a segment."""

    memory: int
    segment: int
    offset: int
    size: int


class MemoryAdd(OfContext, frozen=True, kw_only=True, tag="memory_add"):
    """Add allocations, at most `MOST_PLACED`."""

    allocations: tuple[Placed, ...]


class MemoryDrop(OfContext, frozen=True, kw_only=True, tag="memory_drop"):
    memory: tuple[int, ...]


class QueueAdd(OfContext, frozen=True, kw_only=True, tag="queue_add"):
    """Add a queue; `state` is its record in the queue states.

    Submission `poisoned` (0: none) must not run again: it ends with `poisoned_info`.
    """

    queue: int
    ring: int
    slots: int
    priority: int
    turbo: bool
    state: int
    poisoned: int = 0
    background: bool = False
    poisoned_info: ErrorInfo | None = None


class QueueWorkload(OfContext, frozen=True, kw_only=True, tag="queue_workload"):
    queue: int
    background: bool


class QueueDrop(OfContext, frozen=True, kw_only=True, tag="queue_drop"):
    """Drop a queue; answered by `QueueDropped` once none of its submissions runs any more."""

    queue: int


class QueueLose(OfContext, frozen=True, kw_only=True, tag="queue_lose"):
    """End every submission of the queue, now and later, with this error (`ERROR_DEVICE_LOST`)."""

    queue: int
    info: ErrorInfo


class Abort(OfContext, frozen=True, kw_only=True, tag="abort"):
    """End this submission with the error if it runs; its queue is lost."""

    queue: int
    sequence: int
    info: ErrorInfo


class Ping(Message, frozen=True, kw_only=True, tag="ping"):
    """Store this number in `LIVENESS_PING`."""

    number: int


class ImageLoad(Message, frozen=True, kw_only=True, tag="image_load"):
    """Load a compiled model; answered by `ImageLoaded`.

    Descriptors: the blob, the placement if its length is not 0, then the sources of the weights. `check`:
    check the weights against their digests first; otherwise do so if their files differ from `files`, the
    compiler's `file_identities`. `state`: its record among the states of images. `hint`: for a later
    `ImageExpected`. `session`: whose device time the load uses.
    """

    image: int
    state: int
    blob_length: int
    placement_length: int = 0
    weights: tuple[WeightSource, ...] = ()
    check: bool = False
    files: tuple[bytes, ...] = ()
    hint: bytes = b""
    session: int = 0


class ImageExpected(Message, frozen=True, kw_only=True, tag="image_expected"):
    """The image loaded before with this hint will probably be loaded soon."""

    hint: bytes


class ImageUnload(Message, frozen=True, kw_only=True, tag="image_unload"):
    image: int


class ImageEvict(Message, frozen=True, kw_only=True, tag="image_evict"):
    """Evict the image; report `ImageNeeded` when a command needs it again."""

    image: int


class GraphAdd(OfContext, frozen=True, kw_only=True, tag="graph_add"):
    """Bind a context's graph handle to this image."""

    graph: int
    image: int


class GraphDrop(OfContext, frozen=True, kw_only=True, tag="graph_drop"):
    graph: int


class InjectionAdd(Message, frozen=True, kw_only=True, tag="injection_add"):
    """Inject a fault. Descriptor: the `InjectionCounters`, `counters` of them; `slot` is its own."""

    id: int
    slot: int
    counters: int
    injection: Injection


class InjectionDrop(Message, frozen=True, kw_only=True, tag="injection_drop"):
    """Remove an injection; a no-op if the engine does not know it."""

    id: int


class TraceBegin(Message, frozen=True, kw_only=True, tag="trace_begin"):
    """Start tracing. Descriptor: the ring, with room for `records`. `layers`: layers as well."""

    records: int
    layers: bool = False


class TraceEnd(Message, frozen=True, kw_only=True, tag="trace_end"):
    """Stop tracing; a no-op otherwise."""


class KernelsStarted(Message, frozen=True, kw_only=True, tag="kernels_started"):
    """A process of kernels has been started. Descriptor: its channel, closed if `helper` has none."""

    helper: str = ""


ImageCommand = ImageExpected | ImageLoad | ImageUnload | ImageEvict
EngineCommand = (  # every message to an engine
    Setup | Resume | ContextAdd | ContextDrop | ContextRelease | SegmentAdd | SegmentDrop | MemoryAdd
    | MemoryDrop | QueueAdd | QueueWorkload | QueueDrop | QueueLose | Abort | Ping | ImageCommand
    | GraphAdd | GraphDrop | InjectionAdd | InjectionDrop | TraceBegin | TraceEnd | KernelsStarted
)  # fmt: skip

# ---------------------------------------------------------------- engine to supervisor

EXIT_HELD = 3
"""Exit code of an engine that cannot end a cancelled inference: concurrent loads are not to blame."""


class Ready(Message, frozen=True, kw_only=True, tag="ready"):
    """The engine is connected and reads its channel. `missing_protections`: see `sandbox.enter`.

    `loader`: its thread that loads images.
    """

    missing_protections: tuple[str, ...] = ()
    loader: int = 0


class ContextDropped(OfContext, frozen=True, kw_only=True, tag="context_dropped"):
    """Nothing of the context is in use any more."""


class SegmentUnmapped(OfContext, frozen=True, kw_only=True, tag="segment_unmapped"):
    """A dropped segment has no references left: its addresses are free."""

    segment: int


class QueueDropped(OfContext, frozen=True, kw_only=True, tag="queue_dropped"):
    queue: int


class ImageBegun(Message, frozen=True, kw_only=True, tag="image_begun"):
    """The image starts loading: no other one before `ImageLoaded`."""

    image: int


class ImageLoaded(Message, frozen=True, kw_only=True, tag="image_loaded"):
    image: int
    load_ms: float
    info: ErrorInfo | None = None


class CacheLacks(Message, frozen=True, kw_only=True, tag="cache_lacks"):
    """The cache has no entry of a loaded image, or no record of its hint."""

    image: int


class ImageNeeded(Message, frozen=True, kw_only=True, tag="image_needed"):
    """A command waits for an evicted image."""

    image: int


class SubmissionFailed(OfContext, frozen=True, kw_only=True, tag="submission_failed"):
    """For the log: a submission ended with an error."""

    queue: int
    sequence: int
    info: ErrorInfo


class QueueRefused(OfContext, frozen=True, kw_only=True, tag="queue_refused"):
    """The engine cannot have a queue, whose ring it could not map; it runs nothing."""

    queue: int
    info: ErrorInfo


class KernelsNeeded(Message, frozen=True, kw_only=True, tag="kernels_needed"):
    """It needs a process of kernels, and has none any more; answered by `KernelsStarted`.

    `helper`: one that this helper of a client forks.
    """

    helper: str = ""


class InternalError(Message, frozen=True, kw_only=True, tag="internal_error"):
    """A defect of the engine ended a submission or the load of an image, and is in its log."""

    info: ErrorInfo


Report = (
    Ready
    | ContextDropped
    | SegmentUnmapped
    | QueueDropped
    | ImageBegun
    | ImageLoaded
    | CacheLacks
    | ImageNeeded
    | SubmissionFailed
    | QueueRefused
    | KernelsNeeded
    | InternalError
)

command_decoder: msgspec.msgpack.Decoder[EngineCommand] = msgspec.msgpack.Decoder(EngineCommand)
report_decoder: msgspec.msgpack.Decoder[Report] = msgspec.msgpack.Decoder(Report)

# ---------------------------------------------------------------- queue states
#
# One record of 128 bytes per queue, in memory that only supervisor and engine map: the state from which the
# next engine continues after a crash. Written by the engine. The liveness words follow the last record.

QUEUE_STATE_SIZE = 128
QUEUE_STATES = 16384
STATE_COMPLETED = 0
"""Index of the u64 "number of ended submissions"."""
STATE_RUNNING = 1
"""Index of the u64 "running submission", 0 for none."""
STATE_STARTED = 2
"""Index of the u64 "start of that submission, or of its command", CLOCK_MONOTONIC in nanoseconds."""
STATE_REACHED = 3
"""Index of the u64 "commands that need not run again": a submission << `REACHED_BITS`, and how many of it."""
STATE_INTENT_STEP = 4
"""Index of the u64 "command with a logged intent": a submission << `REACHED_BITS`, and which of it."""
STATE_INTENT_VALUE = 5
"""Index of the u64 recorded by that command beforehand, so that the next engine can do it exactly once."""
STATE_INTENT_EVENT = 6
"""Index of the u64 "memory handle of the event that this command changes", 0 for none.

The value is the event's number of changes beforehand.
"""
STATE_INTENT_OFFSET = 7
"""Index of the u64 "offset of the event in this memory"."""
STATE_INJECTED = 8
"""Index of the u64 "submission that is to end with an injected failure", even if the engine dies first."""
STATE_INJECTED_RESULT = 9
"""Index of the u64 "result of that failure"."""
STATE_INJECTION = 10
"""Index of the u64 "id of that injection"."""
STATE_INJECTION_HITS = 11
"""Index of the u64 "number of its hits by then"."""
STATE_SPENT = 12
"""Index of the u64 "nanoseconds of device time used by its submissions"."""
STATE_INFERENCES = 13
"""Index of the u64 "inferences of successful submissions"."""
STATE_WAITING = 14
"""Index of the u64 "submissions that have not ended, as last seen by the engine"."""
STATE_PAUSE = 15
"""Index of the u64 "why the next submission has begun and does not run", a `QueuePause`."""


class QueuePause(enum.IntEnum):
    """Why a submission that has begun does not run."""

    NONE = 0  # it runs, or it waits for its turn
    EVENT = 1
    LOAD = 2
    PACE = 3  # for the end of its modelled time


REACHED_BITS = 24
REACHED_MASK = (1 << REACHED_BITS) - 1
QUEUE_STATE = struct.Struct("=QQQQ96x")

LIVENESS = QUEUE_STATE_SIZE * QUEUE_STATES
"""Offset of the liveness words, in bytes."""
LIVENESS_PING = 0
"""Index of the u64 "number of the last `Ping` read"."""
LIVENESS_OTHER_THREADS_NS = 1
"""Index of the u64 "nanoseconds of CPU used by the engine's other threads by then"."""
LIVENESS_WORDS = struct.Struct("=QQ")
MESSAGES_WAITING = 2
"""Index, from `LIVENESS` on, of the u64 "the socket is full, messages wait in the supervisor" (0 or 1)."""
INJECTION_MESSAGES = 3
"""Index, from `LIVENESS` on, of the u64 "injection messages sent to this engine"."""

# One record of two words per image: successful inferences, and their nanoseconds.
IMAGE_STATES_AT = LIVENESS + 64
"""Offset of the states of images, in bytes."""
IMAGE_STATES = 16384
IMAGE_WORDS = 2
IMAGE_STATE = struct.Struct("=QQ")
STATES_SIZE = IMAGE_STATES_AT + IMAGE_STATE.size * IMAGE_STATES
