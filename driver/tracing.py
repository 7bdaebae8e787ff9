"""Trace records of this process: its calls, its submissions, and when it learnt of their end.

Without a trace, calls have no overhead: a session checks one word of the status page, and when that changes
the traced methods are replaced by ones that write, until the trace ends.
"""

from __future__ import annotations

import functools
import os
import threading
import time
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from softnpu.driver.connection import Connection
from softnpu.driver.errors import ZeError
from softnpu.emulator.interface import trace_messages as tracing
from softnpu.emulator.interface.result import ZeResult
from softnpu.emulator.interface.trace import TraceFlag, TraceKind, TraceWriter

Method = Callable[..., Any]

_CALL: Final = int(TraceKind.CALL)
_BEGIN: Final = int(TraceFlag.BEGIN)
_END: Final = int(TraceFlag.END)


class TracedMethod(NamedTuple):
    """A method that is replaced while this process is traced, and the function that makes its replacement."""

    owner: type
    name: str
    wrap: Callable[[Method], Method]


MakeMethods = Callable[[], list[TracedMethod]]


def traced_call(owner: type, name: str, call: str, may_wait: bool = False) -> TracedMethod:
    """Return a method traced as `call`. If it may wait for long, its begin is written as well."""
    return TracedMethod(owner, name, functools.partial(_wrap_call, call, may_wait))


def register(methods: MakeMethods) -> None:
    """Register `methods`, which makes the traced methods when the first trace begins."""
    with _lock:
        _makers.append(methods)
        if _originals:
            _replace(methods())


def watch(connection: Connection, word: memoryview) -> None:
    """Take part in the traces of this session's daemon, of which `word` in its status page tells."""
    connection.watch_trace(word, functools.partial(_follow, connection))


def writer_of(connection: Connection) -> TraceWriter | None:
    """Return the ring of this session; None if it is not traced."""
    return _writers.get(connection)


_makers: list[MakeMethods] = []
_originals: list[tuple[TracedMethod, Method]] = []
_writers: dict[Connection, TraceWriter] = {}
_calls: tuple[TraceWriter, ...] = ()  # one for each daemon: a call is written once
_lock = threading.RLock()


def _follow(connection: Connection) -> bool:
    """Join the trace that has begun, or leave the ended one; return False if another thread does so.

    Waiting for that could deadlock: the caller may hold locks needed by the other thread's finalizers.
    """
    _writers.pop(connection, None)
    if not _lock.acquire(blocking=False):
        return False
    try:
        number = connection.trace
        if number:
            writer = _join(connection, number)
            if writer is not None:
                _writers[connection] = writer
        _apply()
    finally:
        _lock.release()
    return True


def _join(connection: Connection, number: int) -> TraceWriter | None:
    """Request a ring; return None if the trace is over, or no ring is left for this session."""
    try:
        joined, fds = connection.request("trace", tracing.TraceJoin(trace=number), tracing.TraceJoined)
    except ZeError:
        return None
    try:
        return TraceWriter(fds[0], joined.records)
    finally:
        for fd in fds:
            os.close(fd)


def _apply() -> None:
    global _calls
    daemons = {connection.name: writer for connection, writer in _writers.items() if connection.trace}
    _calls = tuple(daemons.values())
    if _calls and not _originals:
        for methods in _makers:
            _replace(methods())
    elif not _calls:
        _restore()


def _replace(methods: list[TracedMethod]) -> None:
    for method in methods:
        original = vars(method.owner)[method.name]
        _originals.append((method, original))
        setattr(method.owner, method.name, method.wrap(original))


def _restore() -> None:
    for method, original in _originals:
        setattr(method.owner, method.name, original)
    _originals.clear()


def _forget() -> None:
    """Forget the rings in a forked child: they belong to its parent."""
    global _calls, _lock
    _lock = threading.RLock()
    _writers.clear()
    _calls = ()
    _restore()


os.register_at_fork(after_in_child=_forget)


def _wrap_call(call: str, may_wait: bool, original: Method) -> Method:
    end_flag = _END if may_wait else 0

    @functools.wraps(original)
    def traced(*args: Any, **kwargs: Any) -> Any:
        writers = _calls
        start = time.monotonic_ns()
        if may_wait:
            for writer in writers:
                writer.write(_CALL, writer.name(call), start, 0, _BEGIN)
        result = 0
        try:
            return original(*args, **kwargs)
        except BaseException as failure:
            info = getattr(failure, "info", None)
            result = int(getattr(info, "result", ZeResult.ERROR_UNKNOWN))
            raise
        finally:
            duration = time.monotonic_ns() - start
            for writer in writers:
                writer.write(_CALL, writer.name(call), start, duration, end_flag, result=result)

    return traced
