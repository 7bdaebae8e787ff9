"""Fixed records in shared memory. Little-endian, naturally aligned, one writer for each field.

Signal (64 bytes): a fence or an event. Fields and who writes them:

    offset  size  field       writer
    0       4     state       both (see `SignalState`); also the futex word to sleep on
    4       4     waiters     waiter: 1 before it sleeps; engine: 0 before it signals
    8       4     result      engine: ze_result_t of the submission that signalled it
    12      4     cancel      driver: 1 asks that its submission is not begun any more
    16      8     submission  driver: sequence number of the submission that will signal it, 0 none
    24      8     time        engine: host clock (CLOCK_MONOTONIC) in nanoseconds

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
size), flags, fence (memory handle or 0, offset of the signal).

    0 8 sequence | 8 8 buffer | 16 8 offset | 24 4 size | 28 4 flags | 32 8 fence | 40 8 fence offset
"""

from __future__ import annotations

import enum
import struct

SIGNAL_SIZE = 64
SIGNAL_STATE = 0
SIGNAL_WAITERS = 4
SIGNAL_RESULT = 8
SIGNAL_CANCEL = 12
SIGNAL_SUBMISSION = 16
SIGNAL_TIME = 24


class SignalState(enum.IntEnum):
    """Values of a signal's state word. Everything above `HOST_RESET` means signalled."""

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
SLOT = struct.Struct("=QQQIIQQ16x")
MIN_SLOTS = 2
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
