"""Fences: creation, waiting, signalling, reset."""

from __future__ import annotations

import threading

import pytest

from softnpu.emulator.interface.result import ZeResult
from tests.conformance.api.enumerations import INFINITE
from tests.conformance.api.structures import Handle, Pointer
from tests.conformance.rig import BRIEF, DEADLINE, SECOND, Rig, ok

pytestmark = pytest.mark.quick


class Blocked:
    """A submission with a fence that ends on `release`; it copies eight bytes."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.gate = rig.event()
        self.queue = rig.queue()
        self.fence = rig.fence(self.queue)
        self.target: Pointer = rig.host(8)
        self.list: Handle = rig.gated_copy(self.gate, self.target, rig.data(b"finished"), 8)
        rig.submit(self.queue, self.list, fence=self.fence)

    def release(self) -> None:
        self.rig.signal(self.gate)

    def finish(self) -> None:
        self.release()
        self.rig.finish(self.queue)

    @property
    def done(self) -> bool:
        return self.rig.api.read(self.target, 8) == b"finished"


def test_unsubmitted_fence_is_not_ready_whatever_the_timeout(rig: Rig) -> None:
    fence = rig.fence(rig.queue())
    assert rig.api.ze_fence_query_status(fence) == ZeResult.NOT_READY
    assert rig.api.ze_fence_host_synchronize(fence, DEADLINE) == ZeResult.NOT_READY
    assert rig.api.ze_fence_host_synchronize(fence, INFINITE) == ZeResult.NOT_READY


def test_fence_created_signalled_is_ready_until_it_is_reset(rig: Rig) -> None:
    fence = rig.fence(rig.queue(), signalled=True)
    ok(rig.api.ze_fence_query_status(fence))
    ok(rig.api.ze_fence_host_synchronize(fence, 0))
    ok(rig.api.ze_fence_reset(fence))
    assert rig.api.ze_fence_query_status(fence) == ZeResult.NOT_READY


def test_fence_is_not_ready_while_its_work_is_blocked(rig: Rig) -> None:
    work = Blocked(rig)
    assert rig.api.ze_fence_query_status(work.fence) == ZeResult.NOT_READY
    assert rig.api.ze_fence_host_synchronize(work.fence, 0) == ZeResult.NOT_READY
    assert not work.done
    work.finish()


def test_timeout_that_passes_is_not_ready_and_can_be_tried_again(rig: Rig) -> None:
    work = Blocked(rig)
    # a wait that ignored its time-out would end with the submission's abort
    for _ in range(2):
        assert rig.api.ze_fence_host_synchronize(work.fence, BRIEF) == ZeResult.NOT_READY
    work.release()
    ok(rig.api.ze_fence_host_synchronize(work.fence, DEADLINE))


def test_infinite_timeout_waits_for_the_work(rig: Rig) -> None:
    work = Blocked(rig)
    timer = threading.Timer(0.05, work.release)
    timer.start()
    ok(rig.api.ze_fence_host_synchronize(work.fence, INFINITE))
    done = work.done
    timer.join()
    assert done


def test_fence_stays_ready_until_it_is_reset(rig: Rig) -> None:
    work = Blocked(rig)
    work.release()
    ok(rig.api.ze_fence_host_synchronize(work.fence, DEADLINE))
    ok(rig.api.ze_fence_host_synchronize(work.fence, 0))
    ok(rig.api.ze_fence_query_status(work.fence))
    ok(rig.api.ze_fence_query_status(work.fence))


def test_reset_fence_is_not_ready(rig: Rig) -> None:
    work = Blocked(rig)
    work.release()
    ok(rig.api.ze_fence_host_synchronize(work.fence, DEADLINE))
    ok(rig.api.ze_fence_reset(work.fence))
    assert rig.api.ze_fence_query_status(work.fence) == ZeResult.NOT_READY
    assert rig.api.ze_fence_host_synchronize(work.fence, DEADLINE) == ZeResult.NOT_READY


def test_reset_before_the_end_does_not_detach_the_work(rig: Rig) -> None:
    work = Blocked(rig)
    ok(rig.api.ze_fence_reset(work.fence))
    assert rig.api.ze_fence_query_status(work.fence) == ZeResult.NOT_READY
    work.release()
    ok(rig.api.ze_fence_host_synchronize(work.fence, DEADLINE))
    assert work.done


def test_only_empty_lists_signal_the_fence_at_once(rig: Rig) -> None:
    queue, empty = rig.queue(), rig.recorded()
    fence = rig.fence(queue)
    rig.submit(queue, empty, empty, fence=fence)
    ok(rig.api.ze_fence_query_status(fence))


def test_empty_lists_beside_work_wait_for_the_work(rig: Rig) -> None:
    work, empty = Blocked(rig), rig.recorded()
    fence = rig.fence(work.queue)
    rig.submit(work.queue, empty, rig.gated_copy(work.gate, work.target, work.target, 8), empty, fence=fence)
    assert rig.api.ze_fence_query_status(fence) == ZeResult.NOT_READY
    work.finish()
    ok(rig.api.ze_fence_query_status(fence))


def test_fence_of_another_queue_is_refused_after_the_work_was_submitted(rig: Rig) -> None:
    foreign, queue, target = rig.fence(rig.queue()), rig.queue(), rig.host(8)
    copy = rig.copy_list(target, rig.data(b"has run."), 8)
    result = rig.api.ze_command_queue_execute_command_lists(queue, 1, [copy], foreign)
    assert result == ZeResult.ERROR_INVALID_SYNCHRONIZATION_OBJECT
    assert rig.api.ze_fence_query_status(foreign) == ZeResult.NOT_READY
    rig.finish(queue)
    assert rig.api.read(target, 8) == b"has run."


def test_new_submission_replaces_the_work_of_a_fence(rig: Rig) -> None:
    first = Blocked(rig)
    second_gate, target = rig.event(), rig.host(8)
    second = rig.gated_copy(second_gate, target, rig.data(b"the next"), 8)
    rig.submit(first.queue, second, fence=first.fence)
    first.release()
    ok(rig.api.ze_event_host_synchronize(first.gate, DEADLINE))
    assert rig.api.ze_fence_host_synchronize(first.fence, BRIEF) == ZeResult.NOT_READY
    rig.signal(second_gate)
    ok(rig.api.ze_fence_host_synchronize(first.fence, DEADLINE))
    assert rig.api.read(target, 8) == b"the next"


def test_fence_waits_for_all_lists_of_its_submission(rig: Rig) -> None:
    queue, gate, target = rig.queue(), rig.event(), rig.host(8)
    fence, slow = rig.fence(queue), rig.gated_copy(gate, target, rig.data(b"the last"), 8)
    rig.submit(queue, rig.copy_list(rig.host(8), rig.host(8), 8), slow, fence=fence)
    assert rig.api.ze_fence_host_synchronize(fence, BRIEF) == ZeResult.NOT_READY
    rig.signal(gate)
    ok(rig.api.ze_fence_host_synchronize(fence, DEADLINE))
    assert rig.api.read(target, 8) == b"the last"


def test_many_threads_wait_for_one_fence(rig: Rig) -> None:
    work = Blocked(rig)
    results: list[ZeResult] = []

    def synchronize() -> None:
        results.append(rig.api.ze_fence_host_synchronize(work.fence, DEADLINE))

    threads = [threading.Thread(target=synchronize) for _ in range(8)]
    for thread in threads:
        thread.start()
    work.release()
    for thread in threads:
        thread.join(DEADLINE / SECOND)
    assert results == [ZeResult.SUCCESS] * 8


def test_fence_can_be_used_a_thousand_times(rig: Rig) -> None:
    queue, copy = rig.queue(), rig.copy_list(rig.host(8), rig.host(8), 8)
    fence = rig.fence(queue)
    for _ in range(1000):
        rig.submit(queue, copy, fence=fence)
        ok(rig.api.ze_fence_host_synchronize(fence, DEADLINE))
        ok(rig.api.ze_fence_reset(fence))
    assert rig.api.ze_fence_query_status(fence) == ZeResult.NOT_READY


def test_fence_may_be_destroyed_while_its_work_runs(rig: Rig) -> None:
    work = Blocked(rig)
    ok(rig.api.ze_fence_destroy(work.fence))
    work.finish()
    assert work.done
