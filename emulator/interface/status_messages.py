"""The description of a device, and the answer to `Status`: devices, sessions and users of a daemon."""

from __future__ import annotations

import enum

import msgspec

from softnpu.emulator.interface.lease_messages import LeaseStatus
from softnpu.emulator.interface.message import Message


class Clock(enum.StrEnum):
    """The clock of a device: the host's, or a modelled one; a paced device also takes the modelled time."""

    HOST = "host"
    DEVICE = "device"
    PACED = "paced"


class DeviceInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One emulated device as the handshake lists it. Clocks in MHz, memory in bytes.

    `clock`: the clock of its timestamps and profiles.
    """

    index: int
    platform: str
    name: str
    device_id: int
    revision: int
    tiles: int
    slices: int
    simd_width: int
    eus_per_subslice: int
    core_clock_mhz: int
    timer_ns_per_tick: float
    memory_total: int
    uuid: bytes
    clock: str = Clock.HOST.value


class FunctionStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One virtual function of a device: the part of a user, or of one session (else 0). Memory in bytes.

    Counters since it began.
    """

    uid: int
    session: int
    engine_pid: int
    state: str
    restarts: int
    memory_used: int
    contexts: int
    images: int
    submissions: int
    inferences: int
    busy_ns: int


class EngineStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One device: engine process, counters since the daemon started, memory in bytes.

    `engine_pid`, `state`: of its primary function, that of the daemon's owner; the rest covers all of its
    functions. `functions`: at most 64, those visible to the asking user. `running`: submissions that the
    engine executes now. `queued`: those that have not ended. `device_clock_ns`: its modelled clock. `late`:
    inferences of a paced device that took longer than modelled; `unmodelled`: those without a time.
    """

    device: DeviceInfo
    engine_pid: int
    state: str
    restarts: int
    memory_used: int
    contexts: int
    queues: int
    graphs: int
    images: int
    submissions: int
    commands: int
    inferences: int
    faults: int
    busy_ns: int
    staged_bytes: int
    heartbeat_ns: int
    hangs: int = 0
    aborted: int = 0
    offences: int = 0
    refusals: int = 0
    tile_busy_ns: int = 0
    overlapped: int = 0
    running: int = 0
    device_clock_ns: int = 0
    late: int = 0
    unmodelled: int = 0
    queued: int = 0
    read_bytes: int = 0
    written_bytes: int = 0
    build_failures: int = 0
    functions: tuple[FunctionStatus, ...] = ()


class SessionStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One session: its process, its user and its objects."""

    session: int
    pid: int
    client: str
    role: str
    memory_used: int
    contexts: int
    allocations: int
    queues: int
    graphs: int
    uid: int = 0


class UserStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One user (uid) over all of its connections: its objects, and its count of limit refusals."""

    uid: int
    connections: int
    sessions: int
    memory_used: int
    handles: int
    queues: int
    graphs: int
    compiles: int
    refusals: int


class StatusAnswer(Message, frozen=True, kw_only=True, tag="status_answer"):
    """The state of the daemon. At most 200 sessions are listed; `session_count` counts all.

    Users other than the owner and root see only themselves and their sessions. At most 64 users are listed.
    `leases`: at most 64, for the owner and root only. `internal_errors`: of the daemon's own code and of
    engines; each has ended at most a client, a child, a compilation, a submission or a load.
    """

    pid: int
    server: str
    socket: str
    uptime_s: float
    interface: str
    compiler_pids: tuple[int, ...]
    engines: tuple[EngineStatus, ...]
    session_count: int
    sessions: tuple[SessionStatus, ...]
    users: tuple[UserStatus, ...] = ()
    leases: tuple[LeaseStatus, ...] = ()
    internal_errors: int = 0
