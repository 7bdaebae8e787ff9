"""One figure of a benchmark, and the verdict on it."""

from __future__ import annotations

import msgspec


class Measurement(msgspec.Struct, frozen=True, kw_only=True):
    """One figure. `ratio` is value over peer value; without a target there is no verdict (`ok` None)."""

    bench: str
    metric: str
    value: float
    unit: str
    peer: str | None = None
    peer_value: float | None = None
    ratio: float | None = None
    target: float | None = None
    ok: bool | None = None


def compared(
    bench: str,
    metric: str,
    unit: str,
    value: float,
    peer: str,
    peer_value: float,
    *,
    at_most: float | None = None,
    at_least: float | None = None,
) -> Measurement:
    """A figure beside a peer's. The bound, if any, holds for the ratio of the two."""
    ratio = value / peer_value if peer_value else None
    ok: bool | None = None
    if ratio is not None and at_most is not None:
        ok = ratio <= at_most
    if ratio is not None and at_least is not None:
        ok = ratio >= at_least
    return Measurement(
        bench=bench,
        metric=metric,
        value=_rounded(value),
        unit=unit,
        peer=peer,
        peer_value=_rounded(peer_value),
        ratio=None if ratio is None else _rounded(ratio),
        target=at_most if at_most is not None else at_least,
        ok=ok,
    )


def absolute(
    bench: str,
    metric: str,
    unit: str,
    value: float,
    *,
    exactly: float | None = None,
    at_most: float | None = None,
) -> Measurement:
    """A figure without a peer; with `exactly`, the value that it has to have, or a bound."""
    target = exactly if at_most is None else at_most
    ok = None if target is None else value == target if at_most is None else value <= at_most
    return Measurement(bench=bench, metric=metric, value=_rounded(value), unit=unit, target=target, ok=ok)


def _rounded(value: float) -> float:
    return float(f"{value:.4g}") if abs(value) < 1000 else round(value, 1)
