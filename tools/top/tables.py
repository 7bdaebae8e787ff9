"""The columns of the tables of `softnpu top`: how a cell reads, and what it sorts by."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from softnpu.emulator.interface.lease_messages import WHOLE_DEVICE
from softnpu.tools.console import format_bytes, format_time
from softnpu.tools.monitor.views import View


@dataclass(frozen=True)
class Column:
    """One column. `order`: what rows are sorted by; `falling`: the largest first."""

    title: str
    text: Callable[[Any], str]
    order: Callable[[Any], Any]
    falling: bool = False

    @property
    def right(self) -> bool:
        """Whether its cells are numbers, which end at the right."""
        return self.falling


@dataclass(frozen=True)
class Listing:
    """One table. `key`: what names a row; `sort`: the column that it is sorted by at first."""

    name: str
    rows: Callable[[View], tuple[Any, ...]]
    key: Callable[[Any], str]
    columns: tuple[Column, ...]
    sort: int


def _text(title: str, field: str, width: int = 0) -> Column:
    return Column(
        title,
        lambda row: str(getattr(row, field)).ljust(width),  # columns behind one that changes must not move
        lambda row: str(getattr(row, field)).lower(),
    )


def _number(title: str, field: str, form: Callable[[Any], str] = str) -> Column:
    return Column(title, lambda row: form(getattr(row, field)), lambda row: getattr(row, field), falling=True)


def percent(share: float) -> str:
    """`12.3`: a share in percent."""
    return f"{100 * share:.1f}"


def _rate(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}"


def _devices(row: Any) -> str:
    return ", ".join(f"NPU.{number}" for number in row.devices)


def _models(row: Any) -> str:
    return ", ".join(row.models) or "-"


LISTINGS: Final = (
    Listing(
        "Sessions",
        lambda view: view.sessions,
        lambda row: str(row.session),
        (
            _number("PID", "pid"),
            _text("USER", "user"),
            _text("STATE", "state", 7),
            _number("NPU%", "share", percent),
            _number("MEM", "memory", format_bytes),
            _number("INF/S", "inferences_s", lambda rate: _rate(rate).rjust(5)),
            _number("QUEUE", "queued"),
            _number("TIME", "busy_s", lambda time: format_time(time).rjust(9)),
            _text("PROGRAM", "program"),
            Column("MODELS", _models, _models),
        ),
        3,
    ),
    Listing(
        "Models",
        lambda view: view.models,
        lambda row: str(row.model),
        (
            _text("MODEL", "name"),
            _text("DEVICE", "device"),
            _text("STATE", "state", 8),
            _number("MEM", "memory", format_bytes),
            _number("USED BY", "sessions"),
            _number("INF/S", "inferences_s", _rate),
            _number("MEAN", "mean_s", format_time),
            _number("INFERENCES", "inferences"),
        ),
        5,
    ),
    Listing(
        "Compilations",
        lambda view: view.compilations,
        lambda row: f"{row.session} {row.kind} {row.name} {row.age_s}",
        (
            _number("SESSION", "session"),
            _text("DEVICE", "device"),
            _text("FOR", "kind"),
            _text("MODEL", "name"),
            _text("STAGE", "stage", 7),
            _number("DONE%", "done", lambda done: f"{100 * done:.0f}"),
            _number("AGE", "age_s", format_time),
        ),
        6,
    ),
    Listing(
        "Leases",
        lambda view: view.sample.status.leases,
        lambda row: str(row.lease),
        (
            _number("PID", "pid"),
            Column("DEVICES", _devices, _devices),
            _number("OF EACH%", "share", lambda share: percent(share / WHOLE_DEVICE)),
            _number("SESSIONS", "sessions"),
            _text("PROGRAM", "client"),
        ),
        0,
    ),
)


def matches(listing: Listing, row: Any, text: str) -> bool:
    """Whether a cell of the row has this text, in upper or lower case."""
    return any(text.lower() in column.text(row).lower() for column in listing.columns)
