"""The records of `native/fast_path.hpp`, shared by Python and C++."""

from __future__ import annotations

import ctypes
import enum

from softnpu.emulator.engine.share import LEVELS
from softnpu.emulator.interface import records

CONTENT = records.SLOT_TICKET - 8
"""Bytes of a slot between its sequence number and its ticket."""
MAX_EVENTS = 64
CALLED = 1
"""What a successful `CallRecord.call` returns."""
_word, _int, _pointer = ctypes.c_uint64, ctypes.c_uint32, ctypes.c_void_p


class Kind(enum.IntEnum):
    """The kind of a step."""

    INFER = 1
    COPY = 2
    FILL = 3
    TIMESTAMP = 4
    EVENT_WAIT = 5
    EVENT_SIGNAL = 6
    EVENT_RESET = 7
    CALL = 8


class StepRecord(ctypes.Structure):
    """One step of a prepared submission."""

    _fields_ = (("kind", _word), ("at", _pointer), ("source", _pointer), ("size", _word), ("value", _word))


class PreparedRecord(ctypes.Structure):
    """A prepared submission."""

    _fields_ = (
        ("content", ctypes.c_ubyte * CONTENT),
        ("commands", _pointer),
        ("data", ctypes.c_char_p),
        ("size", _word),
        ("fence", _pointer),
        ("steps", ctypes.POINTER(StepRecord)),
        *((name, _word) for name in ("count", "journaled", "commands_done", "inferences", "read", "written")),
        ("tiles", _word),
        ("image", _pointer),
    )


class QueueRecord(ctypes.Structure):
    """A queue."""

    _fields_ = (
        ("ring", _pointer),
        ("state", _pointer),
        ("spent", _pointer),
        ("prepared", _pointer),  # to pointers to `PreparedRecord`
        *((name, _word) for name in ("prepared_count", "slots", "completed", "poisoned", "ran_ns")),
        *((name, _word) for name in ("logged_waiting", "step", "found")),
        ("level", _int),
        ("doorbell", ctypes.c_int32),
        *((name, _int) for name in ("turbo", "awake", "whole", "shown")),
    )


class CountersRecord(ctypes.Structure):
    """The addresses of the device's counters."""

    _fields_ = (
        *((name, _pointer) for name in ("heartbeat", "submissions", "commands", "inferences", "busy")),
        *((name, _pointer) for name in ("tile_busy", "read", "written", "queued", "histogram", "bounds")),
        ("bound_count", _word),
    )


class CallRecord(ctypes.Structure):
    """The input and output of a call."""

    _fields_ = (
        ("queues", ctypes.POINTER(ctypes.POINTER(QueueRecord))),
        ("count", _word),
        ("counters", CountersRecord),
        ("infer", _pointer),
        ("call", _pointer),
        ("injections", _pointer),
        ("injections_seen", _word),
        ("min_spent_ns", _word * LEVELS),
        ("ns_per_tick", ctypes.c_double),
        *((name, _word) for name in ("spin_ns", "misses", "skipped")),
        *((name, _word) for name in ("counted_due_ns", "poll_due_ns", "idle_due_ns", "cpu_ns", "done")),
        ("epoll", ctypes.c_int32),
        ("event_count", _int),
        ("events", ctypes.c_int32 * MAX_EVENTS),
    )


SIZES = tuple(map(ctypes.sizeof, (StepRecord, PreparedRecord, QueueRecord, CallRecord)))
"""The required result of `softnpu_fast_path_sizes`."""
