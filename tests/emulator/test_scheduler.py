"""The scheduler's rules in simulated time: exact, where real processes are only approximate."""

from __future__ import annotations

import pytest

from softnpu.emulator.engine.queues.polled import Polled
from softnpu.emulator.engine.queues.scheduler import SLICE_NS, Scheduler
from softnpu.emulator.engine.share import LEVELS, Share

pytestmark = pytest.mark.quick

_MS = 1_000_000
BACKGROUND, LOW, NORMAL, HIGH = range(LEVELS)


class _Queue:
    """The scheduler's view of a queue: it has work of `cost` as long as `waits`."""

    def __init__(self, share: Share, level: int = NORMAL, cost: int = 2 * _MS, parts: int = 1) -> None:
        self.share = share
        self.level = level
        self.cost = cost
        self.parts = parts
        self.ran_ns = 0
        self.waits = True
        self.had = 0

    def pending(self) -> bool:
        return self.waits


def _polled(queues: list[_Queue]) -> Polled[_Queue]:
    polled: Polled[_Queue] = Polled()
    for queue in queues:
        polled.add(queue)
    return polled


def _run(scheduler: Scheduler, queues: list[_Queue], until_ns: int, now: int = 0) -> int:
    end = now + until_ns
    polled = _polled(queues)
    while now < end:
        chosen = scheduler.pick(polled)
        assert chosen is not None
        chosen.ran_ns = now
        for part in range(chosen.parts):  # like a long list: it yields at checkpoints
            if part:
                scheduler.pick(polled)
            scheduler.charge(chosen, chosen.cost // chosen.parts)
        chosen.had += chosen.cost
        now += chosen.cost
    return now


def test_equal_sessions_have_equal_time_whatever_their_submissions_cost() -> None:
    queues = [_Queue(Share(), cost=cost * _MS) for cost in (1, 2, 3, 5)]
    _run(Scheduler(), queues, 1000 * _MS)
    assert min(queue.had for queue in queues) >= 0.97 * 250 * _MS


def test_slices_of_a_long_list_and_short_submissions_have_equal_time() -> None:
    long, short = _Queue(Share(), cost=10 * _MS, parts=5), _Queue(Share(), cost=_MS // 5)
    _run(Scheduler(), [long, short], 1000 * _MS)
    assert min(long.had, short.had) >= 0.97 * 500 * _MS


def test_queues_of_one_session_share_what_a_session_gets() -> None:
    many, one = Share(), Share()
    queues = [_Queue(many) for _ in range(9)] + [_Queue(one)]
    _run(Scheduler(), queues, 1000 * _MS)
    assert queues[-1].had >= 0.98 * 500 * _MS
    assert min(queue.had for queue in queues[:-1]) >= 0.9 * 500 / 9 * _MS, "each has its turn"


@pytest.mark.parametrize("level", [BACKGROUND, LOW, NORMAL])
def test_a_waiting_level_has_a_sixteenth(level: int) -> None:
    high, low = _Queue(Share(), HIGH), _Queue(Share(), level)
    _run(Scheduler(), [high, low], 4000 * _MS)
    assert low.had == pytest.approx(4000 * _MS / 16, rel=0.1)


def test_three_waiting_levels_have_a_sixteenth_each_at_least() -> None:
    queues = [_Queue(Share(), level) for level in range(LEVELS)]
    _run(Scheduler(), queues, 8000 * _MS)
    assert all(queue.had >= 8000 * _MS / 20 for queue in queues)
    assert queues[HIGH].had >= 0.75 * 8000 * _MS


def test_nothing_is_earned_while_nobody_higher_runs() -> None:
    scheduler = Scheduler()
    high, low = _Queue(Share(), HIGH), _Queue(Share(), LOW)
    high.waits = False
    now = _run(scheduler, [high, low], 5000 * _MS)
    high.waits = True
    low.had = 0
    _run(scheduler, [high, low], 100 * _MS, now)
    assert low.had <= SLICE_NS


def test_one_very_long_command_of_a_lower_level_is_paid_for() -> None:
    high, low = _Queue(Share(), HIGH), _Queue(Share(), LOW, cost=300 * _MS)
    _run(Scheduler(), [high, low], 20_000 * _MS)
    assert low.had <= 20_000 * _MS / 16 + 300 * _MS


def test_idleness_gives_no_claim() -> None:
    scheduler = Scheduler()
    busy, idle = _Queue(Share()), _Queue(Share())
    idle.waits = False
    now = _run(scheduler, [busy, idle], 5000 * _MS)
    busy.had, idle.waits = 0, True
    _run(scheduler, [busy, idle], 100 * _MS, now)
    assert busy.had >= 0.45 * 100 * _MS


def test_one_endless_list_gives_who_was_idle_no_claim_either() -> None:
    scheduler = Scheduler()
    endless, idle = _Queue(Share(), cost=5000 * _MS, parts=2500), _Queue(Share())
    idle.waits = False
    now = _run(scheduler, [endless, idle], 5000 * _MS)
    endless.had, endless.cost, endless.parts, idle.waits = 0, 10 * _MS, 5, True
    _run(scheduler, [endless, idle], 100 * _MS, now)
    assert endless.had >= 0.4 * 100 * _MS


def test_work_on_a_high_level_is_not_held_against_a_session_on_another() -> None:
    scheduler, share = Scheduler(), Share()
    high, mine, other = _Queue(share, HIGH), _Queue(share), _Queue(Share())
    mine.waits = other.waits = False
    now = _run(scheduler, [high, mine, other], 1000 * _MS)
    high.waits, mine.waits, other.waits = False, True, True
    _run(scheduler, [high, mine, other], 1000 * _MS, now)
    assert min(mine.had, other.had) >= 0.95 * 500 * _MS


def test_nothing_to_do_is_nobody() -> None:
    queue = _Queue(Share())
    queue.waits = False
    assert Scheduler().pick(_polled([queue])) is None
    assert Scheduler().pick(_polled([])) is None
