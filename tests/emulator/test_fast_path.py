"""Prepared submissions in C++: exactly the same life of a submission as in Python."""

from __future__ import annotations

import ctypes
import faulthandler
import mmap
import os
import re
import resource
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from softnpu.emulator.interface import commands as cmd
from softnpu.emulator.interface import records
from softnpu.emulator.interface.commands import MemoryAt
from softnpu.emulator.interface.records import PAGE, StatusWord
from softnpu.emulator.interface.result import ErrorInfo, ZeResult
from softnpu.emulator.links import engine as link
from tests.support.fast_path import DATA, FENCE, Rig, Session

pytestmark = pytest.mark.quick

HERE = MemoryAt(DATA, 0)
EVENT = MemoryAt(FENCE, 64)
HEADER = Path(__file__).parents[2] / "emulator/engine/native/fast_path.hpp"
_NEVER = 2**63
LOST = ErrorInfo(result=ZeResult.ERROR_DEVICE_LOST, object="submission", found="poisoned")


@pytest.fixture
def rig() -> Iterator[Rig]:
    rig = Rig()
    yield rig
    rig.close()


def _fill(value: int) -> cmd.Fill:
    return cmd.Fill(HERE, 64, bytes([value]))


def _data(session: Session, at: int = 0) -> int:
    return session.mapping.buffer[3 * PAGE + at]


def _untouched(session: Session, ticket: int, ended: int) -> bool:
    return (
        not session.fence.is_signalled(ticket)
        and session.ring.completed
        == session.queue.completed
        == session.state_words[link.STATE_COMPLETED]
        == ended
    )


def test_the_words_of_a_queue_are_those_of_python() -> None:
    found = dict(re.findall(r"(STATE_\w+) = (\d+)", HEADER.read_text()))
    assert len(found) == 12
    assert {name: getattr(link, name) for name in found} == {name: int(at) for name, at in found.items()}


# ---------------------------------------------------------------- work for C++


def test_a_known_submission_ends_like_any_other(rig: Rig) -> None:
    session = rig.session()
    rig.teach(session, _fill(7))
    session.mapping.buffer[3 * PAGE : 3 * PAGE + 65] = bytes(65)
    before = rig.counters.submissions
    tickets = [session.submit() for _ in range(3)]

    assert rig.call()

    assert session.fence.is_signalled(tickets[-1])  # armed for it
    assert session.ring.completed == session.queue.completed == session.state_words[link.STATE_COMPLETED] == 5
    assert session.state_words[link.STATE_RUNNING] == 5
    assert [session.ring.result(sequence) for sequence in (3, 4, 5)] == [0, 0, 0]
    assert (_data(session, 63), _data(session, 64)) == (7, 0)
    assert rig.counters.submissions == before + 3
    assert rig.counters._words[StatusWord.WRITTEN] == 5 * 64
    # the session's account excludes the machine's other work meanwhile
    assert (
        session.state_words[link.STATE_SPENT] == rig.counters.busy_ns >= session.context.share.spent_ns[2] > 0
    )


