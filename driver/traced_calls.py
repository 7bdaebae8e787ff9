"""The traced calls of the driver: methods whose docstring begins with the name of a call."""

from __future__ import annotations

import functools
import re
import time
from collections.abc import Callable
from typing import Any, Final

from softnpu.driver.command_list import CommandList
from softnpu.driver.command_list_immediate import CommandListImmediate
from softnpu.driver.command_list_mutable import CommandListMutable
from softnpu.driver.command_queue import CommandQueue
from softnpu.driver.context import Context
from softnpu.driver.device import Device
from softnpu.driver.event import Event, EventPool
from softnpu.driver.fence import Fence
from softnpu.driver.graph import Graph
from softnpu.driver.submissions import Submission
from softnpu.driver.tracing import TracedMethod, traced_call, writer_of
from softnpu.emulator.interface.trace import TraceKind

_CLASSES: Final = (
    CommandList, CommandListImmediate, CommandListMutable, CommandQueue, Context, Device, Event, EventPool,
    Fence, Graph,
)  # fmt: skip
_CALL: Final = re.compile(r"`((?:ze|pfn)\w+)`")
_MAY_WAIT: Final = re.compile(r"Synchronize|Initialize|GetNativeBinary")


def _calls_of(owner: type) -> list[TracedMethod]:
    methods = []
    for name, method in vars(owner).items():
        text = getattr(method, "__doc__", None)
        if callable(method) and not name.startswith("_") and (match := _CALL.match(text or "")):
            call = match[1]
            methods.append(traced_call(owner, name, call, _MAY_WAIT.search(call) is not None))
    return methods


def _wrap_fill(original: Callable[..., bool]) -> Callable[..., bool]:
    """Write what is submitted, before the device sees it."""

    @functools.wraps(original)
    def fill(queue: CommandQueue, filled: list[Submission], *args: Any) -> bool:
        writer = writer_of(queue.context._connection)
        if writer is not None:
            tail = queue._tail
            now = time.monotonic_ns()
            writer.write(TraceKind.SUBMIT, 0, now, 0, 0, queue.handle, tail + 1, tail + len(filled))
        return original(queue, filled, *args)

    return fill


def _complete(queue: CommandQueue, sequence: int) -> None:
    writer = writer_of(queue.context._connection)
    if writer is not None and sequence:
        writer.write(TraceKind.COMPLETE, 0, time.monotonic_ns(), 0, 0, queue.handle, sequence)


def _wrap_queue_wait(original: Callable[..., bool]) -> Callable[..., bool]:
    @functools.wraps(original)
    def wait(queue: CommandQueue, call: str, sequence: int, timeout_ns: int) -> bool:
        done = original(queue, call, sequence, timeout_ns)
        if done:
            _complete(queue, sequence)
        return done

    return wait


def _wrap_fence_wait(original: Callable[..., bool]) -> Callable[..., bool]:
    @functools.wraps(original)
    def wait(fence: Fence, call: str, timeout_ns: int) -> bool:
        execution = fence._execution
        done = original(fence, call, timeout_ns)
        if done:
            _complete(fence.queue, execution.last)
        return done

    return wait


def methods() -> list[TracedMethod]:
    """Return the methods replaced while this process is traced."""
    return [
        *(method for owner in _CLASSES for method in _calls_of(owner)),
        traced_call(Context, "create_graph", "pfnCreate2", may_wait=True),
        TracedMethod(CommandQueue, "_fill_slots", _wrap_fill),
        TracedMethod(CommandQueue, "_wait_until_over", _wrap_queue_wait),
        TracedMethod(Fence, "_wait", _wrap_fence_wait),
    ]
