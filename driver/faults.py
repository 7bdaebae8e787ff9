"""Inject faults into a running daemon, to test how a program handles them.

>>> from softnpu.driver import faults
>>> with faults.injected("compile-fail"):
...     compile_something()

`docs/faults.md` has every kind, and what programs see. Only the owner of the daemon and root may do this.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from softnpu.driver.driver import Driver
from softnpu.driver.errors import ZeError, invalid_argument
from softnpu.emulator.interface.injection_messages import (
    Cleared,
    Inject,
    InjectClear,
    Injected,
    InjectionState,
    InjectStatus,
    InjectStatusAnswer,
)
from softnpu.emulator.interface.injections import FaultKind

__all__ = ["FaultKind", "InjectionState", "clear", "inject", "injected", "status", "status_of"]

_CALL = "inject"
_PROCESS = "pid:"


def inject(
    kind: FaultKind | str,
    *,
    socket: Path | str | None = None,
    device: int | None = None,
    session: int | str | None = None,
    after: int = 0,
    count: int | None = 1,
    probability: float = 1.0,
    seed: int = 0,
    value: str | float | None = None,
) -> int:
    """Inject a fault; its id. `socket` None: `SOFTNPU_SOCKET` or the user's own daemon.

    `session`: a number that `softnpu status` shows, or `pid:PID` for all sessions that this process has now.
    The first `after` operations that match pass; of the others each is hit with `probability`, until `count`
    (None: no end) were hit. The same `seed` picks the same ones. `value`: as the kind takes it; a number is
    milliseconds. Raises `ZeError` before any effect: UNINITIALIZED without a daemon, INVALID_ARGUMENT for
    what is unknown or contradicts itself, INSUFFICIENT_PERMISSIONS for another user.
    """
    number, process = _session_filter(session)
    request = Inject(
        kind=str(kind),
        value=_text(value),
        device=device,
        session=number,
        pid=process,
        after=after,
        count=count,
        probability=probability,
        seed=seed,
    )
    with _daemon(socket) as driver:
        answer, _ = driver._connection.request(_CALL, request, Injected)
    return answer.id


def status(socket: Path | str | None = None) -> list[InjectionState]:
    """All injections that are active, and the last that have ended by themselves; the oldest first."""
    with _daemon(socket) as driver:
        return status_of(driver)


def status_of(driver: Driver) -> list[InjectionState]:
    """`status` over an existing connection."""
    answer, _ = driver._connection.request(_CALL, InjectStatus(), InjectStatusAnswer)
    return list(answer.faults)


def clear(ids: Iterable[int] | None = None, socket: Path | str | None = None) -> int:
    """End injections, None for all; how many were removed. An id that does not exist: refused, no effect."""
    request = InjectClear(ids=None if ids is None else tuple(ids))
    with _daemon(socket) as driver:
        answer, _ = driver._connection.request(_CALL, request, Cleared)
    return answer.count


@contextmanager
def injected(
    kind: FaultKind | str,
    *,
    socket: Path | str | None = None,
    device: int | None = None,
    session: int | str | None = None,
    after: int = 0,
    count: int | None = 1,
    probability: float = 1.0,
    seed: int = 0,
    value: str | float | None = None,
) -> Iterator[int]:
    """`inject` for the length of a block: its id; at the end it is cleared if the daemon is still there."""
    made = inject(
        kind,
        socket=socket,
        device=device,
        session=session,
        after=after,
        count=count,
        probability=probability,
        seed=seed,
        value=value,
    )
    try:
        yield made
    finally:
        with suppress(ZeError):  # the daemon is gone, or another process has cleared it
            clear([made], socket)


def _daemon(socket: Path | str | None) -> Driver:
    return Driver.open(socket, autostart=False, role="monitor")


def _session_filter(session: int | str | None) -> tuple[int | None, int | None]:
    """Session and process that the argument `session` of `inject` means."""
    if session is None or isinstance(session, int):
        return session, None
    text = session.removeprefix(_PROCESS)
    if not (text.isascii() and text.isdigit()):
        raise invalid_argument(
            _CALL,
            "session",
            found=repr(session),
            expected="a number, or pid:PID",
            hint="'softnpu status' lists them",
        )
    return (None, int(text)) if session.startswith(_PROCESS) else (int(text), None)


def _text(value: str | float | None) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else f"{value:g}ms"