@pytest.mark.parametrize(
    ("size", "pattern"), [(1, b"\1"), (13, b"\1\2"), (64, b"\1\2\3\4"), (29, bytes(range(8)))]
)
def test_fills_copies_and_timestamps_write_what_they_write_in_python(
    rig: Rig, size: int, pattern: bytes
) -> None:
    session = rig.session()
    at = MemoryAt(DATA, 3)
    commands = (
        cmd.Fill(at, size, pattern),
        cmd.Copy(MemoryAt(DATA, 1001), at, size),
        cmd.Barrier(),
        cmd.Timestamp(MemoryAt(DATA, 2048)),
    )
    rig.teach(session, *commands)
    expected = session.mapping.buffer[3 * PAGE : 3 * PAGE + 2048]
    stamped = session.mapping.longs[(3 * PAGE + 2048) // 8]
    session.mapping.buffer[3 * PAGE : 4 * PAGE] = bytes(PAGE)
    session.submit()

    assert rig.call()

    assert session.mapping.buffer[3 * PAGE : 3 * PAGE + 2048] == expected
    assert session.mapping.longs[(3 * PAGE + 2048) // 8] >= stamped > 0


def test_an_event_is_waited_for_in_python_and_changed_once(rig: Rig) -> None:
    session = rig.session()
    session.event.host_signal()
    rig.teach(session, cmd.EventWait(EVENT), cmd.EventReset(EVENT), cmd.EventSignal(EVENT))
    changes = session.event.changes
    session.submit()
    assert rig.call()
    assert (session.event.changes, session.event.signalled) == (changes + 2, True)

    session.event.host_reset()
    ticket = session.submit()
    assert not rig.call()
    assert _untouched(session, ticket, 3)
    assert session.event.changes == changes + 2
    session.event.host_signal()
    rig.runner.run(session.queue)
    assert session.fence.is_signalled(ticket)


def test_a_fence_that_waits_for_another_submission_is_left_alone(rig: Rig) -> None:
    session = rig.session()
    rig.teach(session, _fill(1))
    ticket = session.submit()
    session.fence.arm(ticket + 1)

    assert rig.call()

    assert session.ring.completed == 3
    assert not session.fence.is_signalled(ticket)
    assert not session.fence.is_signalled(ticket + 1)


# ---------------------------------------------------------------- work left to Python


def test_commands_that_have_changed_are_decoded_again(rig: Rig) -> None:
    session = rig.session()
    rig.teach(session, _fill(1))
    session.record(_fill(2))  # in place
    ticket = session.submit()

    assert not rig.call()

    assert _untouched(session, ticket, 2)
    assert _data(session) == 1
    rig.runner.run(session.queue)
    assert (_data(session), session.fence.is_signalled(ticket)) == (2, True)


def test_a_cancelled_submission_does_not_begin(rig: Rig) -> None:
    session = rig.session()
    rig.teach(session, _fill(1))
    session.mapping.buffer[3 * PAGE] = 0
    ticket = session.submit(cancelled=True)

    assert not rig.call()

    assert _untouched(session, ticket, 2)
    rig.runner.run(session.queue)
    assert session.fence.result == ZeResult.ERROR_NOT_AVAILABLE
    assert _data(session) == 0


def test_one_that_is_cancelled_between_its_commands_ends_early(rig: Rig) -> None:
    session = rig.session()
    rig.teach(session, _fill(1), cmd.EventSignal(EVENT))
    changes = session.event.changes
    tickets: list[int] = []
    rig.infer_by(session, lambda: session.fence.cancel(tickets[0]) or 0)  # type: ignore[func-returns-value]
    tickets.append(session.submit())

    assert not rig.call()

    assert _untouched(session, tickets[0], 2)
    assert session.queue.step == 1
    rig.runner.run(session.queue)
    assert session.fence.result == ZeResult.ERROR_NOT_AVAILABLE
    assert session.event.changes == changes


def test_an_injection_holds_from_the_next_submission_on(rig: Rig) -> None:
    session = rig.session()
    rig.teach(session, _fill(1))

    def inject() -> int:
        rig.injections[0] += 1
        return 0

    rig.infer_by(session, inject)
    rig.fast_path._record.poll_due_ns = _NEVER  # no message ends the call
    tickets = [session.submit(), session.submit()]

    assert not rig.call()

    assert session.ring.completed == 3
    assert not session.fence.is_signalled(tickets[1])


def test_a_poisoned_submission_does_not_run(rig: Rig) -> None:
    session = rig.session()
    rig.teach(session, _fill(1))
    session.queue.poisoned, session.queue.poisoned_info = 4, LOST
    session.submit()
    ticket = session.submit()

    assert not rig.call()

    assert _untouched(session, ticket, 3)


@pytest.mark.parametrize("tail", [2, 3 + 5, 2**64 - 1])
def test_a_ring_that_was_overwritten_is_for_python(rig: Rig, tail: int) -> None:
    session = rig.session()
    rig.teach(session, _fill(1))
    ticket = session.submit()
    session.ring.publish(tail)

    assert rig.call() == (tail == 2)  # no work is no error

    assert _untouched(session, ticket, 2)


def test_memory_that_was_freed_is_not_kept(rig: Rig) -> None:
    session = rig.session()
    rig.teach(session, _fill(1))
    rig.queues.drop_lookups(session.context, (DATA,))
    session.context.drop(DATA)
    ticket = session.submit()

    assert not rig.call()

    assert _untouched(session, ticket, 2)
    rig.runner.run(session.queue)
    assert session.fence.result == ZeResult.ERROR_INVALID_ARGUMENT


def test_a_fence_in_memory_that_was_freed_is_not_signalled(rig: Rig) -> None:
    session = rig.session()
    rig.teach(session, _fill(1))
    rig.queues.drop_lookups(session.context, (FENCE,))
    session.context.drop(FENCE)
    ticket = session.submit()

    assert not rig.call()

    assert _untouched(session, ticket, 2)


# ---------------------------------------------------------------- turns


def test_the_session_with_the_least_time_comes_first(rig: Rig) -> None:
    order: list[int] = []
    sessions = [rig.session() for _ in range(3)]
    for session in sessions:
        rig.teach(session, _fill(1))
        session.context.share.spent_ns[2] = 10**12

    def infer(session: Session) -> Callable[[], int]:
        def count() -> int:
            order.append(session.context.number)
            session.context.share.spent_ns[2] += 10**6 * session.context.number
            return 0

        return count

    by_step = {session.prepared.steps[0].at: infer(session) for session in sessions}
    rig.infer_by(sessions[0], int)
    callback = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p)(lambda at: by_step[at]())
    rig.fast_path._record.infer = ctypes.cast(callback, ctypes.c_void_p)
    for session in sessions:
        session.prepared.steps[0].kind = 1
        for _ in range(3):
            session.submit()

    assert rig.call()

    # after n turns a session has used about n times its number: that decides, not submission order
    assert sorted(order) == [1, 1, 1, 2, 2, 2, 3, 3, 3]
    assert order.index(3) < 3
    assert order[3:5].count(1) + order[3:5].count(2) == 2
    assert order[-1] == 3


def test_priorities_are_for_python(rig: Rig) -> None:
    normal, high = rig.session(), rig.session(priority=2)
    for session in (normal, high):
        rig.teach(session, _fill(1))
    tickets = [normal.submit(), high.submit()]

    assert not rig.call()

    assert _untouched(normal, tickets[0], 2)
    assert _untouched(high, tickets[1], 2)


def test_drivers_see_whether_and_where_the_engine_runs_for_them(rig: Rig) -> None:
    sessions = running, behind, idle = rig.session(), rig.session(), rig.session()
    for session in sessions:
        rig.teach(session, _fill(1))
    before = os.sched_getaffinity(0)
    core = min(before)
    word = records.RING.offset("engine_core") // 4
    seen: list[list[int]] = []

    def look() -> int:
        seen.append([session.mapping.words[word] for session in sessions])
        return 0

    rig.infer_by(running, look)
    running.submit()
    behind.submit()
    behind.context.share.spent_ns[behind.queue.level] = (
        running.context.share.spent_ns[running.queue.level] + 10**9
    )
    os.sched_setaffinity(0, {core})
    try:
        assert rig.call()
    finally:
        os.sched_setaffinity(0, before)

    assert seen == [[core + 1, 2**32 - 1, 0]]
    assert not any(session.mapping.words[word] for session in sessions)  # Python may run the next one
    assert idle.ring.completed == 2


# ---------------------------------------------------------------- deaths and failures


def test_while_an_inference_runs_nothing_says_that_it_has_ended(rig: Rig) -> None:
    session = rig.session()
    rig.teach(session, _fill(1))
    seen: list[tuple[bool, int]] = []
    tickets: list[int] = []

    def look() -> int:
        seen.append((_untouched(session, tickets[0], 2), session.state_words[link.STATE_RUNNING]))
        return 0

    rig.infer_by(session, look)
    tickets.append(session.submit())
    assert rig.call()

    assert seen == [(True, 3)]
    assert session.fence.is_signalled(tickets[0])


def test_a_failed_inference_is_run_again_by_python(rig: Rig) -> None:
    session = rig.session()
    rig.teach(session, cmd.EventSignal(EVENT), _fill(1))
    changes = session.event.changes
    session.prepared.steps[1].kind = 1
    rig.infer_by(session, int)
    session.prepared.steps[0].kind = 6
    callback = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p)(lambda _: -1)
    rig.fast_path._record.infer = ctypes.cast(callback, ctypes.c_void_p)
    ticket = session.submit()

    assert not rig.call()

    assert _untouched(session, ticket, 2)
    assert session.queue.step == 1
    assert session.state_words[link.STATE_RUNNING] == 0
    assert session.state_words[link.STATE_REACHED] == 3 << link.REACHED_BITS | 1
    rig.runner.run(session.queue)
    assert session.fence.is_signalled(ticket)
    assert session.event.changes == changes + 1  # once


