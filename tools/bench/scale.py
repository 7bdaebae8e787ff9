"""`bench scale`: the cost of one more client, model, command, allocation, ... as their number grows.

A curve is a cost per unit at several sizes. Its verdict compares the largest size with the smallest: within
the bound, the cost per unit does not grow. Costs at small sizes include one-time costs, so a second figure,
without a target, compares the largest with the cheapest size of the curve.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from softnpu.tools.bench import scale_clients, scale_memory, scale_models, scale_objects, scale_sessions
from softnpu.tools.bench.result import Measurement, absolute, compared
from softnpu.tools.bench.scale_point import Point
from softnpu.tools.shared.failures import UsageError

BENCH: Final = "scale"


class Axis(NamedTuple):
    """What grows, at which sizes, and how costs at these sizes are measured."""

    name: str
    sizes: Sequence[int]
    measure: Callable[[Sequence[int]], Iterator[Point]]


AXES: Final = (
    Axis("clients", (1, 4, 16, 64, 256), scale_clients.measure),
    Axis("models", (1, 10, 50, 200), scale_models.measure_count),
    Axis("model size", (1 << 20, 1 << 24, 1 << 28, 1 << 32), scale_models.measure_size),
    Axis("commands", (1, 100, 10_000, 100_000), scale_memory.measure_commands),
    Axis("allocations", (1, 100, 10_000, 100_000), scale_memory.measure_allocations),
    Axis("sessions", (1, 10, 100, 1000), scale_sessions.measure),
    Axis("queues", (1, 10, 100, 1000), scale_objects.measure_queues),
    Axis("contexts", (1, 10, 100, 1000), scale_objects.measure_contexts),
    Axis("fences", (1, 10, 100, 1000), scale_objects.measure_fences),
    Axis("events", (1, 10, 100, 1000), scale_objects.measure_events),
    Axis("lists", (1, 10, 100, 1000), scale_objects.measure_lists),
    Axis("graphs", (1, 10, 100), scale_objects.measure_graphs),
)


def run(names: Sequence[str], most: int) -> Iterator[Measurement]:
    """Yield the curves of these axes (all by default); no size above `most`, unless that is 0."""
    chosen = {axis.name: axis for axis in AXES}
    for name in names or chosen:
        if name not in chosen:
            raise UsageError(f"axis {name}", found="no such axis", expected=f"one of {', '.join(chosen)}")
    for name in names or chosen:
        axis = chosen[name]
        sizes = [size for size in axis.sizes if not most or size <= most]
        yield from curves(name, axis.measure(sizes or axis.sizes[:1]))


def curves(axis: str, points: Iterator[Point]) -> Iterator[Measurement]:
    """Yield a figure for each point as it comes, then the verdicts on the curves."""
    values: dict[tuple[str, str], dict[int, float]] = {}
    for point in points:
        if point.judged:
            values.setdefault((point.cost, point.unit), {})[point.size] = point.value
        yield absolute(BENCH, f"{axis}: {point.cost}", point.unit, point.value, size=point.size)
    for (cost, unit), curve in values.items():
        yield from _verdicts(f"{axis}: {cost}", unit, curve)


def _verdicts(metric: str, unit: str, curve: Mapping[int, float]) -> Iterator[Measurement]:
    smallest, largest = min(curve), max(curve)
    if smallest == largest:
        return
    name = f"{metric}, at the largest"
    peers = {
        f"{smallest}, at the smallest": smallest,
        "at the cheapest": min(curve, key=lambda at: curve[at]),
    }
    for peer, size in peers.items():
        yield compared(BENCH, name, unit, curve[largest], peer, curve[size])
