"""Trace records of submissions, one per turn."""

from __future__ import annotations

import time

from softnpu.emulator.engine.queues.queue import EngineQueue
from softnpu.emulator.interface.result import ErrorInfo
from softnpu.emulator.interface.trace import TraceFlag, TraceKind, TraceWriter

# plain integers: reading a member of an enumeration takes 50 ns
_EXECUTE = int(TraceKind.EXECUTE)
_ENDED = int(TraceFlag.END)
_SESSION_MASK = 0xFFFFFFFF


def write_slice(writer: TraceWriter, queue: EngineQueue, info: ErrorInfo | None, ended: bool) -> None:
    """Write the work since the queue's turn began: the rest of its next submission, or a part of it."""
    program, inferences, name = queue.program, 0, 0
    if program is not None:
        inferences = program.inferences if ended and info is None else 0
        if program.inference is not None:
            name = writer.name(program.inference.model)
    writer.write(
        _EXECUTE,
        name,
        queue.ran_ns,
        time.monotonic_ns() - queue.ran_ns,
        _ENDED if ended else 0,
        queue.handle,
        queue.completed + 1,
        queue.context.session & _SESSION_MASK | inferences << 32,
        0 if info is None else int(info.result),
    )
