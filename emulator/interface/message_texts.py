"""The texts that fields of control messages may have."""

from __future__ import annotations

import enum


class Role(enum.StrEnum):
    """What a connection may do: own objects, only look, keep an idle daemon as well, or lease devices."""

    SESSION = "session"
    MONITOR = "monitor"
    KEEPER = "keeper"
    LEASE = "lease"


class MemoryKind(enum.StrEnum):
    """What an allocation is for: data, or (`CONTROL`) command buffers, fences and events."""

    HOST = "host"
    DEVICE = "device"
    SHARED = "shared"
    CONTROL = "control"


class QueuePriority(enum.StrEnum):
    """Which queue runs first."""

    LOW = "low"
    NORMAL = "normal"
    HIGH = "high"


class GraphOrigin(enum.StrEnum):
    """Where a graph came from."""

    COMPILED = "compiled"
    CACHE = "cache"
    NATIVE = "native"