@pytest.mark.parametrize(
    ("page", "logged", "signalled", "told"),
    [
        pytest.param(3, 2, False, 2, id="in a command"),
        pytest.param(0, 2, False, 2, id="before its result is stored"),
        pytest.param(1, 3, False, 2, id="before its fence is signalled"),
        pytest.param(None, 3, True, 3, id="never"),
    ],
)
def test_an_engine_that_dies_leaves_what_the_next_one_expects(
    rig: Rig, page: int | None, logged: int, signalled: bool, told: int
) -> None:
    session = rig.session()
    rig.teach(session, _fill(1))
    ticket = session.submit()

    child = os.fork()
    if not child:
        faulthandler.disable()
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if page is not None:
            _protect(session.context.space.memory(DATA).mapping.shared.address + page * PAGE)
        rig.call()
        os._exit(0)
    _, status = os.waitpid(child, 0)

    assert (os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0) == (0 if page is None else signal.SIGSEGV)
    assert session.state_words[link.STATE_COMPLETED] == logged
    assert session.fence.is_signalled(ticket) == signalled
    assert session.ring.completed == told
    if logged == 2 and page == 3:
        assert session.state_words[link.STATE_RUNNING] == 3


def _protect(address: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.mprotect(ctypes.c_void_p(address), PAGE, mmap.PROT_READ) == 0
