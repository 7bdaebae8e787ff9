"""A person's view of two samples: rates, and shares of the time between them."""

from __future__ import annotations

import pwd
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from softnpu.tools.shared.monitor.programs import Programs
from softnpu.tools.shared.monitor.sample import Sample

if TYPE_CHECKING:
    from softnpu.emulator.interface.messages import (
        CompilationActivity,
        EngineStatus,
        LeaseStatus,
        ModelActivity,
        SessionActivity,
        StatusAnswer,
    )


@dataclass(frozen=True)
class DeviceView:
    """A device. Shares are 0 to 1; `tiles_used` is a mean; bytes and inferences are per second."""

    name: str
    platform: str
    state: str
    utilisation: float
    tiles_used: float
    tiles: int
    memory_used: int
    memory_total: int
    queued: int
    inferences_s: float
    traffic_s: float
    restarts: int
    clock_mhz: int


@dataclass(frozen=True)
class SessionView:
    """A session. `share` 0 to 1 of a device's time, summed over devices."""

    session: int
    pid: int
    user: str
    program: str
    state: str
    share: float
    memory: int
    models: tuple[str, ...]
    inferences_s: float
    inferences: int
    queued: int
    busy_s: float
    age_s: float


@dataclass(frozen=True)
class ModelView:
    """A model on a device. `mean_s`: of the inferences between the samples, else of all."""

    model: int
    device: str
    name: str
    state: str
    memory: int
    sessions: int
    inferences: int
    inferences_s: float
    mean_s: float
    busy_s: float


@dataclass(frozen=True)
class CompilationView:
    """A job of the compiler. `done` 0 to 1; `stage` says so when it waits for a worker."""

    session: int
    device: str
    kind: str
    name: str
    stage: str
    done: float
    age_s: float


@dataclass(frozen=True)
class LeaseView:
    """A lease: its holder, its devices by name, and its share of each, 0 to 1."""

    lease: int
    pid: int
    program: str
    devices: tuple[str, ...]
    share: float
    sessions: int


@dataclass(frozen=True)
class View:
    """All data that a monitor shows. `interval_s`: the period that rates average."""

    sample: Sample
    interval_s: float
    devices: tuple[DeviceView, ...]
    sessions: tuple[SessionView, ...]
    models: tuple[ModelView, ...]
    compilations: tuple[CompilationView, ...]
    leases: tuple[LeaseView, ...]

    @classmethod
    def of(cls, now: Sample, before: Sample | None, programs: Programs) -> View:
        """Build with rates since `before`; without it, or for another daemon, since the start of each."""
        if before is not None and before.status.pid != now.status.pid:
            before = None
        programs.keep(list(now.sessions))
        names = {engine.device.index: device_name(engine, now.status) for engine in now.status.engines}
        models = {model.model: model.name for model in now.models}
        passed = now.status.uptime_s - before.status.uptime_s if before else now.status.uptime_s
        old_engines = before.status.engines if before else ()
        sessions = {each.session: each for each in before.sessions} if before else {}
        old_models = {each.model: each for each in before.models} if before else {}
        return cls(
            sample=now,
            interval_s=passed,
            devices=tuple(
                _device(engine, old_engines[index] if old_engines else None, passed, names)
                for index, engine in enumerate(now.status.engines)
            ),
            sessions=tuple(
                _session(each, sessions.get(each.session), models, programs) for each in now.sessions
            ),
            models=tuple(_model(each, old_models.get(each.model), names) for each in now.models),
            compilations=tuple(_compilation(each, names) for each in now.compilations),
            leases=tuple(_lease(each, names) for each in now.status.leases),
        )


def device_name(engine: EngineStatus, state: StatusAnswer) -> str:
    """Return `NPU`, or `NPU.1` when there are several: the plugin's name."""
    return "NPU" if len(state.engines) == 1 else f"NPU.{engine.device.index}"


@cache
def user_name(uid: int) -> str:
    """Return a user's name, or the number of a nameless one."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _device(
    engine: EngineStatus, before: EngineStatus | None, passed: float, names: dict[int, str]
) -> DeviceView:
    def rate(field: str) -> float:
        change: int = getattr(engine, field) - (getattr(before, field) if before else 0)
        return change / passed if passed > 0 else 0.0

    tiles = engine.device.tiles
    return DeviceView(
        name=names[engine.device.index],
        platform=engine.device.platform,
        state=engine.state,
        # work is counted when it ends or pauses: some of it may precede the first sample
        utilisation=min(1.0, rate("busy_ns") / 1e9),
        tiles_used=min(float(tiles), rate("tile_busy_ns") / 1e9),
        tiles=tiles,
        memory_used=engine.memory_used,
        memory_total=engine.device.memory_total,
        queued=engine.queued,
        inferences_s=rate("inferences"),
        traffic_s=rate("read_bytes") + rate("written_bytes"),
        restarts=engine.restarts,
        clock_mhz=engine.device.core_clock_mhz,
    )


def _session(
    now: SessionActivity, before: SessionActivity | None, models: dict[int, str], programs: Programs
) -> SessionView:
    passed = now.age_s - (before.age_s if before else 0.0)
    busy_ns = now.busy_ns - (before.busy_ns if before else 0)
    inferences = now.inferences - (before.inferences if before else 0)
    return SessionView(
        session=now.session,
        pid=now.pid,
        user=user_name(now.uid),
        program=programs.name(now),
        state=now.state,
        share=min(float(len(now.devices) or 1), busy_ns / 1e9 / passed) if passed > 0 else 0.0,
        memory=now.memory_used,
        models=tuple(models.get(number) or f"model {number}" for number in now.models),
        inferences_s=inferences / passed if passed > 0 else 0.0,
        inferences=now.inferences,
        queued=now.queued,
        busy_s=now.busy_ns / 1e9,
        age_s=now.age_s,
    )


def _model(now: ModelActivity, before: ModelActivity | None, names: dict[int, str]) -> ModelView:
    passed = now.age_s - (before.age_s if before else 0.0)
    inferences = now.inferences - (before.inferences if before else 0)
    if inferences:
        mean_s = (now.busy_ns - (before.busy_ns if before else 0)) / 1e9 / inferences
    else:
        mean_s = now.busy_ns / 1e9 / now.inferences if now.inferences else 0.0
    return ModelView(
        model=now.model,
        device=names[now.device],
        name=now.name or f"model {now.model}",
        state=now.state,
        memory=now.memory,
        sessions=now.sessions,
        inferences=now.inferences,
        inferences_s=inferences / passed if passed > 0 else 0.0,
        mean_s=mean_s,
        busy_s=now.busy_ns / 1e9,
    )


def _compilation(now: CompilationActivity, names: dict[int, str]) -> CompilationView:
    return CompilationView(
        session=now.session,
        device=names.get(now.device, "-"),
        kind=now.kind,
        name=now.name or "-",
        stage=now.stage or ("starts" if now.worker else "waits"),
        done=now.done,
        age_s=now.age_s,
    )


def _lease(now: LeaseStatus, names: dict[int, str]) -> LeaseView:
    from softnpu.emulator.interface.lease_messages import WHOLE_DEVICE

    return LeaseView(
        lease=now.lease,
        pid=now.pid,
        program=now.client,
        devices=tuple(names[number] for number in now.devices),
        share=now.share / WHOLE_DEVICE,
        sessions=now.sessions,
    )
