"""Fixed records in shared memory. Little-endian, naturally aligned, one writer for each field."""

from __future__ import annotations

import enum

from softnpu.emulator.interface.layout import Layout

FENCE = Layout(
    """
    signalled  u64  # engine: the ticket that was signalled last; the low half is a futex word
    waiters    u32  # waiter: 1 before it sleeps; engine: 0 before it signals
    result     u32  # engine: ze_result_t of the submission of that ticket
    armed      u64  # driver: the ticket of the submission that is to signal it, 0 for none
    cancel     u64  # driver: the ticket of a submission that shall not begin, or end early
    time       u64  # engine: host clock (CLOCK_MONOTONIC) in nanoseconds
    reserved   24
    """
)
"""A *ticket* names one submission of a context, and is never reused in it."""
FENCE_WAITERS = FENCE.offset("waiters")
FENCE_RESULT = FENCE.offset("result")
FENCE_ARMED = FENCE.offset("armed")
FENCE_CANCEL = FENCE.offset("cancel")
FENCE_TIME = FENCE.offset("time")

EVENT = Layout(
    """
    state     u32  # both: an EventState; also the futex word
    changes   u32  # engine: how often commands signalled or reset it; stored together with `state`
    waiters   u32  # waiter: 1 before it sleeps; signaller: 0 before it signals
    reserved  20
    time      u64  # engine: host clock (CLOCK_MONOTONIC) in nanoseconds
    reserved  24
    """
)
EVENT_CHANGES = EVENT.offset("changes")
EVENT_WAITERS = EVENT.offset("waiters")
EVENT_TIME = EVENT.offset("time")

PAGE = 4096
"""Bytes of a page: the alignment of segments, weights and sections of a blob."""
SIGNAL_SIZE = FENCE.size
"""Bytes of a fence, and of an event."""


class EventState(enum.IntEnum):
    """Values of an event's state word. Everything above `HOST_RESET` means signalled."""

    INITIAL = 0
    DEVICE_RESET = 1
    HOST_RESET = 2
    DEVICE_SIGNALLED = 4
    HOST_SIGNALLED = 5


RING = Layout(
    """
    tail         u64  # driver: number of submissions so far
    driver_core  u32  # driver: processor that it submitted on last, plus 1; 0: not known
    reserved     52
    completed    u64  # engine: number of submissions that have ended; the low half is a futex word
    waiters      u32  # driver: number of its threads that sleep on `completed`
    asleep       u32  # engine: 1 when it needs the doorbell to see a new tail
    engine_core  u32  # engine: processor that it runs on, plus 1; 0: not known; 2^32 - 1: others are ahead
    reserved     44
    result       u32  # engine: result of the last submission that failed, 0 if none did
    text_size    u32  # engine: bytes of `text`
    failed       u64  # engine: sequence number of that submission
    lost         u32  # engine: 1 from the first ERROR_DEVICE_LOST on; nothing runs any more
    reserved     44
    text         char[320]  # engine: the ErrorInfo of that submission as msgpack
    """
)
"""The header of a queue's ring, before the slots. Each side writes its own cache lines."""
RING_HEADER = RING.size
RING_TAIL = RING.offset("tail")
RING_COMPLETED = RING.offset("completed")
RING_WAITERS = RING.offset("waiters")
RING_ASLEEP = RING.offset("asleep")
RING_RESULT = RING.offset("result")
RING_TEXT_SIZE = RING.offset("text_size")
RING_FAILED = RING.offset("failed")
RING_LOST = RING.offset("lost")
RING_TEXT = RING.offset("text")
RING_TEXT_MAX = RING.room("text")

SLOT_LAYOUT = Layout(
    """
    sequence      u64  # the tail after this submission
    buffer        u64  # handle of the memory with the command buffer
    offset        u64  # where in that memory it starts
    size          u32
    flags         u32
    fence         u64  # handle of the memory with the fence, 0 for none
    fence_offset  u64
    ticket        u64
    result        u32  # engine: how the submission ended
    reserved      u32
    """
)
SLOT = SLOT_LAYOUT.struct
SLOT_SIZE = SLOT.size
SLOT_TICKET = SLOT_LAYOUT.offset("ticket")
SLOT_RESULT = SLOT_LAYOUT.offset("result")
MIN_SLOTS = 2
MAX_SLOTS = 4096


def ring_size(slots: int) -> int:
    """Return the size in bytes of a ring with this many slots."""
    return RING_HEADER + slots * SLOT_SIZE


# ---------------------------------------------------------------- status page
#
# One header of 64 bytes, then 256 bytes per device, then the histograms of each device. Written by the
# supervisor (s) and the primary engines (e), read by everybody. Counters only grow while the daemon lives.
#
# Behind that lies a second part like it, without a header: the counts of the other virtual functions'
# engines, written by the supervisor. Readers add both; of HEARTBEAT and DEVICE_CLOCK the larger one counts.
#
# Then, from the next page on, the lives: a word for each session, written by the supervisor, on which waiting
# clients sleep.

