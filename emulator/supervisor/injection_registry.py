"""Faults that a user asks for: which there are, what they have done, and those that the supervisor shows.

Those of submissions, doorbells and loads are the engines': they get them as orders, again after a restart.
"""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from softnpu.emulator.interface import messages as msg
from softnpu.emulator.interface.channel import Packet
from softnpu.emulator.interface.injection_messages import (
    Cleared,
    Inject,
    InjectClear,
    Injected,
    InjectedAre,
    InjectionState,
    InjectStatus,
)
from softnpu.emulator.interface.injections import FaultKind, Injection, Operation, kind_of
from softnpu.emulator.interface.result import Refused, ZeResult, refuse
from softnpu.emulator.links import engine as link
from softnpu.emulator.links.injection_counts import InjectionCounters

if TYPE_CHECKING:
    from softnpu.emulator.supervisor.client import Client
    from softnpu.emulator.supervisor.device import Device

log = logging.getLogger(__name__)

_MOST = 256
_ENDED_KEPT = 32
_HARM = {FaultKind.COMPILE_CRASH: signal.SIGKILL, FaultKind.COMPILE_HANG: signal.SIGSTOP}
_RESULTS = {
    FaultKind.COMPILE_FAIL: ZeResult.ERROR_MODULE_BUILD_FAILURE,
    FaultKind.LOAD_FAIL: ZeResult.ERROR_MODULE_BUILD_FAILURE,
}
_RESULTS_OF_REQUESTS = {
    "mem_alloc": ZeResult.ERROR_OUT_OF_DEVICE_MEMORY,
    "mem_import": ZeResult.ERROR_INVALID_ARGUMENT,
    "graph_create": ZeResult.ERROR_MODULE_BUILD_FAILURE,
    "graph_query": ZeResult.ERROR_MODULE_BUILD_FAILURE,
    "graph_initialize": ZeResult.ERROR_MODULE_BUILD_FAILURE,
    "graph_import": ZeResult.ERROR_INVALID_NATIVE_BINARY,
    "status": ZeResult.ERROR_DEVICE_LOST,
    "hello": ZeResult.ERROR_UNINITIALIZED,
}
_ACTIVE, _USED_UP, _SESSION_GONE = "active", "used up", "session gone"

FaultRequest = Inject | InjectStatus | InjectClear


@dataclass
class _Entry:
    """An injection, its place among the counters, and why it ended if it did."""

    id: int
    place: int
    injection: Injection
    ended: str = ""


