"""Every control message, as msgspec structs. On the wire: msgpack maps with a tag `t`.

Growth: a reader skips unknown fields, unless the sender names them in `must`; then it refuses the message by
the name of the field. Answers repeat the request id of the frame. Docstrings list descriptors, in order.
"""

from __future__ import annotations

import enum
import functools
from typing import TypeVar

import msgspec

from softnpu.emulator.interface import activity_messages as activity
from softnpu.emulator.interface import injection_messages as inj
from softnpu.emulator.interface import lease_messages as leases
from softnpu.emulator.interface import memory_messages as memory
from softnpu.emulator.interface import message
from softnpu.emulator.interface import message_texts as texts
from softnpu.emulator.interface import status_messages as status
from softnpu.emulator.interface import trace_messages as tracing
from softnpu.emulator.interface.handles import Handle
from softnpu.emulator.interface.result import ErrorInfo

Message = message.Message
DeviceInfo = status.DeviceInfo
Clock = status.Clock
EngineStatus = status.EngineStatus
FunctionStatus = status.FunctionStatus
SessionStatus = status.SessionStatus
StatusAnswer = status.StatusAnswer
UserStatus = status.UserStatus
Activity = activity.Activity
ActivityAnswer = activity.ActivityAnswer
SessionActivity = activity.SessionActivity
ModelActivity = activity.ModelActivity
CompilationActivity = activity.CompilationActivity
Histogram = activity.Histogram
LeaseTake = leases.LeaseTake
Leased = leases.Leased
LeaseStatus = leases.LeaseStatus
MemAlloc = memory.MemAlloc
MemImport = memory.MemImport
MemImportPart = memory.MemImportPart
MemFree = memory.MemFree
Role = texts.Role
MemoryKind = texts.MemoryKind
QueuePriority = texts.QueuePriority
GraphOrigin = texts.GraphOrigin


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of one session, and the watchdog's limit. Memory in bytes, time in milliseconds."""

    session_memory: int
    contexts: int
    allocations: int
    queues: int
    graphs: int
    compiles: int
    queue_slots: int
    command_buffer: int
    tdr_ms: int


# ---------------------------------------------------------------- requests


class Hello(Message, frozen=True, kw_only=True, tag="hello"):
    """First message. `role`: a `Role`. `lease`: a lease's token. `settings`: `environment.asked_settings`."""

    major: int
    minor: int
    client: str
    role: str = Role.SESSION.value
    lease: str = ""
    settings: tuple[str, ...] = ()


class ContextCreate(Message, frozen=True, kw_only=True, tag="context_create"):
    """Create a context on device `device` (index). Answer: `ContextCreated`."""

    device: int


class ContextDestroy(Message, frozen=True, kw_only=True, tag="context_destroy"):
    """Destroy a context and everything created in it. Answer: `Ok`."""

    context: Handle


class QueueCreate(Message, frozen=True, kw_only=True, tag="queue_create"):
    """Create a command queue of `slots` slots (a power of two). `priority`: a `QueuePriority`.

    `turbo` makes both sides busy-wait. Answer: `QueueCreated`.
    """

    context: Handle
    slots: int
    priority: str = QueuePriority.NORMAL.value
    turbo: bool = False


class QueueWorkload(Message, frozen=True, kw_only=True, tag="queue_workload"):
    """Run later submissions of a queue in the background (below every priority), or as before.

    Answer: `Ok`.
    """

    queue: Handle
    background: bool


class QueueDestroy(Message, frozen=True, kw_only=True, tag="queue_destroy"):
    """Destroy a queue; pending commands are dropped. Answer: `Ok`."""

    queue: Handle


class WeightSource(msgspec.Struct, frozen=True, kw_only=True):
    """Weights as a range of a descriptor: bytes `offset` to `offset + length`."""

    offset: int
    length: int


class CacheOptions(msgspec.Struct, frozen=True, kw_only=True):
    """A cache of compiled models: an absolute `directory`, and its limit in bytes."""

    directory: str
    limit: int


