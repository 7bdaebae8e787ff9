"""What this driver notes of misuse for `softnpu check`, beside what `check_notes` notes of use.

Copies out of bounds, waits in vain or for an old signal, semaphores, handles of another process.
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from softnpu.driver import check_notes
from softnpu.driver.block import Block
from softnpu.driver.check_notes import KINDS, ask, noted_in, noted_of
from softnpu.driver.command_list import CommandList
from softnpu.driver.command_queue import CommandQueue
from softnpu.driver.connection import Connection
from softnpu.driver.external_semaphore import ExternalSemaphore
from softnpu.driver.fence import Fence
from softnpu.driver.handle import Handle
from softnpu.driver.noted import program_name
from softnpu.driver.waiting import FOREVER
from softnpu.emulator.interface import check_notes as notes
from softnpu.emulator.interface import commands as cmd


def begin(connection: Connection, session: int, directory: Path) -> None:
    """Note a new session; from then on everything of it is noted. One that cannot be is not checked."""
    if check_notes.begin(connection, session, directory):
        _replace_methods()


# ------------------------------------------------------------ lists


def _wrap_record(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def record(commands: Any, call: str, recorded: Any, signal_event: Any) -> None:
        for command in recorded:
            if isinstance(command, cmd.Copy | cmd.CopyRegion) and hasattr(commands, "_noted"):
                _note_bounds(commands, call, command)
        original(commands, call, recorded, signal_event)

    return record


def _note_bounds(commands: Any, call: str, command: cmd.Copy | cmd.CopyRegion) -> None:
    """Note the memory that a copy passes the end of: the device will refuse it."""
    noted, session = commands._noted
    blocks = {block.handle: block for block in commands._used if isinstance(block, Block)}
    for at, write in ((command.source, False), (command.target, True)):
        if isinstance(command, cmd.Copy):
            end = at.offset + command.size
        else:
            pitch = command.target_pitch if write else command.source_pitch
            end = at.offset + pitch * (command.rows - 1) + command.width
        block = blocks.get(at.memory)
        if block is not None and end > block.size:
            noted.write(
                notes.OutOfBounds(
                    t=time.monotonic_ns(),
                    session=session,
                    memory=at.memory,
                    offset=at.offset,
                    end=end,
                    size=block.size,
                    write=write,
                    call=call,
                    site=noted.site(),
                )
            )
            ask()


# ------------------------------------------------------------ waits


def _wrap_queue_wait(original: Callable[..., bool]) -> Callable[..., bool]:
    @functools.wraps(original)
    def wait(queue: CommandQueue, call: str, sequence: int, timeout_ns: int) -> bool:
        since = time.monotonic_ns()
        done = original(queue, call, sequence, timeout_ns)
        if not done and timeout_ns:
            _note_vain(queue, call, sequence, since)
        return done

    return wait


def _wrap_fence_wait(original: Callable[..., bool]) -> Callable[..., bool]:
    @functools.wraps(original)
    def wait(fence: Any, call: str, timeout_ns: int) -> bool:
        execution, since = fence._execution, time.monotonic_ns()
        done = original(fence, call, timeout_ns)
        if done:
            seen, noted = fence.__dict__.get("_check_seen", (None, 0))
            tail = fence.queue._tail if seen is execution else execution.last
            # once for each later submission: programs poll
            if seen is execution and tail != noted:
                _note_rewait(fence, execution.last)
            fence._check_seen = execution, tail
        elif timeout_ns and execution.ticket:
            _note_vain(fence.queue, call, execution.last, since)
        return done

    return wait


def _note_vain(queue: Any, call: str, sequence: int, since: int) -> None:
    if (found := noted_of(queue._connection)) is None:
        return
    noted, session = found
    noted.write(
        notes.TimedOut(
            t=time.monotonic_ns(),
            session=session,
            since=since,
            call=call,
            queue=queue.handle,
            sequence=sequence,
            site=noted.site(),
        )
    )


def _wrap_cancel(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def cancel(fence: Any) -> None:
        if (found := noted_of(fence.queue._connection)) is not None:
            noted, session = found
            queue, last = fence.queue.handle, fence._execution.last
            noted.write(notes.Cancelled(t=time.monotonic_ns(), session=session, queue=queue, sequence=last))
        original(fence)

    return cancel


def _note_rewait(fence: Any, sequence: int) -> None:
    if (found := noted_of(fence.queue._connection)) is None:
        return
    noted, session = found
    noted.write(
        notes.Rewaited(
            t=time.monotonic_ns(),
            session=session,
            queue=fence.queue.handle,
            sequence=sequence,
            site=noted.site(),
        )
    )


# ------------------------------------------------------------ other programs and processes


def _note_semaphore(semaphore: Any, what: str) -> None:
    if (found := noted_of(semaphore._connection)) is None:
        return
    noted, session = found
    noted.write(
        notes.Semaphore(
            t=time.monotonic_ns(), session=session, name=semaphore.name, what=what, site=noted.site()
        )
    )


def _wrap_semaphore_wait(original: Callable[..., bool]) -> Callable[..., bool]:
    @functools.wraps(original)
    def wait(semaphore: Any, timeout_ns: int = FOREVER) -> bool:
        if timeout_ns:
            _note_semaphore(semaphore, "wait")
        arrived = original(semaphore, timeout_ns)
        if timeout_ns or arrived:
            _note_semaphore(semaphore, "arrived" if arrived else "gave up")
        return arrived

    return wait


def _wrap_semaphore_signal(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def signal(semaphore: Any) -> None:
        _note_semaphore(semaphore, "signal")
        original(semaphore)

    return signal


def _wrap_unusable(original: Callable[..., Exception]) -> Callable[..., Exception]:
    @functools.wraps(original)
    def unusable(handle: Any, call: str) -> Exception:
        before = handle.__dict__.get("_noted") if handle._creator_pid else None
        noted = None if before is None else noted_in(before[0].directory)
        if noted is not None:
            noted.write(
                notes.ForeignHandle(
                    t=time.monotonic_ns(),
                    pid=os.getpid(),
                    parent=handle._creator_pid,
                    program=program_name(),
                    call=call,
                    kind=KINDS[type(handle)],
                    site=noted.site(),
                )
            )
            ask()
        return original(handle, call)

    return unusable


@functools.cache
def _replace_methods() -> None:
    for owner, name, wrap in (
        (CommandList, "_record", _wrap_record),
        (CommandQueue, "_wait_until_over", _wrap_queue_wait),
        (Fence, "_wait", _wrap_fence_wait),
        (Fence, "cancel", _wrap_cancel),
        (ExternalSemaphore, "wait", _wrap_semaphore_wait),
        (ExternalSemaphore, "signal", _wrap_semaphore_signal),
        (Handle, "_unusable", _wrap_unusable),
    ):
        setattr(owner, name, wrap(vars(owner)[name]))
