"""Fixed records in shared memory. Little-endian, naturally aligned, one writer for each field.

Fence (64 bytes). A *ticket* names one submission of a context, and is never used twice in it:

    offset  size  field       writer
    0       8     signalled   engine: ticket that was signalled last; the low half is a futex word
    8       4     waiters     waiter: 1 before it sleeps; engine: 0 before it signals
    12      4     result      engine: ze_result_t of the submission of that ticket
    16      8     armed       driver: ticket of the submission that is to signal it, 0 none
    24      8     cancel      driver: ticket of a submission that shall not begin, or end early
    32      8     time        engine: host clock (CLOCK_MONOTONIC) in nanoseconds

Event (64 bytes):

    offset  size  field       writer
    0       4     state       both (see `EventState`); also the futex word to sleep on
    4       4     changes     engine: how often commands signalled or reset it; stored together with `state`
    8       4     waiters     waiter: 1 before it sleeps; signaller: 0 before it signals
    32      8     time        engine: host clock (CLOCK_MONOTONIC) in nanoseconds

Queue ring: a header of 512 bytes, then `slots` slots of 64 bytes.

    offset  size  field       writer
    0       8     tail        driver: number of submissions so far
    64      8     completed   engine: number of submissions that have ended; low half is a futex word
    72      4     waiters     driver: number of its threads that sleep on `completed`
    76      4     asleep      engine: 1 when it needs the doorbell to see a new tail
    128     4     result      engine: result of the last submission that failed, 0 if none did
    132     4     text size   engine: bytes of text
    136     8     failed      engine: sequence number of that submission
    144     4     lost        engine: 1 from the first ERROR_DEVICE_LOST on; nothing runs any more
    192     320   text        engine: msgpack fault of that submission

Slot (64 bytes): sequence number (tail after this submission), command buffer (memory handle, offset,
size), flags, fence (memory handle or 0, offset of the record, ticket), and how the submission ended, which
the engine writes.

    0 8 sequence | 8 8 buffer | 16 8 offset | 24 4 size | 28 4 flags | 32 8 fence | 40 8 fence offset
    48 8 ticket | 56 4 result
"""

from __future__ import annotations

import enum
import struct

SIGNAL_SIZE = 64
"""Bytes of a fence, and of an event."""

FENCE_SIGNALLED = 0
FENCE_WAITERS = 8
FENCE_RESULT = 12
FENCE_ARMED = 16
FENCE_CANCEL = 24
FENCE_TIME = 32

EVENT_STATE = 0
EVENT_CHANGES = 4
EVENT_WAITERS = 8
EVENT_TIME = 32


class EventState(enum.IntEnum):
    """Values of an event's state word. Everything above `HOST_RESET` means signalled."""

    INITIAL = 0
    DEVICE_RESET = 1
    HOST_RESET = 2
    DEVICE_SIGNALLED = 4
    HOST_SIGNALLED = 5


RING_HEADER = 512
RING_TAIL = 0
RING_COMPLETED = 64
RING_WAITERS = 72
RING_ASLEEP = 76
RING_RESULT = 128
RING_TEXT_SIZE = 132
RING_FAILED = 136
RING_LOST = 144
RING_TEXT = 192
RING_TEXT_MAX = 320

SLOT_SIZE = 64
SLOT = struct.Struct("=QQQIIQQQII")
SLOT_TICKET = 48
SLOT_RESULT = 56
MIN_SLOTS = 2
PAGE = 4096
"""Bytes of a page: what segments, weights and the sections of a blob are aligned to."""
MAX_SLOTS = 4096


def ring_size(slots: int) -> int:
    """Bytes of a ring with this many slots."""
    return RING_HEADER + slots * SLOT_SIZE


# ---------------------------------------------------------------- status page
#
# One header of 64 bytes, then 256 bytes a device. Written by the supervisor (s) and the engines (e),
# read by everybody. Counters only grow while the daemon lives.

STATUS_MAGIC = b"SNPUSTAT"
STATUS_VERSION = 1
STATUS_HEADER = struct.Struct("=8sIIQQ32x")
"""magic, version, number of devices, pid of the daemon, start (CLOCK_REALTIME, nanoseconds)."""
STATUS_DEVICE_SIZE = 256


class StatusWord(enum.IntEnum):
    """64-bit words of a device's part of the status page, by index."""

    PLATFORM = 0  # s: number, for example 4000
    ENGINE_PID = 1  # s: 0 while no engine runs
    STATE = 2  # s: see DeviceState
    RESTARTS = 3  # s
    MEMORY_TOTAL = 4  # s: bytes
    MEMORY_USED = 5  # s: bytes asked for by all sessions
    CONTEXTS = 6  # s
    HEARTBEAT = 8  # e: CLOCK_MONOTONIC in nanoseconds of the last sign of life
    SUBMISSIONS = 9  # e
    COMMANDS = 10  # e
    INFERENCES = 11  # e
    FAULTS = 12  # e
    BUSY = 13  # e: nanoseconds spent executing
    STAGED = 14  # e: bytes that were copied because a tensor could not be used in place
    HANGS = 16  # s: times that the engine, or a command on it, made no progress and was ended
    ABORTED = 17  # s: submissions that the device ended with ERROR_DEVICE_LOST
    OFFENCES = 18  # s: engine resets that a submission was to blame for
    REFUSALS = 19  # s: requests refused because their process had caused too many of them
    TILE_BUSY = 24  # e: nanoseconds spent in inferences, times the tiles that each occupied
    OVERLAPPED = 25  # e: inferences that began before their turn, beside others


class DeviceState(enum.IntEnum):
    """What the supervisor knows of an engine."""

    STARTING = 0
    READY = 1
    RESETTING = 2
    FAILED = 3


STATE_NAMES = {state: state.name.lower() for state in DeviceState}


def status_size(devices: int) -> int:
    """Bytes of a status page for this many devices."""
    return STATUS_HEADER.size + devices * STATUS_DEVICE_SIZE


def status_offset(device: int) -> int:
    """Where a device's part of the status page starts."""
    return STATUS_HEADER.size + device * STATUS_DEVICE_SIZE