ONNX = "onnx"
"""The format of models besides the IR, which is the empty text."""
FORMAT = "format"
"""The `property` of refusals of a model in such a format, which may be taken as an IR."""


class GraphFlag(enum.IntFlag):
    """`ze_graph_flags_t`: the creation flags of a graph."""

    NONE = 0
    DISABLE_CACHING = 1
    ENABLE_PROFILING = 2
    INPUT_GRAPH_PERSISTENT = 4
    SECURE_COMPILE = 8
    OPTIMIZE_FOR_DYNAMIC_SHAPES = 16


class GraphCreate(Message, frozen=True, kw_only=True, tag="graph_create"):
    """Compile a model. Descriptors: the IR's XML, then one for each source of its weights.

    `config` holds OpenVINO property names and values as text, `shapes` static shapes by input name,
    `build_flags` the line of `ze_graph_desc_t`, `flags` the bits of `GraphFlag`. `cache` is the directory of
    compiled models to use, None for none; `input_hash` stands for XML and weights there. With the `format`
    `ONNX` the first descriptor is a model file of it, an immutable memory file, in place of XML and weights.
    Answers: any number of `Progress`, then `GraphCreated`.
    """

    context: Handle
    name: str
    xml_length: int
    weights: tuple[WeightSource, ...] = ()
    config: dict[str, str] = {}
    shapes: dict[str, tuple[int, ...]] = {}
    build_flags: str = ""
    flags: int = 0
    input_hash: int | None = None
    cache: CacheOptions | None = None
    format: str = ""


class GraphImport(Message, frozen=True, kw_only=True, tag="graph_import"):
    """Import a native blob as a graph. Descriptors: blob, placement if its length is not 0, weight sources.

    Without a placement the weights space has every constant at its canonical offset. `deferred`: constants
    are checked against their digests when the graph is initialised, not now. Answer: `GraphCreated`.
    """

    context: Handle
    blob_length: int
    placement_length: int = 0
    weights: tuple[WeightSource, ...] = ()
    flags: int = 0
    deferred: bool = False


class GraphBlob(Message, frozen=True, kw_only=True, tag="graph_blob"):
    """Ask for the blob of a graph, without external weights. Answer: `GraphBlobAnswer`."""

    graph: Handle


class GraphExport(Message, frozen=True, kw_only=True, tag="graph_export"):
    """Ask for a blob of a graph with all constants inside. Answers: `Progress`, then `GraphExported`.

    With `offset`: descriptor, a file open for writing; the blob is written there, from this byte on.
    """

    graph: Handle
    offset: int | None = None


class GraphQuery(Message, frozen=True, kw_only=True, tag="graph_query"):
    """Ask which layers of a model the device executes. Descriptors and fields as in `GraphCreate`.

    Answers: `Progress`, then `GraphQueried`.
    """

    context: Handle
    name: str
    xml_length: int
    weights: tuple[WeightSource, ...] = ()
    build_flags: str = ""


class CompilerOptions(Message, frozen=True, kw_only=True, tag="compiler_options"):
    """Ask for the options of the compiler of a device (index). Answer: `CompilerOptionsAnswer`.

    With `option`: whether it is supported; with `value`, whether that value of it is.
    """

    device: int
    option: str = ""
    value: str | None = None


class GraphExpected(Message, frozen=True, kw_only=True, tag="graph_expected"):
    """Announce a later `GraphInitialize` with this `hint`, a digest of the client's choice. Answer: `Ok`."""

    context: Handle
    hint: bytes


class GraphInitialize(Message, frozen=True, kw_only=True, tag="graph_initialize"):
    """Load a graph into the engine; idempotent. Answer: `GraphInitialized`."""

    graph: Handle
    hint: bytes = b""


class GraphDestroy(Message, frozen=True, kw_only=True, tag="graph_destroy"):
    """Destroy a graph. Answer: `Ok`."""

    graph: Handle


class Cancel(Message, frozen=True, kw_only=True, tag="cancel"):
    """Cancel the compilation started by request `request` of this session. Answer: `Ok`."""

    request: int