class Faults:
    """The injections of one daemon. `sessions()`: the process of each session."""

    def __init__(self, devices: Sequence[Device], sessions: Callable[[], Mapping[int, int]]) -> None:
        self._devices = devices
        self._sessions = sessions
        self._entries: dict[int, _Entry] = {}
        self._requests: list[_Entry] = []
        self._free = list(range(_MOST - 1, -1, -1))
        self._counts: InjectionCounters | None = None
        self._next = 1
        self._harm = 0

    @property
    def armed(self) -> bool:
        """Whether a request may be hit."""
        return bool(self._requests)

    @property
    def active(self) -> int:
        """How many are neither used up nor without a session."""
        return sum(self._state(entry) == _ACTIVE for entry in self._entries.values())

    def close(self) -> None:
        """The daemon ends, and all injections with it."""
        self._entries.clear()
        self._requests.clear()
        if self._counts is not None:
            self._counts.close()
            self._counts = None

    # ------------------------------------------------------------ what a user asks for

    def answer(self, request: FaultRequest) -> msg.Message:
        """Serves a request about injections."""
        match request:
            case Inject():
                return Injected(id=self.add(self._chosen(request)))
            case InjectStatus():
                return InjectedAre(faults=tuple(self._told(entry) for entry in self._entries.values()))
            case InjectClear():
                return Cleared(count=self._clear(request.ids))

    def add(self, injection: Injection) -> int:
        """A new one, checked before it has any effect; its id."""
        injection.check()
        if injection.device is not None and not 0 <= injection.device < len(self._devices):
            raise refuse(
                ZeResult.ERROR_INVALID_ARGUMENT,
                f"injection of {injection.kind.value}",
                found=f"device {injection.device}",
                expected=f"0 to {len(self._devices) - 1}",
            )
        self._make_room()
        counts = self._counts = self._counts or InjectionCounters.new(_MOST)
        entry = _Entry(self._next, self._free.pop(), injection)
        self._next += 1
        counts.clear(entry.place)
        self._entries[entry.id] = entry
        if injection.facts.operation is Operation.REQUEST:
            self._requests.append(entry)
        else:
            for device in self._devices:
                self._announce(entry, device, counts)
        log.warning("injection %d: %s %s", entry.id, injection.kind.value, injection.effective)
        return entry.id

    def _chosen(self, request: Inject) -> Injection:
        kind = kind_of(request.kind)
        return Injection(
            kind=kind,
            value=request.value,
            device=request.device,
            sessions=self._sessions_of(f"injection of {kind.value}", request),
            after=request.after,
            count=request.count,
            probability=request.probability,
            seed=request.seed,
        )

    def _sessions_of(self, object: str, request: Inject) -> tuple[int, ...]:
        known = self._sessions()
        hint = "'softnpu status' lists them"
        if request.session is not None and request.pid is not None:
            raise refuse(
                ZeResult.ERROR_INVALID_ARGUMENT,
                object,
                found="a session and a process",
                expected="one of both",
            )
        if request.session is not None:
            if request.session in known:
                return (request.session,)
            raise refuse(
                ZeResult.ERROR_INVALID_ARGUMENT,
                object,
                found=f"session {request.session}",
                expected="a session",
                hint=hint,
            )
        if request.pid is None:
            return ()
        mine = tuple(session for session, pid in known.items() if pid == request.pid)
        if not mine:
            raise refuse(
                ZeResult.ERROR_INVALID_ARGUMENT,
                object,
                found=f"process {request.pid}",
                expected="one with a session",
                hint=hint,
            )
        return mine

    def _clear(self, ids: tuple[int, ...] | None) -> int:
        unknown = [number for number in ids or () if number not in self._entries]
        if unknown:
            raise refuse(
                ZeResult.ERROR_INVALID_ARGUMENT,
                "injection",
                found=f"id {unknown[0]}",
                expected=f"one of {', '.join(map(str, self._entries))}"
                if self._entries
                else "no id: there is none",
                hint="'softnpu inject status' lists them",
            )
        chosen = set(self._entries) if ids is None else set(ids)
        for number in chosen:
            self._remove(self._entries[number])
        return len(chosen)

    def _make_room(self) -> None:
        ended = [entry for entry in self._entries.values() if self._state(entry) != _ACTIVE]
        for entry in ended[: max(0, len(ended) - _ENDED_KEPT + 1)]:
            self._remove(entry)
        if not self._free:
            raise refuse(
                ZeResult.ERROR_OUT_OF_HOST_MEMORY,
                "injection",
                found=f"{len(self._entries)} injections",
                expected=f"at most {_MOST}",
                hint="remove some with 'softnpu inject clear'",
            )

    def _remove(self, entry: _Entry) -> None:
        self._disarm(entry)
        del self._entries[entry.id]
        self._free.insert(0, entry.place)  # not soon: an engine may not have been told yet

    def _disarm(self, entry: _Entry) -> None:
        if entry in self._requests:
            self._requests.remove(entry)
        if entry.injection.facts.operation is not Operation.REQUEST:
            for device in self._devices:
                device.order_injection(link.InjectionDrop(id=entry.id))

    def _state(self, entry: _Entry) -> str:
        if entry.ended:
            return entry.ended
        assert self._counts is not None
        return _USED_UP if self._counts.is_exhausted(entry.place, entry.injection) else _ACTIVE

    def _told(self, entry: _Entry) -> InjectionState:
        assert self._counts is not None
        injection = entry.injection
        matched, hits = self._counts.read(entry.place)
        return InjectionState(
            id=entry.id,
            kind=injection.kind.value,
            state=self._state(entry),
            matched=matched,
            hits=hits,
            value=injection.effective,
            device=injection.device,
            sessions=injection.sessions,
            after=injection.after,
            count=injection.count,
            probability=injection.probability,
            seed=injection.seed,
        )

    # ------------------------------------------------------------ engines and sessions come and go

    def announce_all(self, device: Device) -> None:
        """Tells a new engine what it has to show."""
        for entry in self._entries.values():
            if entry.injection.facts.operation is not Operation.REQUEST and self._state(entry) == _ACTIVE:
                assert self._counts is not None
                self._announce(entry, device, self._counts)

    def _announce(self, entry: _Entry, device: Device, counts: InjectionCounters) -> None:
        if entry.injection.device in (None, device.info.index):
            order = link.InjectionAdd(
                id=entry.id, slot=entry.place, counters=counts.capacity, injection=entry.injection
            )
            device.order_injection(order, [counts.fd])

    def session_gone(self, number: int) -> None:
        """What was meant for this session alone ends with it."""
        if not self._entries:
            return
        known = self._sessions()
        for entry in self._entries.values():
            mine = entry.injection.sessions
            if number in mine and not entry.ended and not any(session in known for session in mine):
                if self._state(entry) == _ACTIVE:
                    entry.ended = _SESSION_GONE
                self._disarm(entry)

    # ------------------------------------------------------------ faults of requests

    def pass_on(self, client: Client, packet: Packet, request: msg.Request) -> bool:
        """Whether a request is served now; if not, it is dealt with. Raises `Refused` for one that fails."""
        tag = str(type(request).__struct_config__.tag)
        self._harm = 0
        injection = self._strike(client, request, tag)
        if injection is None:
            return True
        log.warning("client %d, %s: injected %s", client.number, tag, injection.kind.value)
        match injection.kind:
            case FaultKind.DAEMON_DEATH:
                os.kill(os.getpid(), signal.SIGKILL)
            case FaultKind.DISCONNECT:
                client.close("injected fault")
            case FaultKind.COMPILE_SLOW | FaultKind.DELAY:
                client.serve_later(packet, injection.seconds)
            case FaultKind.COMPILE_CRASH | FaultKind.COMPILE_HANG:
                self._harm = _HARM[injection.kind]
                return True
            case _:
                raise _refusal(injection, tag)
        return False

    def take_harm(self) -> int:
        """The signal for the worker that compiles the model of this request; 0 for none."""
        harm, self._harm = self._harm, 0
        return harm

    def _strike(self, client: Client, request: msg.Request, tag: str) -> Injection | None:
        for entry in list(self._requests):
            injection = entry.injection
            if not _matches(injection, client, request, tag):
                continue
            assert self._counts is not None
            hit = self._counts.hit(entry.place, injection)
            if self._counts.is_exhausted(entry.place, injection):
                self._requests.remove(entry)
            if hit:
                return injection
        return None


