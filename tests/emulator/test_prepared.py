"""What is prepared for C++: how much, and until when."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest

from softnpu.emulator.engine.fast_path import prepared
from softnpu.emulator.engine.fast_path.native_records import PreparedRecord, QueueRecord
from softnpu.emulator.engine.fast_path.prepared import (
    MOST_OF_A_QUEUE,
    PreparedSubmission,
    PreparedSubmissions,
)
from softnpu.emulator.engine.fast_path.record_table import RecordTable
from softnpu.emulator.engine.queues.queue import Submission
from softnpu.emulator.interface import commands as cmd
from softnpu.emulator.interface.commands import MemoryAt
from tests.support.fast_path import COMMANDS, DATA, FENCE, Rig, Session

pytestmark = pytest.mark.quick


@pytest.fixture
def rig() -> Iterator[Rig]:
    rig = Rig()
    yield rig
    rig.close()


def _taught(rig: Rig) -> tuple[Session, PreparedSubmissions]:
    """Return a session with one prepared submission."""
    session = rig.session()
    rig.teach(session, cmd.Fill(MemoryAt(DATA, 0), 64, b"\7"))
    known = session.queue.prepared
    assert isinstance(known, PreparedSubmissions)
    return session, known


def test_many_fences_in_turn_do_not_drive_out_each_others_submissions(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each was prepared anew, and forgotten before its next use: 67 us for each of 1000 fences."""
    session, known = _taught(rig)
    (program,) = (each.program for each in known._by_content.values())
    made = 0

    def counted(*arguments: Any) -> PreparedSubmission:
        nonlocal made
        made += 1
        return PreparedSubmission(*arguments)

    monkeypatch.setattr(prepared, "PreparedSubmission", counted)
    rounds, fences = 3, 3 * MOST_OF_A_QUEUE
    for _ in range(rounds):
        for number in range(fences):
            session.ring.fill(1, COMMANDS, session._size, FENCE, 128 + 8 * number, 1)
            known.learn(Submission(*session.queue.copy_slot(1)), program)
    assert MOST_OF_A_QUEUE <= made <= MOST_OF_A_QUEUE + rounds * fences // MOST_OF_A_QUEUE


def test_records_that_are_added_and_removed_are_those_in_the_table() -> None:
    queue = QueueRecord()
    table = RecordTable(queue)
    held: dict[bytes, PreparedRecord] = {}
    random = Random(3)
    for number in range(1000):
        if random.random() < 0.3 and held:
            key = random.choice(list(held))
            table.remove(key)
            del held[key]
        else:
            key = b"%d" % number
            held[key] = PreparedRecord(size=number)
            table.add(key, held[key])
        assert queue.prepared_count == len(held)
    listed = ctypes.cast(queue.prepared, ctypes.POINTER(ctypes.POINTER(PreparedRecord)))
    assert {b"%d" % listed[place].contents.size for place in range(queue.prepared_count)} == set(held)


def test_submissions_of_many_fences_run_in_cpp_and_are_forgotten_with_what_they_use(rig: Rig) -> None:
    session, known = _taught(rig)
    (program,) = (each.program for each in known._by_content.values())
    for number in range(200):
        for _ in range(2):
            session.ring.fill(1, COMMANDS, session._size, FENCE, 128 + 8 * number, 1)
            known.learn(Submission(*session.queue.copy_slot(1)), program)
    assert len(known._by_content) == known.record.prepared_count == session.context.share.prepared == 201
    ticket = session.submit()
    assert rig.call()
    assert session.fence.is_signalled(ticket)

    known.forget([FENCE])

    assert not known._by_content
    assert not known._users
    assert not session.context.share.prepared
    assert not known.record.prepared_count
    session.submit()
    assert not rig.call()


def test_a_session_has_a_most_of_prepared_submissions_until_its_queues_end(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prepared, "MOST_OF_A_SESSION", 2)
    session, known = _taught(rig)
    (program,) = (each.program for each in known._by_content.values())
    for number in range(6):
        session.ring.fill(1, COMMANDS, session._size, FENCE, 128 + 8 * (number // 2), 1)
        known.learn(Submission(*session.queue.copy_slot(1)), program)
    assert session.context.share.prepared == 2
    rig.queues.drop(session.queue)
    assert not session.context.share.prepared
