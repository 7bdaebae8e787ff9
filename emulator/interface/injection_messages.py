"""The control messages of fault injection; part of `messages`."""

from __future__ import annotations

import msgspec

from softnpu.emulator.interface.message import Message


class Inject(Message, frozen=True, kw_only=True, tag="inject"):
    """Inject a fault, see `injections`. `pid`: all current sessions of this process. Answer: `Injected`."""

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
    """Ask for the state of all injections. Answer: `InjectStatusAnswer`."""


class InjectClear(Message, frozen=True, kw_only=True, tag="inject_clear"):
    """Remove injections, None for all. Refused without effect if one does not exist. Answer: `Cleared`."""

    ids: tuple[int, ...] | None = None


class Injected(Message, frozen=True, kw_only=True, tag="injected"):
    """The fault is injected. `id` names it."""

    id: int


class InjectionState(msgspec.Struct, frozen=True, kw_only=True):
    """One injection: how many operations matched, and how many of them it has hit.

    `state`: `active`, `used up`, or `session gone`. `value`: the requested one, else the default.
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


class InjectStatusAnswer(Message, frozen=True, kw_only=True, tag="inject_status_answer"):
    """Active injections, and the last ones that expired; oldest first."""

    faults: tuple[InjectionState, ...]


class Cleared(Message, frozen=True, kw_only=True, tag="cleared"):
    """How many injections were removed."""

    count: int
