"""What this driver notes for `softnpu check`: objects, lists, submissions, and what the program waits for.

Only a process whose daemon asks for notes imports this module. It replaces methods, so that other processes
have no branch for it. A process may have sessions with several daemons that ask: each has a `Noted`.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from softnpu.driver.access_watch import AccessWatch, Denied
from softnpu.driver.block import Block
from softnpu.driver.command_list import CommandList
from softnpu.driver.command_list_immediate import CommandListImmediate
from softnpu.driver.command_list_mutable import CommandListMutable
from softnpu.driver.command_queue import CommandQueue
from softnpu.driver.connection import Connection
from softnpu.driver.context import Context
from softnpu.driver.event import Event, EventPool
from softnpu.driver.fence import Fence
from softnpu.driver.graph import Graph
from softnpu.driver.handle import Handle
from softnpu.driver.memory import Allocation, MemoryPool
from softnpu.driver.noted import Noted, program_name, stop_program
from softnpu.driver.published_memory import PublishedMemory
from softnpu.driver.submissions import Submission
from softnpu.emulator.interface import check_notes as notes
from softnpu.emulator.interface import commands as cmd

KINDS: Final[dict[type[Handle], str]] = {
    Allocation: "memory",
    PublishedMemory: "memory",
    CommandList: "list",
    CommandListImmediate: "list",
    CommandListMutable: "list",
    CommandQueue: "queue",
    Fence: "fence",
    Event: "event",
    EventPool: "event pool",
    Graph: "graph",
    Context: "context",
}

_all: dict[Path, Noted] = {}
_watch: AccessWatch | None = None
_graphs: weakref.WeakValueDictionary[tuple[Path, int, int], Graph] = weakref.WeakValueDictionary()
_sessions: weakref.WeakKeyDictionary[Connection, tuple[Noted, int]] = weakref.WeakKeyDictionary()
_numbers = itertools.count(1)
_own: weakref.WeakSet[Block] = weakref.WeakSet()  # memory that no other program can use
_lock = threading.Lock()


def begin(connection: Connection, session: int, directory: Path) -> bool:
    """Note a new session: from then on all of its objects are. Return whether its notes can be written."""
    try:
        with _lock:
            noted = _all.get(directory) or _begin_in(directory)
            _sessions[connection] = noted, session
    except OSError as error:
        print(f"softnpu check: process {os.getpid()} is not checked: {error}", file=sys.stderr)
        return False
    noted.write(
        notes.Session(t=time.monotonic_ns(), session=session, pid=os.getpid(), program=program_name())
    )
    return True


def _begin_in(directory: Path) -> Noted:
    global _watch
    noted = Noted(directory)
    if _watch is None:
        _watch = AccessWatch(directory, noted.file.key)
        _replace_methods()
    else:
        _watch.begin(directory, noted.file.key)
    _all[directory] = noted
    return noted


def end(directory: Path) -> None:
    """Note nothing more for a daemon that has ended."""
    noted = _all.pop(directory, None)
    if noted is not None:
        noted.file.close()


def ask() -> None:
    """Stop the program, after a note, if `softnpu check --first` has found something."""
    if _watch is not None and _watch.stops():
        stop_program(_watch)


def _in_child() -> None:
    """Forget the parent's sessions: the child opens its own."""
    global _lock
    _lock = threading.Lock()
    directories = list(_all)
    _all.clear()
    _sessions.clear()
    for directory in directories:  # also for what the child touches of its parent's memory
        with contextlib.suppress(OSError):
            _begin_in(directory)


os.register_at_fork(after_in_child=_in_child)


def noted_of(connection: Connection) -> tuple[Noted, int] | None:
    """Return where a session is noted, and its number; None if it is not checked."""
    return _sessions.get(connection)


def noted_in(directory: Path) -> Noted | None:
    """Return what this process notes there."""
    return _all.get(directory)


def _queue(queue: Any) -> tuple[int, int]:
    return _sessions[queue._connection][1], queue.handle


# ------------------------------------------------------------ objects


def _identify(handle: Any) -> int:
    """Return the number of an object in the notes: the daemon's handle if it has one, else our own."""
    if isinstance(handle, Allocation):
        return handle._blocks[0].handle
    if isinstance(handle, CommandQueue | Graph | Context):
        return handle.handle
    return next(_numbers)


