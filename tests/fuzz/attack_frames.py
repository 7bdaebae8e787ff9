"""Rounds of structure-aware frames, each in its own session, checked answer by answer."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from softnpu.emulator.interface import messages as msg
from softnpu.emulator.interface.result import ZeResult
from tests.fuzz.connection import Connection, close_all
from tests.fuzz.dice import Dice
from tests.fuzz.frames import SYNC, Frame, FrameMaker
from tests.fuzz.hostile_objects import Descriptors, Model
from tests.fuzz.owned_objects import OwnedObjects
from tests.fuzz.report import Tally, Violation
from tests.support.waiting import wait_until

_CHUNK = 48
_FULL = {
    ZeResult.ERROR_OUT_OF_DEVICE_MEMORY,
    ZeResult.ERROR_OUT_OF_HOST_MEMORY,
    ZeResult.ERROR_NOT_AVAILABLE,
}
_SHALLOW = ("control message", "control frame")


@dataclass
class Target:
    """The daemon, and the attacks' resources."""

    socket: Path
    models: list[Model]
    hostile_objects: Descriptors
    foreign: list[int]
    foreign_exports: list[int]


def frames_round(target: Target, dice: Dice, count: int, jobs: float, tally: Tally) -> None:
    """Run one session that sends `count` frames; raise `Violation`, `Hang` or `Closed`."""
    held, exports = OwnedObjects(), list(target.foreign_exports)
    opened: list[int] = []
    maker = FrameMaker(dice, held, target.models, target.hostile_objects, target.foreign, exports, jobs)
    with Connection(target.socket) as connection:
        session = connection.hello().session
        try:
            for start in range(0, count, _CHUNK):
                frames = [maker.make() for _ in range(min(_CHUNK, count - start))]
                answers = connection.exchange([(frame.body, frame.fds) for frame in frames])
                for frame, (answer, fds) in zip(frames, answers, strict=True):
                    _keep_exports(frame, fds, exports, opened)
                    checks(frame, answer, held, tally)
                    shallow = isinstance(answer, msg.Failed) and answer.info.object.startswith(_SHALLOW)
                    tally.deep["frames"] += not shallow
                held.leaving.clear()
            _check_accounts(connection, session, held)
        finally:
            close_all(opened)


def longest_bodies(target: Target, dice: Dice, tally: Tally) -> None:
    """Send the largest bodies of every request, six of each at once; the compiler must work afterwards."""
    held = OwnedObjects()
    maker = FrameMaker(dice, held, target.models, target.hostile_objects, [], target.foreign_exports, 1.0)
    with Connection(target.socket) as connection:
        connection.hello()
        answer, fds = connection.ask(msg.ContextCreate(device=0))
        close_all(fds)
        held.apply("context_create", {}, answer)
        for frame in maker.longest():
            several = [frame] * 6
            for one, (each, got) in zip(
                several, connection.exchange([(one.body, one.fds) for one in several]), strict=True
            ):
                close_all(got)
                checks(one, each, held, tally)
        told, _ = connection.ask(msg.CompilerOptions(device=0))
        if not isinstance(told, msg.CompilerOptionsAnswer):
            raise Violation(f"the compiler after the longest requests: {told}")


def _keep_exports(frame: Frame, fds: list[int], exports: list[int], opened: list[int]) -> None:
    if frame.fields.get("exportable") is True and len(fds) == 1 and len(opened) < 8:
        exports.append(fds[0])
        opened.append(fds[0])
        return
    close_all(fds)


def checks(frame: Frame, answer: msg.Answer, held: OwnedObjects, tally: Tally) -> None:
    """Check that this answer to this frame is possible, given the session's holdings at this point."""
    tally.saw(frame.tag, answer)
    dead = held.dead_handle(frame.fields)
    told = f"{frame.tag} {str(frame.fields)[:300]} with {len(frame.fds)} descriptors"
    if isinstance(answer, msg.Failed):
        info = answer.info
        right = frame.tag in SYNC and not (dead or frame.wrong or frame.changed)
        if right and info.result not in _FULL:
            raise Violation(f"refused although nothing is wrong: {told}: {info}")
        return
    if frame.wrong:
        raise Violation(f"honoured although wrong ({frame.wrong}): {told}: {answer}")
    if dead:
        raise Violation(f"honoured with a handle that names nothing: {told}: {answer}")
    held.apply(frame.tag, frame.fields, answer)


def _check_accounts(connection: Connection, session: int, held: OwnedObjects) -> None:
    """Check that the daemon's counts for this session equal the sum of its answers."""
    for context in held.contexts:
        answer, _ = connection.ask(msg.ContextMemory(context=context))
        if not isinstance(answer, msg.ContextMemoryAnswer) or answer.allocated != held.allocated(context):
            raise Violation(f"accounts: expected {held.allocated(context)} bytes, {answer}")
    expected = (
        sum(each.size for each in held.memory.values()),
        len(held.contexts),
        len(held.memory),
        len(held.queues),
        len(held.graphs),
    )
    last: tuple[int, ...] = ()

    def counted() -> bool:
        answer, _ = connection.ask(msg.Status())
        assert isinstance(answer, msg.StatusAnswer), answer
        mine = next(each for each in answer.sessions if each.session == session)
        found = (mine.memory_used, mine.contexts, mine.allocations, mine.queues, mine.graphs)
        nonlocal last
        last = found
        return found == expected

    try:
        wait_until(counted)  # a context's memory counts until the engine has released it
    except AssertionError as error:
        raise Violation(f"accounts: expected {expected}, the daemon says {last}") from error


def open_victim(connection: Connection) -> tuple[list[int], list[int]]:
    """Open a session with many objects for others to attack; return handles and exportable segments."""
    handles: list[int] = []
    exports: list[int] = []
    for _ in range(12):
        answer, fds = connection.ask(msg.ContextCreate(device=0))
        assert isinstance(answer, msg.ContextCreated)
        close_all(fds)
        handles.append(answer.context)
    context = handles[-1]
    for number in range(400):
        export = number < 3
        request = msg.MemAlloc(context=context, kind="host", size=64, exportable=export)
        made, fds = connection.ask(request)
        assert isinstance(made, msg.MemAllocated)
        handles.append(made.memory)
        if export:
            exports.append(os.dup(fds[0]))
        close_all(fds)
    for _ in range(40):
        queue, fds = connection.ask(msg.QueueCreate(context=context, slots=2))
        assert isinstance(queue, msg.QueueCreated)
        handles += [queue.queue, queue.ring.memory]
        close_all(fds)
    return handles, exports
