"""The control messages about faults that a user asks for. They are a part of `messages`."""

from __future__ import annotations

import msgspec

from softnpu.emulator.interface.message import Message


class Inject(Message, frozen=True, kw_only=True, tag="inject"):
    """Asks for a fault, see `injections`. `pid`: all sessions that it has now. Answer: `Injected`."""

    kind: str
    value: str = ""
    device: int | None = None
    session: int | None = None
    pid: int | None = None
    after: int = 0
    count: int | None = 1
    probability: float = 1.0
    seed: int = 0


class InjectStatus(Message, frozen=True, kw_only=True, tag="inject_status"):
    """Asks for the faults that were asked for. Answer: `InjectedAre`."""


class InjectClear(Message, frozen=True, kw_only=True, tag="inject_clear"):
    """Ends injections, None for all. Refused with no effect if one does not exist. Answer: `Cleared`."""

    ids: tuple[int, ...] | None = None


class Injected(Message, frozen=True, kw_only=True, tag="injected"):
    """The fault will happen. `id` names it."""

    id: int


class InjectionState(msgspec.Struct, frozen=True, kw_only=True):
    """One injection and what has come of it.

    `matched` operations it might have acted on, `hits` on which it has. `state`: `active`, `used up`, or
    `session gone`. `value`: as it was given, else what holds without one.
    """

    id: int
    kind: str
    state: str
    matched: int
    hits: int
    value: str = ""
    device: int | None = None
    sessions: tuple[int, ...] = ()
    after: int = 0
    count: int | None = 1
    probability: float = 1.0
    seed: int = 0


class InjectedAre(Message, frozen=True, kw_only=True, tag="injected_are"):
    """Active injections, and the last of those that have ended by themselves; the oldest first."""

    faults: tuple[InjectionState, ...]


class Cleared(Message, frozen=True, kw_only=True, tag="cleared"):
    """How many injections were removed."""

    count: int