def _wrap_register(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def register(handle: Any, owner: Any, connection: Connection, *args: Any) -> None:
        original(handle, owner, connection, *args)
        kind = KINDS.get(type(handle))
        if kind is None or connection not in _sessions:
            return
        handle._noted = noted, session = _sessions[connection]
        handle._check_id = number = _identify(handle)
        block = handle._blocks[0] if kind == "memory" else None
        if kind == "graph":
            _graphs[noted.directory, session, number] = handle
        noted.write(
            notes.Made(
                t=time.monotonic_ns(),
                session=session,
                kind=kind,
                id=number,
                site=noted.site(),
                size=0 if block is None else block.size,
                address=0 if block is None else block.address,
                memory=handle._block.handle if kind == "event" else 0,
                offset=handle._offset if kind == "event" else 0,
                parent=getattr(owner, "_check_id", 0),
                shared=block is not None and block not in _own,
            )
        )
        weakref.finalize(handle, _collect, noted, session, kind, number).atexit = False

    return register


def _collect(noted: Noted, session: int, kind: str, number: int) -> None:
    noted.collected.append(
        notes.Ended(t=time.monotonic_ns(), session=session, kind=kind, id=number, site=0, by_itself=True)
    )


def _wrap_destroy(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def destroy(handle: Any) -> None:
        if not handle.destroyed and hasattr(handle, "_noted"):
            kind = KINDS[type(handle)]
            _note_end(handle, kind)
            if kind == "memory":
                _free(handle)
            elif kind == "context":
                _free_all(handle)
        original(handle)

    return destroy


def _free_all(context: Any) -> None:
    """Deny all memory of a context that is about to be destroyed."""
    watch = _watch
    if watch is None:
        return
    for child in list((context._children or {}).values()):
        if isinstance(child, Allocation) and not child.destroyed:
            _free(child)
    for address in list(context._memory._blocks):
        watch.free(address)  # views may keep it alive


def _free(memory: Allocation) -> None:
    """Deny memory that is about to be freed, and look what was written behind its end."""
    first = None if _watch is None else _watch.free(memory.address, memory._block)
    if first is not None:
        noted, session = memory.__dict__["_noted"]
        noted.write(
            notes.Overrun(
                t=time.monotonic_ns(),
                session=session,
                memory=memory.handle,
                first=first,
                site=noted.site(),
            )
        )
        ask()


def _note_end(handle: Any, kind: str, reset: bool = False) -> None:
    noted, session = handle._noted
    noted.write(
        notes.Ended(
            t=time.monotonic_ns(),
            session=session,
            kind=kind,
            id=handle._check_id,
            site=noted.site(),
            reset=reset,
        )
    )
    ask()


def _wrap_allocate(original: Callable[..., Block]) -> Callable[..., Block]:
    """Watch each allocation, which has pages of its own, and mark it as unwritten."""

    @functools.wraps(original)
    def allocate(
        pool: MemoryPool, call: str, kind: str, size: int, alignment: int = 0, exportable: bool = False
    ) -> Block:
        block = original(pool, call, kind, size, alignment, exportable)
        sparse = size in pool.sparse_sizes and not exportable
        if kind == "control" or sparse or pool._connection not in _sessions:
            return block
        if not exportable:
            _own.add(block)
        if _watch is not None:
            _watch.add(block, exportable=exportable)
        return block

    return allocate


def _wrap_collect(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def collect(pool: MemoryPool, end: Any, note: tuple[int, int, int]) -> None:
        if _watch is not None:
            _watch.remove(note[2], mapped=not pool.closed)
        original(pool, end, note)

    return collect


def _wrap_close(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def close(pool: MemoryPool) -> None:
        for address in list(pool._blocks):
            if _watch is not None:
                _watch.close(address)
        original(pool)

    return close


# ------------------------------------------------------------ lists


def _wrap_record(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def record(commands: Any, call: str, recorded: Any, signal_event: Any) -> None:
        before = len(commands._commands)
        original(commands, call, recorded, signal_event)
        if not hasattr(commands, "_noted"):
            return
        sites = commands.__dict__.setdefault("_check_sites", [])
        del sites[before:]
        sites += [(call, commands._noted[0].site())] * (len(commands._commands) - before)

    return record


def _wrap_encode(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def encode(commands: Any, call: str) -> None:
        original(commands, call)
        if commands._submission is None or not hasattr(commands, "_noted"):
            return
        noted, session = commands._noted
        recording = next(_numbers)
        commands._submission.recording._check_key = commands._check_id, recording
        commands._submission.recording._check_uses = uses = _uses(commands)
        if _watch is not None:
            _watch.expect(uses)
        noted.write(
            notes.Recorded(
                t=time.monotonic_ns(),
                session=session,
                list=commands._check_id,
                recording=recording,
                calls=tuple(commands.__dict__.get("_check_sites", ())),
                signals=tuple(
                    (number, *command.at)
                    for number, command in enumerate(commands._commands)
                    if isinstance(command, cmd.EventSignal)
                ),
            )
        )

    return encode


def _uses(commands: Any) -> dict[int, Denied]:
    """Return what a list denies the program while it runs, by address of the allocation."""
    blocks = {block.handle: block for block in commands._used if isinstance(block, Block)}
    uses: dict[int, Denied] = {}

    def add(at: cmd.MemoryAt, denied: Denied) -> None:
        block = blocks.get(at.memory)
        if block is not None:
            uses[block.address] = max(denied, uses.get(block.address, Denied.NOTHING))

    for command in commands._commands:
        match command:
            case cmd.Fill(at) | cmd.Timestamp(at):
                add(at, Denied.EVERYTHING)
            case cmd.Copy() | cmd.CopyRegion():
                add(command.target, Denied.EVERYTHING)
                add(command.source, Denied.WRITING)
            case cmd.GraphExecute():
                noted, session = commands._noted
                graph = _graphs.get((noted.directory, session, command.graph))
                arguments = () if graph is None else graph.meta.arguments
                for at, argument in zip(command.arguments, arguments, strict=False):
                    add(at, Denied.WRITING if argument.input else Denied.EVERYTHING)
            case _:
                pass
    return uses


def _wrap_reset(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def reset(commands: Any) -> None:
        is_list = type(commands) is not CommandListImmediate and hasattr(commands, "_noted")
        if not commands.destroyed and is_list:
            _note_end(commands, "list", reset=True)
        original(commands)
        commands._check_sites = []

    return reset


# ------------------------------------------------------------ submissions and their ends


def _wrap_fill(original: Callable[..., bool]) -> Callable[..., bool]:
    @functools.wraps(original)
    def fill(queue: Any, filled: list[Submission], fence: Any, execution: Any) -> bool:
        if queue._connection in _sessions:
            noted, session = _sessions[queue._connection]
            keys = tuple(getattr(each.recording, "_check_key", (0, 0)) for each in filled)
            noted.write(
                notes.Submitted(
                    t=time.monotonic_ns(),
                    session=session,
                    queue=queue.handle,
                    first=queue._tail + 1,
                    recordings=keys,
                    site=noted.site(),
                    fence=0 if fence is None else fence._check_id,
                )
            )
            if _watch is not None:
                for sequence, each in enumerate(filled, queue._tail + 1):
                    _watch.use(_queue(queue), sequence, getattr(each.recording, "_check_uses", {}))
            ask()
        return original(queue, filled, fence, execution)

    return fill


def _note_completed(queue: Any, sequence: int) -> None:
    if sequence and queue._connection in _sessions:
        noted, session = _sessions[queue._connection]
        if _watch is not None:
            _watch.over(_queue(queue), sequence)
        noted.write(
            notes.Completed(
                t=time.monotonic_ns(),
                session=session,
                queue=queue.handle,
                sequence=sequence,
            )
        )
        ask()


def _wrap_queue_wait(original: Callable[..., bool]) -> Callable[..., bool]:
    @functools.wraps(original)
    def wait(queue: CommandQueue, call: str, sequence: int, timeout_ns: int) -> bool:
        done = original(queue, call, sequence, timeout_ns)
        if done:
            _note_completed(queue, sequence)
        return done

    return wait


def _wrap_fence_wait(original: Callable[..., bool]) -> Callable[..., bool]:
    @functools.wraps(original)
    def wait(fence: Any, call: str, timeout_ns: int) -> bool:
        execution = fence._execution
        try:
            done = original(fence, call, timeout_ns)
        except Exception:
            if execution.is_over():  # it failed: the program knows its end
                _note_completed(fence.queue, execution.last)
            raise
        if done:
            _note_completed(fence.queue, execution.last)
        return done

    return wait


def _wrap_event(what: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def wrap(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def call(event: Any, *args: Any) -> Any:
            # a child's use of its parent's is noted elsewhere
            if event.destroyed or not hasattr(event, "_noted"):
                return original(event, *args)
            site = event._noted[0].site()
            if what != "seen":  # before others can see it
                _note_event(event, what, site)
            result = original(event, *args)
            if what == "seen" and result:
                _note_event(event, what, site)
                if _watch is not None:
                    _watch.all_over()
            return result

        return call

    return wrap


def _note_event(event: Any, what: str, site: int) -> None:
    if event.destroyed:
        return
    noted, session = event._noted
    noted.write(
        notes.HostEvent(
            t=time.monotonic_ns(),
            session=session,
            id=event._check_id,
            memory=event._block.handle,
            offset=event._offset,
            what=what,
            site=site,
        )
    )
    ask()


def _replace_methods() -> None:
    for owner, name, wrap in (
        (Handle, "_register", _wrap_register),
        (Handle, "destroy", _wrap_destroy),
        (MemoryPool, "allocate", _wrap_allocate),
        (MemoryPool, "_collect", _wrap_collect),
        (MemoryPool, "close", _wrap_close),
        (CommandList, "_record", _wrap_record),
        (CommandList, "_encode", _wrap_encode),
        (CommandList, "reset", _wrap_reset),
        (CommandQueue, "_fill_slots", _wrap_fill),
        (CommandQueue, "_wait_until_over", _wrap_queue_wait),
        (Fence, "_wait", _wrap_fence_wait),
        (Event, "host_signal", _wrap_event("signal")),
        (Event, "host_reset", _wrap_event("reset")),
        (Event, "host_synchronize", _wrap_event("seen")),
        (Event, "query_status", _wrap_event("seen")),
    ):
        setattr(owner, name, wrap(vars(owner)[name]))
