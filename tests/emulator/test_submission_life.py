"""The life of a submission (`docs/interface.md`, 9.1): its reports are right, and reach the right client.

Nobody is told of the end of undone work, whatever the client does with its fences and events meanwhile, and
wherever an engine dies.
"""

from __future__ import annotations

import os
import signal
import threading
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from softnpu.driver import CommandQueue, Context, ZeResult, faults
from softnpu.driver.faults import FaultKind
from softnpu.emulator.common import linux
from softnpu.emulator.links import engine as link
from tests.conftest import StartContext
from tests.model.recording import FENCE_AT, TICKET, RecordedQueue
from tests.support.daemon import Daemon
from tests.support.waiting import DEADLINE_S, wait_stopped, wait_until
from tests.support.work import (
    LONG,
    barrier,
    check_works,
    execute,
    failure,
    fill,
    lost,
    recorded,
    run,
    signals,
    waits,
)

_NOW = 1_000_000
_ROUNDS = 100  # without tickets three rounds of a hundred ended with a fence signalled too early
_FILL = 1 << 24


@pytest.fixture
def daemon(shared_daemon: Daemon) -> Daemon:
    return shared_daemon


def _await_end(queue: CommandQueue, sequence: int) -> None:
    wait_until(lambda: queue.describe().completed >= sequence)


def _kill_stopped(pid: int) -> None:
    """Kill an engine once it stops at the fail-point."""
    wait_stopped(pid)
    os.kill(pid, signal.SIGKILL)


# ---------------------------------------------------------------- fences


@pytest.mark.quick
def test_a_fence_is_not_signalled_for_another_submission_by_the_next_engine(
    start_context: StartContext,
) -> None:
    daemon, context = start_context(tdr_ms=60_000)
    gate = context.create_event()
    first, second = context.create_command_queue(), context.create_command_queue()
    for queue in (first, second):
        run(queue, barrier(context))
    was_reset, ended = execute(first, barrier(context)), execute(first, barrier(context))
    assert ended.host_synchronize(LONG)
    was_reset.reset()
    record_at = (ended._block.handle, ended._offset)
    ended.destroy()
    waiting = second.create_fence()
    assert (waiting._block.handle, waiting._offset) == record_at, (
        "the memory of the first fence is used again"
    )
    second.execute_command_lists([waits(context, gate)], waiting)

    daemon.kill_engine()
    daemon.wait_restarted(1)

    assert not waiting.host_synchronize(_NOW)
    assert not was_reset.query_status()
    gate.host_signal()
    assert waiting.host_synchronize(LONG)


def test_a_fence_that_is_armed_again_belongs_to_the_later_submission(context: Context) -> None:
    queue, told, gate = (
        context.create_command_queue(turbo=True),
        context.create_event(),
        context.create_event(),
    )
    fence, tells, gated = queue.create_fence(), signals(context, told), waits(context, gate)
    for ended in range(1, 2 * _ROUNDS, 2):
        told.host_reset()
        gate.host_reset()
        queue.execute_command_lists([tells], fence)
        while not told.query_status():  # the end is seen before the engine has signalled the fence
            pass
        queue.execute_command_lists([gated], fence)
        _await_end(queue, ended)
        assert not fence.query_status()
        gate.host_signal()
        assert fence.host_synchronize(LONG)


@pytest.mark.parametrize("point", ["engine.ended", "engine.signal"])
def test_an_end_that_was_logged_is_reported_by_the_next_engine(
    start_context: StartContext, point: str
) -> None:
    daemon, context = start_context(failpoints=f"{point}=kill:1:1")
    queue, memory = context.create_command_queue(), context.alloc_host(64)
    run(queue, barrier(context))
    memory.view()[:] = 0
    run(queue, fill(context, memory, 1))
    assert np.all(memory.view() == 1)
    daemon.wait_restarted(1)


# ---------------------------------------------------------------- cancelling


