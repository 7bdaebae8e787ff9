"""A neighbour of `bench neighbours`: a process that floods the daemon in one way."""

from __future__ import annotations

import enum
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from softnpu.driver import Context, Driver, GraphSource

_CONFIG: Final = {"INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY"}
_COMPUTED: Final = 1000


class Flood(enum.Enum):
    """What a neighbour does as fast as it can."""

    DOORBELLS = "doorbells"
    STATUS = "status"
    LOADS = "loads"
    COMPILATIONS = "compilations"
    COMPUTATION = "computation"

    @property
    def cached(self) -> bool:
        """Whether its models come from the cache of compiled models."""
        return self is not Flood.COMPILATIONS


class FloodStart(msgspec.Struct, frozen=True):
    """The daemon's socket, the number of a device, and an IR."""

    socket: str
    device: int
    flood: Flood
    model: str


class Turn(msgspec.Struct, frozen=True):
    """How often it has done it, in so many seconds."""

    count: int
    seconds: float


def function(start: FloodStart) -> Callable[[float], Turn]:
    """Return the function that floods for some seconds; run by `worker`."""
    driver = Driver.open(Path(start.socket), autostart=False)
    context = driver.devices[start.device].create_context()
    context.create_command_queue()
    steps: dict[Flood, Callable[[], object]] = {
        Flood.DOORBELLS: lambda: os.eventfd_write(context._doorbell, 1),
        Flood.STATUS: driver.status,
        Flood.LOADS: lambda: _compile(context, start.model, load=True),
        Flood.COMPILATIONS: lambda: _compile(context, start.model, load=False),
        Flood.COMPUTATION: _compute,
    }
    step = steps[start.flood]
    step()  # the first one pays for what is kept

    def flood(seconds: float) -> Turn:
        begun, count = time.perf_counter(), 0
        while (taken := time.perf_counter() - begun) < seconds:
            step()
            count += 1
        return Turn(count, taken)

    return flood


def _compile(context: Context, model: str, *, load: bool) -> None:
    with GraphSource.from_ir(Path(model)) as source:
        graph = context.create_graph(source, _CONFIG)
    if load:
        graph.initialize()
    graph.destroy()


def _compute() -> None:
    for _ in range(_COMPUTED):
        pass
