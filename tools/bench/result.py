"""One benchmark figure, and its verdict."""

from __future__ import annotations

import msgspec

from softnpu.tools.bench import targets
from softnpu.tools.bench.targets import Target
from softnpu.tools.shared.console import format_count


class Measurement(msgspec.Struct, frozen=True, kw_only=True):
    """One figure. `ratio` is value over peer value; without a target there is no verdict (`ok` None).

    `size`: the count (clients, commands, ...) of a figure that belongs to a curve.
    """

    bench: str
    metric: str
    value: float
    unit: str
    peer: str | None = None
    peer_value: float | None = None
    ratio: float | None = None
    target: float | None = None
    ok: bool | None = None
    size: int | None = None


class Conditions(msgspec.Struct, frozen=True):
    """Usable cores, those of the machine, and processes that were kept busy."""

    cores: int
    of: int
    busy: int = 0

    def __str__(self) -> str:
        cores = f"{self.cores} of {self.of} cores" if self.cores != self.of else format_count(self.of, "core")
        return cores + (
            f", beside {self.busy} busy process{'es' if self.busy > 1 else ''}" if self.busy else ""
        )


class Figures(msgspec.Struct, frozen=True):
    """The document of a run; older ones have no conditions."""

    figures: list[Measurement]
    conditions: Conditions | None = None


def compared(
    bench: str,
    metric: str,
    unit: str,
    value: float,
    peer: str,
    peer_value: float,
    *,
    at_least: float | None = None,
) -> Measurement:
    """Return a figure beside a peer's. The ratio's bound comes from `targets`, unless given."""
    ratio = value / peer_value if peer_value else None
    target = targets.find(bench, metric, peer)
    if at_least is not None:
        target = Target(bench, metric, peer, at_least, at_least=True)
    return Measurement(
        bench=bench,
        metric=metric,
        value=_rounded(value),
        unit=unit,
        peer=peer,
        peer_value=_rounded(peer_value),
        ratio=None if ratio is None else _rounded(ratio),
        target=None if target is None else target.bound,
        ok=None if target is None or ratio is None else target.allows(ratio),
    )


def absolute(
    bench: str,
    metric: str,
    unit: str,
    value: float,
    *,
    exactly: float | None = None,
    at_most: float | None = None,
    slack: float = 0.0,
    size: int | None = None,
) -> Measurement:
    """Return a figure without a peer, with its required value (`exactly`) or a bound.

    It is missed beyond `slack`.
    """
    target = exactly if at_most is None else at_most
    ok = None if target is None else value == target if at_most is None else value <= at_most + slack
    return Measurement(
        bench=bench, metric=metric, value=_rounded(value), unit=unit, target=target, ok=ok, size=size
    )


def _rounded(value: float) -> float:
    return float(f"{value:.4g}") if abs(value) < 1000 else round(value, 1)
