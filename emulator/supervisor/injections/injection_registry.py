"""The registry of a daemon's injected faults, with their hit counts.

The supervisor shows the faults of requests. Engines show those of submissions, doorbells and loads: they get
these injections as commands, and again after a restart.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from softnpu.emulator.interface import messages as msg
from softnpu.emulator.interface.injection_messages import (
    Cleared,
    Inject,
    InjectClear,
    Injected,
    InjectionState,
    InjectStatus,
    InjectStatusAnswer,
)
from softnpu.emulator.interface.injections import Injection, Operation, kind_of
from softnpu.emulator.interface.result import ZeResult, refuse
from softnpu.emulator.links import engine as link
from softnpu.emulator.links.injection_counts import InjectionCounters
from softnpu.emulator.supervisor.engines.device import Device
from softnpu.emulator.supervisor.engines.virtual_function import VirtualFunction
from softnpu.emulator.supervisor.injections.request_injections import RequestTarget
from softnpu.emulator.supervisor.settings import check_injected_device
from softnpu.emulator.supervisor.users import FunctionKey

log = logging.getLogger(__name__)

_MOST = 256
_ENDED_KEPT = 32
_MOST_COUNTED = 1 << 48  # an engine may write anything
_REQUESTS, _PRIMARY = "requests", "primary"  # where the counters are that no function has alone
_ACTIVE, _USED_UP, _SESSION_GONE = "active", "used up", "session gone"

InjectionRequest = Inject | InjectStatus | InjectClear


class _Entry(msgspec.Struct):
    """An injection, the slot of its counters, and why it ended if it did.

    `functions`: those that know it. `matched`, `hits`: by functions that have ended.
    """

    id: int
    slot: int
    injection: Injection
    ended: str = ""
    functions: set[VirtualFunction] = msgspec.field(default_factory=set)
    matched: int = 0
    hits: int = 0

    @property
    def of_requests(self) -> bool:
        """Whether the supervisor shows it, and no engine."""
        return self.injection.kind_info.operation is Operation.REQUEST


class SessionPlace(NamedTuple):
    """The process of a session, and whose virtual functions it uses."""

    pid: int
    function: FunctionKey


class InjectionRegistry:
    """The injections of one daemon. `sessions()`: where each session is.

    An injection counts over the requests of all users, and over the primary functions; in a function of
    another user, or of one session, it counts by itself: an engine cannot use up what is for others.
    """

    def __init__(self, devices: Sequence[Device], sessions: Callable[[], Mapping[int, SessionPlace]]) -> None:
        self._devices = devices
        self._sessions = sessions
        self._entries: dict[int, _Entry] = {}
        self._of_requests: list[_Entry] = []
        self._free = list(range(_MOST - 1, -1, -1))
        self._counts: dict[VirtualFunction | str, InjectionCounters] = {}
        self._next = 1

    @property
    def armed(self) -> bool:
        """Whether a request may be hit."""
        return bool(self._of_requests)

    def close(self) -> None:
        """End all injections, with the daemon."""
        self._entries.clear()
        self._of_requests.clear()
        for counts in self._counts.values():
            counts.close()
        self._counts.clear()

    # ------------------------------------------------------------ requests about injections

    def answer(self, request: InjectionRequest) -> msg.Message:
        """Serve a request about injections."""
        match request:
            case Inject():
                return Injected(id=self.add(self._injection(request)))
            case InjectStatus():
                return InjectStatusAnswer(
                    faults=tuple(self._status(entry) for entry in self._entries.values())
                )
            case InjectClear():
                return Cleared(count=self._clear(request.ids))

    def add(self, injection: Injection) -> int:
        """Add an injection, checked before it has any effect, and return its id."""
        injection.check()
        check_injected_device(injection, len(self._devices))
        self._make_room()
        entry = _Entry(self._next, self._free.pop(), injection)
        self._next += 1
        for place in (_REQUESTS, _PRIMARY):
            self._counts_of(place)  # made by the first injection and kept, so that later ones hold no more
        for counts in self._counts.values():
            counts.clear(entry.slot)
        self._entries[entry.id] = entry
        if entry.of_requests:
            self._of_requests.append(entry)
        else:
            for device in self._devices:
                for function in device.functions:
                    self._announce(entry, device, function)
        log.warning("injection %d: %s %s", entry.id, injection.kind.value, injection.effective)
        return entry.id

    def _injection(self, request: Inject) -> Injection:
        kind = kind_of(request.kind)
        fields = msgspec.structs.asdict(request)
        for name in ("must", "session", "pid"):
            del fields[name]
        sessions = self._sessions_of(f"injection of {kind.value}", request)
        return Injection(**fields | {"kind": kind, "sessions": sessions})

    def _sessions_of(self, object: str, request: Inject) -> tuple[int, ...]:
        pids = {number: place.pid for number, place in self._sessions().items()}
        if request.session is not None and request.pid is not None:
            raise refuse(
                ZeResult.ERROR_INVALID_ARGUMENT,
                object,
                found="a session and a process",
                expected="one of both",
            )
        if request.session is not None:
            sessions = tuple(session for session in pids if session == request.session)
            found, expected = f"session {request.session}", "a session"
        elif request.pid is not None:
            sessions = tuple(session for session, pid in pids.items() if pid == request.pid)
            found, expected = f"process {request.pid}", "one with a session"
        else:
            return ()
        if not sessions:
            hint = "'softnpu status' lists them"
            raise refuse(ZeResult.ERROR_INVALID_ARGUMENT, object, found=found, expected=expected, hint=hint)
        return sessions

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
        self._free.insert(0, entry.slot)  # used again late: an engine may not know of the removal yet

    def _disarm(self, entry: _Entry) -> None:
        if entry in self._of_requests:
            self._of_requests.remove(entry)
        for function in entry.functions:
            function.post_injection(link.InjectionDrop(id=entry.id))

    def _state(self, entry: _Entry) -> str:
        if entry.ended:
            return entry.ended
        counts = self._counters(entry)
        used_up = counts and all(each.is_exhausted(entry.slot, entry.injection) for each in counts)
        return _USED_UP if used_up else _ACTIVE

    def _counters(self, entry: _Entry) -> list[InjectionCounters]:
        """Return all its current counters."""
        places = {_REQUESTS} if entry.of_requests else set(map(_place, entry.functions))
        return [self._counts_of(place) for place in places]

    def _counts_of(self, place: VirtualFunction | str) -> InjectionCounters:
        if place not in self._counts:
            self._counts[place] = InjectionCounters.new(_MOST)
        return self._counts[place]

    def _status(self, entry: _Entry) -> InjectionState:
        injection = entry.injection
        read = [each.read(entry.slot) for each in self._counters(entry)]
        matched = entry.matched + sum(min(each[0], _MOST_COUNTED) for each in read)
        hits = entry.hits + sum(min(each[1], _MOST_COUNTED) for each in read)
        fields = msgspec.structs.asdict(injection)
        fields |= {"kind": injection.kind.value, "value": injection.effective}
        return InjectionState(id=entry.id, state=self._state(entry), matched=matched, hits=hits, **fields)

    # ------------------------------------------------------------ engines and sessions come and go

    def announce_all(self, device: Device, function: VirtualFunction) -> None:
        """Send the active injections to a new engine."""
        for entry in self._entries.values():
            if not entry.of_requests and not entry.ended:
                self._announce(entry, device, function)

    def _announce(self, entry: _Entry, device: Device, function: VirtualFunction) -> None:
        if entry.injection.device not in (None, device.info.index) or not self._concerns(entry, function):
            return
        counts = self._counts_of(_place(function))
        if not counts.is_exhausted(entry.slot, entry.injection):
            command = link.InjectionAdd(
                id=entry.id, slot=entry.slot, counters=counts.capacity, injection=entry.injection
            )
            entry.functions.add(function)
            function.post_injection(command, [counts.fd])

    def _concerns(self, entry: _Entry, function: VirtualFunction) -> bool:
        known, mine = self._sessions(), entry.injection.sessions
        return not mine or any(number in known and known[number].function == function.key for number in mine)

    def function_gone(self, function: VirtualFunction) -> None:
        """Keep the counts of an ended function."""
        counts = self._counts.pop(function, None)
        for entry in self._entries.values():
            if function in entry.functions and counts is not None:
                entry.functions.remove(function)
                matched, hits = counts.read(entry.slot)
                entry.matched += min(matched, _MOST_COUNTED)
                entry.hits += min(hits, _MOST_COUNTED)
        if counts is not None:
            counts.close()

    def session_gone(self, number: int) -> None:
        """End the injections that were for this session alone."""
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

    def hit(self, target: RequestTarget) -> Injection | None:
        """The injection that hits a request, if any; counts the request for all that it matched before."""
        for entry in list(self._of_requests):
            injection = entry.injection
            if not target.matches(injection):
                continue
            counts = self._counts_of(_REQUESTS)
            hit = counts.hit(entry.slot, injection)
            if counts.is_exhausted(entry.slot, injection):
                self._of_requests.remove(entry)
            if hit:
                log.warning("client %d, %s: injected %s", target.client, target.tag, injection.kind.value)
                return injection
        return None


def _place(function: VirtualFunction) -> VirtualFunction | str:
    return _PRIMARY if function.primary else function