@pytest.mark.quick
def test_cancelling_means_the_submission_that_the_fence_was_given_to_last(context: Context) -> None:
    queue, gate, memory = context.create_command_queue(), context.create_event(), context.alloc_host(64)
    memory.view()[:] = 0
    fence = queue.create_fence()
    queue.execute_command_lists([waits(context, gate)])
    queue.execute_command_lists([fill(context, memory, 1)], fence)
    queue.execute_command_lists([fill(context, memory, 2)], fence)
    fence.cancel()
    gate.host_signal()
    failure(lambda: fence.host_synchronize(LONG), ZeResult.ERROR_NOT_AVAILABLE)
    assert queue.synchronize(LONG)
    assert np.all(memory.view() == 1)


@pytest.mark.parametrize("becomes", ["waited for", "armed again", "reset"])
def test_a_running_list_that_is_cancelled_ends_soon_and_is_reported_as_cancelled(
    context: Context, becomes: str
) -> None:
    queue, begun, memory = context.create_command_queue(), context.create_event(), context.alloc_host(_FILL)
    fence = execute(
        queue,
        recorded(
            context,
            lambda c: c.append_signal_event(begun),
            *[lambda c: c.append_memory_fill(memory, b"\x01", _FILL)] * 5_000,
        ),
    )
    assert begun.host_synchronize(LONG)
    fence.cancel()
    match becomes:
        case "waited for":
            failure(lambda: fence.host_synchronize(LONG), ZeResult.ERROR_NOT_AVAILABLE)
        case "armed again":
            queue.execute_command_lists([barrier(context)], fence)
            assert fence.host_synchronize(LONG)
        case _:
            fence.reset()
    if becomes != "waited for":
        failure(lambda: queue.synchronize(LONG), ZeResult.ERROR_NOT_AVAILABLE)
    run(queue, barrier(context))


def test_a_queued_submission_that_is_cancelled_has_no_effect(start_context: StartContext) -> None:
    daemon, context = start_context(tdr_ms=60_000)
    gate, queue, memory = context.create_event(), context.create_command_queue(), context.alloc_host(64)
    memory.view()[:] = 1
    first = execute(queue, waits(context, gate))
    cancelled, kept = execute(queue, fill(context, memory, 2)), execute(queue, barrier(context))
    cancelled.cancel()
    assert not cancelled.host_synchronize(_NOW), "submissions end in their order"
    daemon.kill_engine()
    gate.host_signal()

    assert first.host_synchronize(LONG)
    failure(lambda: cancelled.host_synchronize(LONG), ZeResult.ERROR_NOT_AVAILABLE)
    assert kept.host_synchronize(LONG)
    assert np.all(memory.view() == 1)

    waiting = execute(queue, waits(context, context.create_event()))
    behind = execute(queue, barrier(context))
    assert not waiting.host_synchronize(_NOW)
    waiting.cancel()
    failure(lambda: waiting.host_synchronize(LONG), ZeResult.ERROR_NOT_AVAILABLE)
    assert behind.host_synchronize(LONG)
    check_works(context)


# ---------------------------------------------------------------- events


@pytest.mark.parametrize(
    "point",
    [
        "engine.event",
        "engine.ended",
        *(pytest.param(f"engine.{point}", marks=pytest.mark.soak) for point in ("completing", "signal")),
    ],
)
def test_an_event_that_the_host_has_reset_is_not_signalled_again(
    start_context: StartContext, point: str
) -> None:
    daemon, context = start_context(tdr_ms=60_000, failpoints=f"{point}=stop:1:1")
    source, between, target = (context.alloc_host(64) for _ in range(3))
    event, engine = context.create_event(), daemon.engine().engine_pid
    produce = signals(context, event, lambda c: c.append_memory_copy(between, source, 64))
    consume = recorded(
        context,
        lambda c: c.append_wait_on_events([event]),
        lambda c: c.append_memory_copy(target, between, 64),
    )
    producer, consumer = context.create_command_queue(), context.create_command_queue()
    # the first time it passes: the second list stops
    run(producer, signals(context, context.create_event()))

    source.view()[:] = 1
    producer.execute_command_lists([produce])
    assert event.host_synchronize(LONG)
    event.host_reset()
    _kill_stopped(engine)

    assert producer.synchronize(LONG)
    assert not event.query_status()
    second = execute(consumer, consume)
    assert not second.host_synchronize(50 * _NOW)
    source.view()[:] = 2
    producer.execute_command_lists([produce])
    assert second.host_synchronize(LONG)
    assert np.all(target.view() == 2)


