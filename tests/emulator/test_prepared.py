"""What is prepared for C++: how much, and until when."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Iterator
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from softnpu.emulator.engine.commands.program import Program
from softnpu.emulator.engine.fast_path import prepared
from softnpu.emulator.engine.fast_path.native_records import PreparedRecord, QueueRecord
from softnpu.emulator.engine.fast_path.prepared import (
    MOST_OF_A_QUEUE,
    MOST_SEEN,
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
    made = 0

    def counted(*arguments: Any) -> PreparedSubmission:
        nonlocal made
        made += 1
        return PreparedSubmission(*arguments)

    monkeypatch.setattr(prepared, "PreparedSubmission", counted)
    rounds, fences = 3, 3 * MOST_OF_A_QUEUE
    for _ in range(rounds):
        _learn(session, known, range(fences), 1)
    assert MOST_OF_A_QUEUE <= made <= MOST_OF_A_QUEUE + rounds * fences // 64


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
    _learn(session, known, range(200), 2)
    assert len(known._by_content) == known.record.prepared_count == 201
    ticket = session.submit()
    assert rig.call()
    assert session.fence.is_signalled(ticket)

    known.forget([FENCE])

    _check_empty(session, known)
    session.submit()
    assert not rig.call()


def test_submissions_are_forgotten_with_the_memory_of_their_commands(rig: Rig) -> None:
    session, known = _taught(rig)
    _learn(session, known, range(10), 2)
    assert len(known._by_content) == 11
    known.forget([DATA])
    _check_empty(session, known)


def test_a_queue_has_some_whatever_its_session_has_until_it_ends(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prepared, "SESSION_BYTES", 2)
    monkeypatch.setattr(prepared, "LEAST_OF_A_QUEUE", 5)
    session, known = _taught(rig)
    _learn(session, known, range(20), 2)
    assert len(known._by_content) == 5
    assert session.context.share.prepared_bytes
    rig.queues.drop(session.queue)
    assert not session.context.share.prepared_bytes


def test_very_long_programs_are_not_prepared(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    session, known = _taught(rig)
    monkeypatch.setattr(prepared, "_LONGEST", 4)
    _learn(session, known, range(3), 2)
    assert len(known._by_content) == 1


def test_a_long_program_replaces_as_many_as_make_room_and_none_where_few_do_not(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    session, known = _taught(rig)
    _learn(session, known, range(10), 2)
    before = session.context.share.prepared_bytes
    (program,) = {each.program for each in known._by_content.values()}
    assert before == 11 * (prepared._RECORD_BYTES + len(program.data))
    monkeypatch.setattr(prepared, "SESSION_BYTES", before)
    monkeypatch.setattr(prepared, "LEAST_OF_A_QUEUE", 0)
    fill = cmd.encode_command(cmd.Fill(MemoryAt(DATA, 0), 64, b"\7"))
    longer = replace(program, data=cmd.encode_buffer([fill, *[cmd.encode_command(cmd.Barrier())] * 8]))
    session.context.programs.add(COMMANDS, 1024, longer)
    with monkeypatch.context() as patch:
        patch.setattr(prepared, "_MOST_REPLACED", 1)
        _learn(session, known, range(20, 23), 200, longer)
    assert len(known._by_content) == 11
    assert session.context.share.prepared_bytes == before
    assert -1 not in known._runs.values()  # they had no room, and were not ineligible
    _learn(session, known, range(30, 31), 200, program)  # of the same length: takes the place of the oldest
    assert {each.program for each in known._by_content.values()} == {program}
    assert len(known._by_content) == 11
    _learn(session, known, range(40, 41), 200, longer)
    assert {each.program for each in known._by_content.values()} == {program, longer}
    assert len(known._by_content) == 10
    assert session.context.share.prepared_bytes <= before


def test_a_program_that_is_not_cached_is_not_kept_for_its_submissions(rig: Rig) -> None:
    session, known = _taught(rig)
    (program,) = {each.program for each in known._by_content.values()}
    session.context.programs.drop(program)
    _learn(session, known, range(3), 3, program)
    assert len(known._by_content) == 1
    known.check()
    _check_empty(session, known)


def test_what_runs_often_is_prepared_after_many_that_ran_once(rig: Rig) -> None:
    session, known = _taught(rig)
    _learn(session, known, range(2 * MOST_SEEN), 1)
    before = len(known._by_content)
    _learn(session, known, [3 * MOST_SEEN], 10)
    assert len(known._by_content) == before + 1


def _learn(
    session: Session,
    known: PreparedSubmissions,
    fences: Iterable[int],
    times: int,
    program: Program | None = None,
) -> None:
    """Have the commands of its only list run with each of these fences."""
    if program is None:
        (program,) = {each.program for each in known._by_content.values()}
    for number in fences:
        for _ in range(times):
            session.ring.fill(1, COMMANDS, session._size, FENCE, 128 + 8 * number, 1)
            submission = Submission(*session.queue.copy_slot(1))
            if submission.content not in known:
                known.learn(submission, program)


def _check_empty(session: Session, known: PreparedSubmissions) -> None:
    indexes = (known._by_content, known._of_program, known._of_handle, known._programs, known._called)
    assert not any(indexes)
    assert not session.context.share.prepared_bytes
    assert not known.record.prepared_count
