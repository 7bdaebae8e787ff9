"""The messages about faults that a user asks for, full and minimal, for `test_messages`."""

from __future__ import annotations

from softnpu.emulator.interface.injection_messages import (
    Cleared,
    Inject,
    InjectClear,
    Injected,
    InjectedAre,
    InjectionState,
    InjectStatus,
)
from softnpu.emulator.interface.message import Message

_STATE = InjectionState(
    id=5,
    kind="slow",
    state="active",
    matched=300,
    hits=12,
    value="20ms",
    device=1,
    sessions=(7, 8),
    after=3,
    count=None,
    probability=0.5,
    seed=2**40,
)

INJECTION_CASES: dict[str, tuple[Message, Message]] = {
    "inject": (
        Inject(
            must=("kind",),
            kind="slow",
            value="20ms",
            device=1,
            session=7,
            pid=99,
            after=3,
            count=None,
            probability=0.5,
            seed=2**40,
        ),
        Inject(kind="reset"),
    ),
    "inject_status": (InjectStatus(must=("must",)), InjectStatus()),
    "inject_clear": (InjectClear(must=("ids",), ids=(5, 300)), InjectClear()),
    "injected": (Injected(must=("id",), id=5), Injected(id=5)),
    "injected_are": (InjectedAre(must=("faults",), faults=(_STATE,)), InjectedAre(faults=())),
    "cleared": (Cleared(must=("count",), count=2), Cleared(count=0)),
}