def test_an_event_that_the_host_has_signalled_is_not_reset_again(start_context: StartContext) -> None:
    daemon, context = start_context(tdr_ms=60_000, failpoints="engine.event=stop")
    event, queue = context.create_event(), context.create_command_queue()
    event.host_signal()
    fence = execute(queue, recorded(context, lambda c: c.append_event_reset(event)))
    wait_until(lambda: not event.query_status())
    event.host_signal()
    _kill_stopped(daemon.engine().engine_pid)
    assert fence.host_synchronize(LONG)
    assert event.query_status()


def test_a_wait_is_not_waited_for_again_after_engine_resets(start_context: StartContext) -> None:
    daemon, context = start_context(tdr_ms=30_000)
    first, told, last = (context.create_event() for _ in range(3))
    queue, counted = context.create_command_queue(), context.alloc_host(8)
    counted.view()[:] = np.arange(8)
    commands = recorded(
        context,
        lambda c: c.append_wait_on_events([first]),
        lambda c: c.append_event_reset(first),
        lambda c: c.append_memory_copy(counted.view()[1:], counted, 7),
        lambda c: c.append_signal_event(told),
        lambda c: c.append_wait_on_events([last]),
    )
    fence = execute(queue, commands)
    first.host_signal()
    assert told.host_synchronize(LONG)
    wait_until(lambda: daemon.engine().running == 0, what="it waits")
    for restarts in (1, 2):
        daemon.kill_engine()
        daemon.wait_restarted(restarts)
    last.host_signal()

    assert fence.host_synchronize(LONG), "it does not wait again for the event that it has reset"
    assert list(counted.view()) == [0, 0, 1, 2, 3, 4, 5, 6]


# ------------------------------------------------------------ requested failures


def test_an_injected_failure_stays_decided_when_the_engine_dies(start_context: StartContext) -> None:
    daemon, context = start_context(tdr_ms=60_000)
    run(context.create_command_queue(), barrier(context))
    for kind in (FaultKind.DROP_SIGNAL, FaultKind.STALL, FaultKind.HANG):
        queue, memory = context.create_command_queue(), context.alloc_host(64)
        number = faults.inject(kind)

        fence = execute(queue, fill(context, memory, 1))
        wait_until(partial(_has_hit, number))
        assert not fence.query_status()
        daemon.kill_engine()
        lost(fence)
        assert _has_hit(number)
        del fence, queue  # the engine destroys a queue, and the next injection may hang it


def _has_hit(number: int) -> bool:
    return [state.hits for state in faults.status() if state.id == number] == [1]


# ---------------------------------------------------------------- full rings


def test_a_full_ring_ends_with_the_queue_when_its_submissions_cannot(start_context: StartContext) -> None:
    _, context = start_context(tdr_ms=200)
    queue, never = context.create_command_queue(slots=2), context.create_event()
    for _ in range(3):  # the third one finds no slot until the device has given up the first
        queue.execute_command_lists([waits(context, never)])
    failure(lambda: queue.synchronize(LONG), ZeResult.ERROR_DEVICE_LOST)


def test_the_next_engine_wakes_whom_the_dead_one_has_not() -> None:
    """It had taken the mark of the waiters, and stored the ticket."""
    queue = RecordedQueue()
    word = queue.real.address + FENCE_AT
    sleeper = threading.Thread(target=linux.futex_wait, args=(word, 0, 60 * 10**9), daemon=True)
    sleeper.start()
    call = Path(f"/proc/self/task/{sleeper.native_id}/syscall")
    wait_until(lambda: call.read_text().split()[0] == "202", what="it to sleep")
    queue.real.longs[FENCE_AT >> 3] = TICKET
    queue.state_words[link.STATE_COMPLETED] = 1
    queue.engine()
    sleeper.join(DEADLINE_S)
    assert not sleeper.is_alive()
