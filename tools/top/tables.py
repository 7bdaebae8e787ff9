"""The columns of `softnpu top`: how a cell reads, and what it sorts by."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from softnpu.tools.shared.console import format_bytes, format_time


@dataclass(frozen=True)
class Column:
    """One column. `order`: the sort key of rows; `falling`: largest first."""

    title: str
    text: Callable[[Any], str]
    order: Callable[[Any], Any]
    falling: bool = False

    @property
    def right(self) -> bool:
        """Whether its cells are right-aligned numbers."""
        return self.falling


@dataclass(frozen=True)
class Listing:
    """One table. `key`: identifies a row; `sort`: the initial sort column."""

    name: str
    rows: Callable[[Any], tuple[Any, ...]]
    key: Callable[[Any], str]
    columns: tuple[Column, ...]
    sort: int


def text_column(title: str, field: str, width: int = 0) -> Column:
    """Return a column of a field, sorted case-insensitively."""
    return Column(
        title,
        lambda row: str(getattr(row, field)).ljust(width),  # columns after a changing one must not move
        lambda row: str(getattr(row, field)).lower(),
    )


def number_column(title: str, field: str, form: Callable[[Any], str] = str) -> Column:
    """Return a column of a number, largest first."""
    return Column(title, lambda row: form(getattr(row, field)), lambda row: getattr(row, field), falling=True)


def percent(share: float) -> str:
    """Return `12.3`: a share in percent."""
    return f"{100 * share:.1f}"


def rate_text(value: float) -> str:
    """Return `123`, `12.3`."""
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}"


def _devices(row: Any) -> str:
    return ", ".join(row.devices)


def _models(row: Any) -> str:
    return ", ".join(row.models) or "-"


LISTINGS: Final = (
    Listing(
        "Sessions",
        lambda view: view.sessions,
        lambda row: str(row.session),
        (
            number_column("PID", "pid"),
            text_column("USER", "user"),
            text_column("STATE", "state", 7),
            number_column("NPU%", "share", percent),
            number_column("MEM", "memory", format_bytes),
            number_column("INF/S", "inferences_s", lambda rate: rate_text(rate).rjust(5)),
            number_column("QUEUE", "queued"),
            number_column("TIME", "busy_s", lambda time: format_time(time).rjust(9)),
            text_column("PROGRAM", "program"),
            Column("MODELS", _models, _models),
        ),
        3,
    ),
    Listing(
        "Models",
        lambda view: view.models,
        lambda row: str(row.model),
        (
            text_column("MODEL", "name"),
            text_column("DEVICE", "device"),
            text_column("STATE", "state", 8),
            number_column("MEM", "memory", format_bytes),
            number_column("USED BY", "sessions"),
            number_column("INF/S", "inferences_s", rate_text),
            number_column("MEAN", "mean_s", format_time),
            number_column("INFERENCES", "inferences"),
        ),
        5,
    ),
    Listing(
        "Compilations",
        lambda view: view.compilations,
        lambda row: f"{row.session} {row.kind} {row.name} {row.age_s}",
        (
            number_column("SESSION", "session"),
            text_column("DEVICE", "device"),
            text_column("FOR", "kind"),
            text_column("MODEL", "name"),
            text_column("STAGE", "stage", 7),
            number_column("DONE%", "done", lambda done: f"{100 * done:.0f}"),
            number_column("AGE", "age_s", format_time),
        ),
        6,
    ),
    Listing(
        "Leases",
        lambda view: view.leases,
        lambda row: str(row.lease),
        (
            number_column("PID", "pid"),
            Column("DEVICES", _devices, _devices),
            number_column("OF EACH%", "share", percent),
            number_column("SESSIONS", "sessions"),
            text_column("PROGRAM", "program"),
        ),
        0,
    ),
)


def matches(listing: Listing, row: Any, text: str) -> bool:
    """Return whether a cell of the row has this text, case-insensitively."""
    return any(text.lower() in column.text(row).lower() for column in listing.columns)
