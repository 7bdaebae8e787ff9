"""Fault injection into a running daemon, to test how a program handles failures.

>>> from softnpu.driver import faults
>>> with faults.injected("compile-fail"):
...     compile_something()

`docs/faults.md` lists every kind and its symptoms. Requires the owner of the daemon, or root.
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
    """Inject a fault; return its id. `socket` None: `SOFTNPU_SOCKET` or the user's own daemon.

    `session`: a number shown by `softnpu status`, or `pid:PID` for all current sessions of that process. The
    first `after` matching operations pass; each later one is hit with `probability`, until `count` (None: no
    limit) were hit. The same `seed` picks the same ones. `value` depends on the kind; a number is
    milliseconds.
    Raises `ZeError` before any effect: UNINITIALIZED without a daemon, INVALID_ARGUMENT for unknown or
    contradictory values, INSUFFICIENT_PERMISSIONS for another user.
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
    """Return all active injections and the last ones that expired; oldest first."""
    with _daemon(socket) as driver:
        return status_of(driver)


def status_of(driver: Driver) -> list[InjectionState]:
    """As `status`, over an existing connection."""
    answer, _ = driver._connection.request(_CALL, InjectStatus(), InjectStatusAnswer)
    return list(answer.faults)


def clear(ids: Iterable[int] | None = None, socket: Path | str | None = None) -> int:
    """Remove injections, None for all; return how many. An unknown id is rejected without effect."""
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
    """`inject` for the duration of a block; yields its id and clears it if the daemon still runs."""
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
    """Return the session and process named by the argument `session` of `inject`."""
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