class ContextMemory(Message, frozen=True, kw_only=True, tag="context_memory"):
    """Ask for the memory of a context. Answer: `ContextMemoryAnswer`."""

    context: Handle


class ContextRelease(Message, frozen=True, kw_only=True, tag="context_release"):
    """Release a context's idle memory on the device. Answer: `Ok`."""

    context: Handle


class ContextIdle(Message, frozen=True, kw_only=True, tag="context_idle"):
    """Release it automatically after `after_ms` milliseconds without work; never if None. Answer: `Ok`."""

    context: Handle
    after_ms: int | None = None


class MetricStreamOpen(Message, frozen=True, kw_only=True, tag="metric_stream_open"):
    """Sample the counters of a context's device every `period` nanoseconds. Answer: `MetricStreamOpened`."""

    context: Handle
    period: int


class MetricStreamClose(Message, frozen=True, kw_only=True, tag="metric_stream_close"):
    """End a stream of samples. Answer: `Ok`."""

    stream: Handle


class KernelHelperOpen(Message, frozen=True, kw_only=True, tag="kernel_helper_open"):
    """Announce a helper, which forks processes that run a kernel. Answer: `KernelHelperOpened`.

    Whenever an engine needs one, the helper gets a descriptor: its channel (`links/kernels.py`).
    """

    context: Handle


class Status(Message, frozen=True, kw_only=True, tag="status"):
    """Ask for the state of the daemon. Answer: `StatusAnswer`."""


class Stop(Message, frozen=True, kw_only=True, tag="stop"):
    """Shut the daemon down. Answer: `Ok`, then the connection closes."""


# ---------------------------------------------------------------- answers


class Ok(Message, frozen=True, kw_only=True, tag="ok"):
    """Done."""


class Failed(Message, frozen=True, kw_only=True, tag="failed"):
    """The request was refused or failed; it had no effect."""

    info: ErrorInfo


class Welcome(Message, frozen=True, kw_only=True, tag="welcome"):
    """Answer to `Hello`. Descriptor: the status page (read it, see `records`).

    `check`: the folder in which the driver of a session writes notes, see `check_notes`; empty: nowhere.
    """

    major: int
    minor: int
    server: str
    pid: int
    session: int
    devices: tuple[DeviceInfo, ...]
    limits: Limits
    check: str = ""


class ContextCreated(Message, frozen=True, kw_only=True, tag="context_created"):
    """Descriptor: the doorbell of the context, an eventfd; write 1 to wake the engine."""

    context: Handle


class MemAllocated(Message, frozen=True, kw_only=True, tag="mem_allocated"):
    """The memory lies at `offset` of segment `segment`, which is `segment_size` bytes long.

    Descriptor: the segment, only when this session does not hold it yet (`fresh`). The client reserves the
    pages of a fresh segment (fallocate) before it uses them, unless it is `sparse`.
    """

    memory: Handle
    segment: int
    segment_size: int
    offset: int
    fresh: bool
    sparse: bool = False


class QueueCreated(Message, frozen=True, kw_only=True, tag="queue_created"):
    """The ring lies in memory `ring`, placed as in `MemAllocated`."""

    queue: Handle
    ring: MemAllocated


class Progress(Message, frozen=True, kw_only=True, tag="progress"):
    """A compilation reached `stage`; `done` is the finished share, 0 to 1."""

    stage: str
    done: float


class GraphCreated(Message, frozen=True, kw_only=True, tag="graph_created"):
    """Descriptor: the sealed blob; its metadata section describes the arguments.

    `origin`: a `GraphOrigin`.
    """

    graph: Handle
    blob_length: int
    compile_ms: float
    log: str = ""
    origin: str = GraphOrigin.COMPILED.value


class GraphBlobAnswer(Message, frozen=True, kw_only=True, tag="graph_blob_answer"):
    """Descriptors: the sealed blob, then its placement if its length is not 0."""

    blob_length: int
    placement_length: int = 0


