"""The engine's trace records besides submissions: layers, images, counters."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence

from softnpu.emulator.engine.counters import Counters
from softnpu.emulator.interface import trace
from softnpu.emulator.interface.channel import Packet
from softnpu.emulator.interface.profiling import LayerRecord
from softnpu.emulator.interface.trace import TraceFlag, TraceKind, TraceWriter
from softnpu.emulator.links import engine as link
from softnpu.emulator.openvino.binding import Binding

_LAYER = int(TraceKind.LAYER)


def change(message: link.TraceBegin | link.TraceEnd, packet: Packet, counters: Counters) -> None:
    """Begin or end tracing, as the supervisor says."""
    if isinstance(message, link.TraceEnd):
        end(counters)
    else:
        begin(message, packet.take_fds(1)[0], counters)


def begin(message: link.TraceBegin, fd: int, counters: Counters) -> None:
    """Start tracing; takes the descriptor."""
    try:
        writer = TraceWriter(fd, message.records, message.layers)
    finally:
        os.close(fd)
    _write_totals(writer, counters, TraceFlag.BEGIN)
    trace.start(writer)


def end(counters: Counters) -> None:
    """Stop tracing. The last record has the counters."""
    writer = trace.active
    trace.stop()
    if writer is not None:
        _write_totals(writer, counters, TraceFlag.END)


def run_with_layers(run: Callable[[], bool], binding: Binding) -> bool:
    """Run an inference; write its layers if they are traced."""
    started = time.monotonic_ns()
    if not run():
        return False
    writer = trace.active
    if writer is not None and writer.layers:
        _write_layers(writer, binding.layers(), started, time.monotonic_ns() - started)
    return True


def _write_layers(writer: TraceWriter, layers: Sequence[LayerRecord], started: int, taken: int) -> None:
    """Write the layers one after the other, within the inference's time.

    The sum of OpenVINO's times may be slightly larger: its threads are measured one by one.
    """
    measured = sum(layer.duration for layer in layers)
    for layer in layers:
        if not layer.duration:
            continue
        name, start, duration = writer.name(f"{layer.name} ({layer.type})"), layer.start, layer.duration
        if measured > taken:
            start, duration = start * taken // measured, duration * taken // measured
        number = layer.layer | int(layer.unit) << 32
        writer.write(_LAYER, name, started + start, duration, 0, number, layer.duration, layer.cpu)


def write_load(writer: TraceWriter, name: str, begun_ns: int, result: int) -> None:
    """Write the load of an image, from `begun_ns` until now."""
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
