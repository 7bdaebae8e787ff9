"""What the engine writes into a trace besides its submissions: layers, images, and what it has counted."""

from __future__ import annotations

import time
from collections.abc import Callable

from softnpu.emulator.engine.counters import Counters
from softnpu.emulator.engine.executor import Binding
from softnpu.emulator.interface import trace
from softnpu.emulator.interface.trace import TraceFlag, TraceKind, TraceWriter


def begin(writer: TraceWriter, counters: Counters) -> None:
    """Trace from now on."""
    _write_totals(writer, counters, TraceFlag.BEGIN)
    trace.start(writer)


def end(counters: Counters) -> None:
    """Trace no longer. The last record says what was counted until now."""
    writer = trace.active
    trace.stop()
    if writer is not None:
        _write_totals(writer, counters, TraceFlag.END)


def run_with_layers(
    run: Callable[[Callable[[], bool]], bool], binding: Binding, is_cancelled: Callable[[], bool]
) -> bool:
    """Run an inference; while layers are traced, write those of it."""
    begun = time.monotonic_ns()
    if not run(is_cancelled):
        return False
    writer = trace.active
    if writer is not None and writer.layers:
        for layer in binding.layers():
            if layer.duration:
                name = writer.name(f"{layer.name} ({layer.type})")
                start = begun + layer.start
                writer.write(TraceKind.LAYER, name, start, layer.duration, 0, layer.layer, int(layer.unit))
    return True


def write_load(writer: TraceWriter, name: str, begun_ns: int, result: int) -> None:
    """Write that an image was loaded, from `begun_ns` until now."""
    index, now = writer.name(f"load {name}"), time.monotonic_ns()
    writer.write(TraceKind.LOAD, index, begun_ns, now - begun_ns, result=result)


def _write_totals(writer: TraceWriter, counters: Counters, flag: TraceFlag) -> None:
    writer.write(
        TraceKind.TOTALS,
        0,
        time.monotonic_ns(),
        flags=flag,
        first=counters.submissions,
        second=counters.inferences,
        third=counters.busy_ns,
    )