def _matches(injection: Injection, client: Client, request: msg.Request, tag: str) -> bool:
    """Whether an injection may act on a request. Those of monitors are never meant."""
    if isinstance(request, msg.Hello):
        if request.role != "session" or injection.requests != ("hello",):
            return False
    elif client.session is None:
        return False
    if injection.requests and tag not in injection.requests:
        return False
    if injection.sessions and client.number not in injection.sessions:
        return False
    if isinstance(request, msg.MemAlloc):
        if injection.kind is FaultKind.EXPORT_FAIL and not request.exportable:
            return False
        if injection.kind is FaultKind.OOM and request.kind == "control":
            return False
    if injection.device is None:
        return True
    return client.session is not None and client.session.device_of(request) == injection.device


def _refusal(injection: Injection, tag: str) -> Refused:
    what = f"injected fault: {injection.kind.value}"
    if injection.kind is FaultKind.OOM:
        host = injection.effective == "host"
        result = ZeResult.ERROR_OUT_OF_HOST_MEMORY if host else ZeResult.ERROR_OUT_OF_DEVICE_MEMORY
        return refuse(result, "memory allocation", found=what, expected="free memory")
    if injection.kind is FaultKind.COMPILE_FAIL:
        return refuse(ZeResult.ERROR_MODULE_BUILD_FAILURE, "graph", found=injection.effective)
    if injection.kind is FaultKind.EXPORT_FAIL and tag != "mem_alloc":
        return refuse(injection.result or ZeResult.ERROR_UNKNOWN, tag, found=what)
    named = injection.result or _RESULTS.get(injection.kind)
    return refuse(named or _RESULTS_OF_REQUESTS.get(tag, ZeResult.ERROR_UNKNOWN), tag, found=what)
