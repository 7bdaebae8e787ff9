"""What the engine does for a queue does not grow with the number of queues of others."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from softnpu.emulator.engine.commands.steps import EventWait
from softnpu.emulator.engine.fast_path.prepared import PreparedSubmissions
from softnpu.emulator.engine.memory.mappings import Range
from softnpu.emulator.engine.queues import context, queue_table
from softnpu.emulator.engine.queues.chores import Chores
from softnpu.emulator.engine.queues.polled import LOOKS, Polled
from softnpu.emulator.engine.queues.queue import EngineQueue, Place
from softnpu.emulator.engine.queues.queue_table import MANY
from softnpu.emulator.engine.queues.scheduler import Scheduler
from softnpu.emulator.engine.queues.waits import Waits
from softnpu.emulator.engine.share import Share
from softnpu.emulator.interface import commands as cmd
from softnpu.emulator.interface.commands import MemoryAt
from softnpu.emulator.interface.records import PAGE
from tests.support.fast_path import DATA, FENCE, Rig, Session

pytestmark = pytest.mark.quick

_EVENT = MemoryAt(FENCE, 64)
_WAIT = cmd.EventWait(_EVENT)


@pytest.fixture
def rig() -> Iterator[Rig]:
    rig = Rig()
    yield rig
    rig.close()


class _Looked:
    """As much of a queue as the scheduler looks at; counts how often it does."""

    def __init__(self, share: Share, waits: bool = True) -> None:
        self.share, self.level, self.ran_ns, self.waits, self.looks = share, 2, 0, waits, 0

    def pending(self) -> bool:
        self.looks += 1
        return self.waits


def _polled(*queues: _Looked) -> Polled[_Looked]:
    polled: Polled[_Looked] = Polled()
    for queue in queues:
        polled.add(queue)
    return polled


def _blocked(rig: Rig) -> Session:
    """A session whose submission waits for its event."""
    session = rig.session()
    session.record(_WAIT)
    session.submit()
    rig.runner.run(session.queue)
    assert session.queue.place is Place.BLOCKED
    return session


def test_a_handle_that_lives_on_keeps_no_dropped_queue(rig: Rig) -> None:
    session, other = _blocked(rig), _blocked(rig)
    users = session.queue.context.users
    assert users._queues
    rig.queues.drop(session.queue)
    assert (users._queues, users._handles, users._count) == ({}, {}, 0)
    assert other.queue.context.users._queues


@pytest.mark.parametrize("waits", [True, False], ids=["with work", "without"])
def test_a_turn_looks_at_few_queues_of_another_session(waits: bool) -> None:
    share = Share()
    many, one = [_Looked(share, waits) for _ in range(1000)], _Looked(Share())
    polled, scheduler = _polled(*many, one), Scheduler()
    share.spent_ns[2] = 1
    for _ in range(100):
        assert scheduler.pick(polled) is one
    assert sum(queue.looks for queue in many) <= 100 * (LOOKS + 1)


def test_each_of_many_queues_has_its_turn() -> None:
    share = Share()
    many, scheduler = [_Looked(share) for _ in range(100)], Scheduler()
    polled, had = _polled(*many), dict.fromkeys(range(100), 0)
    for now in range(1, 1000):
        queue = scheduler.pick(polled)
        assert queue is not None
        queue.ran_ns = now
        had[many.index(queue)] += 1
    assert min(had.values()) >= 5


def test_work_behind_many_queues_without_is_found() -> None:
    share = Share()
    many = [_Looked(share, False) for _ in range(100)]
    many[70].waits = True
    polled, scheduler = _polled(*many), Scheduler()
    assert many[70] in [scheduler.pick(polled) for _ in range(100 // LOOKS + 1)]


def test_a_signal_wakes_only_who_waits_for_it(rig: Rig) -> None:
    waiting, other = _blocked(rig), _blocked(rig)
    wait = waiting.queue.wait
    assert isinstance(wait, EventWait)
    rig.queues.wake_signalled(wait.at)
    assert list(rig.queues.awake) == [waiting.queue]
    assert other.queue.place is Place.BLOCKED
    waiting.event.device_signal()
    rig.runner.run(waiting.queue)
    assert waiting.queue.completed == 1
    rig.queues.wake_signalled(wait.at)
    assert waiting.queue.place is Place.AWAKE, "it waits for nothing any more"


def test_an_event_is_found_by_the_memory_in_which_it_lies(rig: Rig) -> None:
    session = _blocked(rig)
    alias = 9
    session.context.space.add_memory(alias, 1, session.context.space.memory(FENCE).offset, PAGE)
    memory = session.context.space.memory(alias)
    rig.queues.wake_signalled(memory.range(64, 64))
    assert session.queue.place is Place.AWAKE


@pytest.mark.parametrize("what", ["signal", "cancel"])
def test_a_doorbell_wakes_only_who_can_go_on(rig: Rig, what: str) -> None:
    session, other = _blocked(rig), _blocked(rig)
    rig.queues.answer_doorbell(session.context)
    assert not rig.queues.awake, "nothing has happened"
    if what == "signal":
        session.event.host_signal()
    else:
        session.fence.cancel(session.fence.armed)
    rig.queues.answer_doorbell(session.context)
    assert session.queue.place is Place.AWAKE
    rig.runner.run(session.queue)
    assert session.queue.completed == 1
    assert other.queue.place is Place.BLOCKED


def test_thousands_of_queues_are_logged_and_put_to_sleep_some_at_a_time(rig: Rig) -> None:
    sessions = [rig.session() for _ in range(MANY + 10)]
    rig.queues.put_to_sleep_some()
    assert len(rig.queues.awake) == 10
    rig.queues.put_to_sleep_some()
    assert not rig.queues.awake
    assert all(session.queue.place is Place.ASLEEP for session in sessions)


def test_a_wait_ends_late_only_once_and_not_before_its_time(rig: Rig) -> None:
    sessions = [_blocked(rig) for _ in range(3)]
    for due, session in enumerate(sessions, 5):
        rig.queues.wake(session.queue)
        session.queue.deadline_ns = due
        rig.queues.block(session.queue, 0)
    rig.queues.wake(sessions[0].queue)
    assert rig.queues.aside.deadlines.first_ns() == 6
    assert rig.queues.take_overdue(5) == []
    assert rig.queues.take_overdue(7) == [sessions[1].queue, sessions[2].queue]
    assert rig.queues.aside.deadlines.first_ns() is None


def test_what_waits_is_counted_and_overdue_in_its_order(rig: Rig) -> None:
    sessions = [_blocked(rig) for _ in range(20)]
    for number, session in enumerate(sessions):
        rig.queues.wake(session.queue)
        session.queue.deadline_ns = number
        rig.queues.block(session.queue, 0)
    rig.queues.retry(sessions[4].queue)
    rig.queues.drop(sessions[5].queue)
    assert list(rig.queues.awake) == [sessions[4].queue]
    assert rig.queues.log_waiting(0) == 19
    assert rig.queues.take_overdue(7) == [sessions[number].queue for number in (1, 2, 3, 6, 7)]
    assert rig.queues.aside.deadlines.first_ns() == 8


def test_of_too_many_lookups_all_are_forgotten(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(context, "_MOST_USES", 1)
    session = rig.session()
    rig.teach(session, cmd.Fill(MemoryAt(DATA, 0), 64, b"\x01"))
    rig.queues.drop_lookups(session.context, (12345,))
    assert isinstance(session.queue.prepared, PreparedSubmissions)
    assert not session.queue.prepared.record.prepared_count
    assert session.context.users.take(DATA) == (), "it counts from the beginning again"


def test_what_is_put_off_is_done_in_parts_and_charged_to_its_session(rig: Rig) -> None:
    sleeper, other = rig.session(), rig.session()
    for session in (sleeper, other):
        session.record(cmd.Barrier())
    rig.queues.put_to_sleep_some()
    for session in (sleeper, other):
        session.submit()
    rig.queues.answer_doorbell(sleeper.context, at_once=False)
    rig.queues.answer_doorbell(sleeper.context, at_once=False)
    assert not rig.queues.awake
    chores = rig.scheduler.pick(rig.queues.awake, rig.queues.chores.waiting)
    assert isinstance(chores, Chores)
    assert chores.share is sleeper.context.share
    rig.queues.chores.run_part(chores)
    assert list(rig.queues.awake) == [sleeper.queue]
    sleeper.context.rung = True  # rung while they were looked at
    rig.queues.chores.run_part(chores)
    rig.queues.chores.run_part(chores)
    assert rig.queues.chores.next() is None
    assert other.queue.place is Place.ASLEEP


def test_chores_take_turns_with_those_who_have_used_less(rig: Rig) -> None:
    session, flood = rig.session(), rig.session()
    session.record(cmd.Barrier())
    session.submit()
    rig.queues.chores.add(flood.context.share, session.queue.level, iter([None] * 10))
    flood.context.share.spent_ns[session.queue.level] = 1000
    assert rig.scheduler.pick(rig.queues.awake, rig.queues.chores.waiting) is session.queue
    session.context.share.spent_ns[session.queue.level] = 2000
    assert isinstance(rig.scheduler.pick(rig.queues.awake, rig.queues.chores.waiting), Chores)


def test_of_many_that_wait_for_an_event_each_session_wakes_its_own(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    sessions = [_blocked(rig) for _ in range(3)]
    with monkeypatch.context() as patched:
        patched.setattr(queue_table, "MANY", 1)
        patched.setattr(Waits, "waiting_for", lambda *_: [each.queue for each in sessions])
        rig.queues.wake_signalled(Range((0, 0), 0, 64))
    shares = [chores.share for chores in rig.queues.chores.waiting]
    assert shares == [each.context.share for each in sessions[1:]]


def test_a_queue_that_is_dropped_while_it_is_looked_at_is_not_polled(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = _blocked(rig)

    def dropped(queue: EngineQueue) -> bool:
        rig.queues.drop(queue)
        return True

    monkeypatch.setattr(EngineQueue, "is_cancelled", dropped)
    rig.queues.answer_doorbell(session.context)
    assert session.queue.closed
    assert not rig.queues.awake


@pytest.mark.parametrize("what", ["signal", "cancel"])
def test_a_wait_that_has_ended_in_time_is_not_late(rig: Rig, what: str) -> None:
    session, other = _blocked(rig), _blocked(rig)
    if what == "signal":
        session.event.host_signal()  # of many queues the engine answers the doorbell after others' turns
    else:
        session.fence.cancel(session.fence.armed)
    late_ns = max(session.queue.deadline_ns, other.queue.deadline_ns)
    assert rig.queues.take_overdue(late_ns) == [other.queue]
    assert session.queue.place is Place.AWAKE