class GraphExported(Message, frozen=True, kw_only=True, tag="graph_exported"):
    """Descriptor: a sealed blob with all weights; none if it was written to a file."""

    blob_length: int


class GraphQueried(Message, frozen=True, kw_only=True, tag="graph_queried"):
    """Descriptor: sealed text of `length` bytes, `<name><name>...` of the supported layers."""

    length: int


class CompilerOptionsAnswer(Message, frozen=True, kw_only=True, tag="compiler_options_answer"):
    """The compiler's version and newest opset, its options by name, and the answer to the question."""

    major: int
    minor: int
    opset: int
    options: tuple[str, ...]
    supported: bool = False


class GraphInitialized(Message, frozen=True, kw_only=True, tag="graph_initialized"):
    """The graph is on the device. `shared`: another graph had already loaded the same content."""

    load_ms: float
    shared: bool


class ContextMemoryAnswer(Message, frozen=True, kw_only=True, tag="context_memory_answer"):
    """Bytes of device memory in total, and bytes requested by this context (not rounded).

    `graphs`: bytes of its models on the device, blobs and weights, without duplicates.
    """

    total: int
    allocated: int
    graphs: int = 0


class MetricStreamOpened(Message, frozen=True, kw_only=True, tag="metric_stream_opened"):
    """A stream of samples. Descriptor: its memory, for reading."""

    stream: Handle


class KernelHelperOpened(Message, frozen=True, kw_only=True, tag="kernel_helper_opened"):
    """A helper's secret name. Descriptor: its socket, which ends with the context."""

    helper: str


Request = (
    Hello | ContextCreate | ContextDestroy | MemAlloc | MemImport | MemImportPart | MemFree
    | QueueCreate | QueueWorkload | QueueDestroy | GraphCreate | GraphImport | GraphBlob | GraphExport
    | GraphQuery | CompilerOptions | GraphExpected | GraphInitialize | GraphDestroy | Cancel | ContextMemory
    | ContextRelease | ContextIdle | MetricStreamOpen | MetricStreamClose | KernelHelperOpen | Status
    | Activity | Stop
    | inj.Inject | inj.InjectStatus | inj.InjectClear | tracing.TraceStart | tracing.TraceRings
    | tracing.TraceStop | tracing.TraceJoin | leases.LeaseTake
)  # fmt: skip
Answer = (
    Ok | Failed | Welcome | ContextCreated | MemAllocated | QueueCreated | Progress | GraphCreated
    | GraphBlobAnswer | GraphExported | GraphQueried | CompilerOptionsAnswer | GraphInitialized
    | ContextMemoryAnswer | MetricStreamOpened | KernelHelperOpened | StatusAnswer | ActivityAnswer
    | tracing.TraceJoined
    | inj.Injected | inj.Cleared | inj.InjectStatusAnswer | tracing.TraceStarted | tracing.TraceRingsAnswer
    | leases.Leased
)  # fmt: skip

_encoder = msgspec.msgpack.Encoder()
M = TypeVar("M", bound=Message)


def encode(message: Message) -> bytes:
    """Encode the message as msgpack."""
    return _encoder.encode(message)


def decode_request(body: bytes | memoryview) -> Request:
    """Decode the request in `body`; refuse invalid ones by the path of the bad field."""
    return _checked(_request_decoder(), body)


def decode_answer(body: bytes | memoryview) -> Answer:
    """Decode the answer in `body`; refuse invalid ones by the path of the bad field."""
    return _checked(_answer_decoder(), body)


@functools.cache
def _request_decoder() -> msgspec.msgpack.Decoder[Request]:
    return msgspec.msgpack.Decoder(Request)  # created on demand: a client decodes no requests


@functools.cache
def _answer_decoder() -> msgspec.msgpack.Decoder[Answer]:
    return msgspec.msgpack.Decoder(Answer)


def _checked(decoder: msgspec.msgpack.Decoder[M], body: bytes | memoryview) -> M:
    return message.decode(decoder, body, "control message", "a message of the firmware interface")
