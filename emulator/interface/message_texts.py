"""The allowed texts in fields of control messages."""

from __future__ import annotations

import enum


class Role(enum.StrEnum):
    """The rights of a connection.

    A session has objects of its own, a monitor only looks, a keeper looks and keeps an idle daemon alive,
    a lease takes devices.
    """

    SESSION = "session"
    MONITOR = "monitor"
    KEEPER = "keeper"
    LEASE = "lease"


class MemoryKind(enum.StrEnum):
    """The purpose of an allocation: data, or (`CONTROL`) command buffers, fences and events."""

    HOST = "host"
    DEVICE = "device"
    SHARED = "shared"
    CONTROL = "control"


class QueuePriority(enum.StrEnum):
    """The scheduling priority of a queue."""

    LOW = "low"
    NORMAL = "normal"
    HIGH = "high"


class GraphOrigin(enum.StrEnum):
    """Where a graph came from."""

    COMPILED = "compiled"
    CACHE = "cache"
    NATIVE = "native"
