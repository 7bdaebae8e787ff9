"""`Activity` and its answer: the current work of every session, model and compilation of a daemon."""

from __future__ import annotations

import enum

import msgspec

from softnpu.emulator.interface.message import Message


class SessionPhase(enum.StrEnum):
    """What a session does, or waits for."""

    IDLE = "idle"
    RUNNING = "running"
    TURN = "turn"
    EVENT = "event"
    LOAD = "load"
    COMPILE = "compile"


class CompilationKind(enum.StrEnum):
    """The purpose of a compiler job."""

    COMPILE = "compile"
    IMPORT = "import"
    EXPORT = "export"
    QUERY = "query"
    OPTIONS = "options"


class Activity(Message, frozen=True, kw_only=True, tag="activity"):
    """Ask for current activity. The answer lists sessions and models with numbers above these."""

    after_session: int = 0
    after_model: int = 0


class SessionActivity(msgspec.Struct, frozen=True, kw_only=True):
    """One session: its process, its objects, and its use of the device.

    `start_time`: of the process, in clock ticks since boot as in /proc/PID/stat; 0 if it cannot be read.
    `busy_ns`: time of all devices. `queued`: submissions that have not ended. `models`: numbers, at most 16.
    """

    session: int
    pid: int
    start_time: int
    client: str
    uid: int
    age_s: float
    state: str
    memory_used: int
    contexts: int
    allocations: int
    queues: int
    graphs: int
    busy_ns: int
    submissions: int
    inferences: int
    queued: int
    devices: tuple[int, ...] = ()
    models: tuple[int, ...] = ()


class ModelActivity(msgspec.Struct, frozen=True, kw_only=True):
    """One model, shared by any number of graphs. `memory`: bytes of its blob and its weights.

    `state`: `compiled`, `loading` or `loaded`. `inferences` and their `busy_ns` since its first use.
    """

    model: int
    device: int
    name: str
    state: str
    memory: int
    sessions: int
    graphs: int
    inferences: int
    busy_ns: int
    age_s: float


class CompilationActivity(msgspec.Struct, frozen=True, kw_only=True):
    """One compiler job. `stage` is empty, and `worker` 0, until a worker has started it.

    `device` -1: for no device. `done`: 0 to 1.
    """

    session: int
    device: int
    kind: str
    name: str
    stage: str
    done: float
    age_s: float
    worker: int


class Histogram(msgspec.Struct, frozen=True, kw_only=True):
    """Durations on a device: see `records.Latency` and `records.LATENCY_BOUNDS_NS`."""

    device: int
    of: str
    counts: tuple[int, ...]
    sum_ns: int


class ActivityAnswer(Message, frozen=True, kw_only=True, tag="activity_answer"):
    """Sessions and models in numerical order, at most 48 of each; `more`: there are others.

    `compilations`: the oldest, at most 24 of `compilation_count`. `histograms` only in the first answer, for
    `after_session` and `after_model` 0. `time_ns`: CLOCK_MONOTONIC.
    """

    time_ns: int
    sessions: tuple[SessionActivity, ...]
    models: tuple[ModelActivity, ...]
    more: bool
    compilation_count: int
    compilations: tuple[CompilationActivity, ...]
    histograms: tuple[Histogram, ...] = ()