STATUS_MAGIC = b"SNPUSTAT"
STATUS_VERSION = 1
STATUS_LAYOUT = Layout(
    """
    magic       char[8]
    version     u32
    devices     u32  # how many
    pid         u64  # of the daemon
    start       u64  # CLOCK_REALTIME in nanoseconds
    trace       u64  # s: number of the trace that is being made, 0 for none
    histograms  u32  # of each device, behind the parts of all devices
    lives       u32  # s: words of sessions; 0 if there are none
    lives_at    u32  # s: offset of the first one
    reserved    12
    """
)
STATUS_HEADER = STATUS_LAYOUT.struct
STATUS_TRACE = STATUS_LAYOUT.offset("trace")
STATUS_LIVES = STATUS_LAYOUT.offset("lives")
STATUS_DEVICE_SIZE = 256
LIVES = 512
LIFE_SIZE = 8
"""Bytes from the life of a session to that of the next one; the low 4 are a futex word."""


class StatusWord(enum.IntEnum):
    """64-bit words of a device's part of the status page, by index."""

    PLATFORM = 0  # s: number, for example 4000
    ENGINE_PID = 1  # s: 0 while no engine runs
    STATE = 2  # s: see DeviceState
    RESTARTS = 3  # s
    MEMORY_TOTAL = 4  # s: bytes
    MEMORY_USED = 5  # s: bytes asked for by all sessions
    CONTEXTS = 6  # s: contexts of all sessions
    HEARTBEAT = 8  # e: CLOCK_MONOTONIC in nanoseconds of the last sign of life
    SUBMISSIONS = 9  # e
    COMMANDS = 10  # e
    INFERENCES = 11  # e
    FAULTS = 12  # e
    BUSY = 13  # e: nanoseconds spent executing
    STAGED = 14  # e: bytes copied because a tensor could not be used in place
    HANGS = 16  # s: times that the engine, or a command on it, was killed for lack of progress
    ABORTED = 17  # s: submissions that the device ended with ERROR_DEVICE_LOST
    OFFENCES = 18  # s: engine resets caused by a submission
    REFUSALS = 19  # s: requests refused because their process had caused too many resets
    BUILD_FAILURES = 20  # s: compilations and imports that failed
    TILE_BUSY = 24  # e: nanoseconds spent in inferences, times the tiles occupied by each
    OVERLAPPED = 25  # e: inferences that began before their turn, beside others
    READ = 26  # e: bytes that commands read
    WRITTEN = 27  # e: bytes that commands wrote
    QUEUED = 28  # e: submissions that have not ended, including the running one
    DEVICE_CLOCK = 29  # e: nanoseconds of the modelled clock
    LATE = 30  # e: inferences slower than on the modelled device, while it is paced
    UNMODELLED = 31  # e: inferences without a modelled time


class DeviceState(enum.IntEnum):
    """State of an engine."""

    STARTING = 0
    READY = 1
    RESETTING = 2
    FAILED = 3


STATE_NAMES = {state: state.name.lower() for state in DeviceState}


class Latency(enum.IntEnum):
    """Indices of a device's histograms."""

    INFERENCE = 0  # e: inferences of successful submissions, each from its begin to its end
    LOAD = 1  # s: loaded images
    COMPILED = 2  # s: compilations, from the request to the graph
    CACHE = 3  # s: cache hits
    NATIVE = 4  # s: imports


LATENCY_BOUNDS_NS = tuple(digit * 10**power for power in range(4, 11) for digit in (1, 2, 5))
"""Upper bounds of a histogram's buckets, 10 us to 50 s; the last bucket has none."""
HISTOGRAM_WORDS = 24
"""Words of a histogram: a count for each bucket, the sum in nanoseconds, one reserved word."""
HISTOGRAM_SUM = len(LATENCY_BOUNDS_NS) + 1


def status_size(devices: int) -> int:
    """Return the bytes of the engines' part, for this many devices."""
    return histogram_offset(devices, devices, Latency.INFERENCE)


def status_page_size(devices: int) -> int:
    """Return the bytes of the page including the other virtual functions' part, and the lives."""
    return lives_offset(devices) + LIVES * LIFE_SIZE


def lives_offset(devices: int) -> int:
    """Return the offset of the lives in a page that has them: engines map no page of theirs."""
    return -(-(status_size(devices) + others_offset(devices)) // PAGE) * PAGE


def others_offset(devices: int) -> int:
    """Return the distance from a word or histogram of a device to that of the other virtual functions."""
    return status_size(devices) - STATUS_HEADER.size


def histogram_offset(devices: int, device: int, latency: Latency) -> int:
    """Return the offset of a device's histogram in the status page of a daemon with that many devices."""
    return status_offset(devices) + 8 * HISTOGRAM_WORDS * (device * len(Latency) + latency)


def status_offset(device: int) -> int:
    """Return the offset of a device's part of the status page."""
    return STATUS_HEADER.size + device * STATUS_DEVICE_SIZE
