"""The life of a submission (`docs/interface.md`, 9.1): who is told what, and that it is true.

Nobody is told of the end of work that was not done, whatever the client does with its fences and events
meanwhile, and wherever an engine dies.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import numpy as np
import psutil
import pytest

from softnpu.driver import CommandList, CommandQueue, Context, Driver, Event, ZeResult, faults
from softnpu.emulator.interface.injections import FaultKind
from tests.conftest import StartDaemon
from tests.support.daemon import Daemon
from tests.support.waiting import wait_until
from tests.support.work import LONG, barrier, execute, failure, fill, recorded, run, waits

_NOW = 1_000_000
_ROUNDS = 100  # without tickets three rounds of a hundred ended with a fence signalled too early


@pytest.fixture
def patient(start_daemon: StartDaemon) -> Daemon:
    """A daemon whose watchdog leaves waits alone."""
    return start_daemon(tdr_ms=60_000)


@pytest.fixture
def context(patient: Daemon) -> Context:
    driver = Driver.open(patient.socket)
    return driver.devices[0].create_context()


def _signals(context: Context, event: Event, *before: Callable[[CommandList], None]) -> CommandList:
    return recorded(context, *before, lambda c: c.append_signal_event(event))


def _await_end(queue: CommandQueue, sequence: int) -> None:
    wait_until(lambda: queue.describe().completed >= sequence)


def _kill_stopped(pid: int) -> None:
    """Kills an engine that has come to the fail-point where it stops."""
    wait_until(lambda: psutil.Process(pid).status() == psutil.STATUS_STOPPED)
    os.kill(pid, signal.SIGKILL)


# ---------------------------------------------------------------- fences


def test_a_fence_is_not_signalled_for_another_queue_by_the_next_engine(
    patient: Daemon, context: Context
) -> None:
    gate, first, second = (
        context.create_event(),
        context.create_command_queue(),
        context.create_command_queue(),
    )
    for queue in (first, second):
        run(queue, barrier(context))
    ended = execute(first, barrier(context))
    assert ended.host_synchronize(LONG)
    record_at = (ended._block.handle, ended._offset)
    ended.destroy()
    waiting = second.create_fence()
    assert (waiting._block.handle, waiting._offset) == record_at, (
        "the memory of the first fence is used again"
    )
    second.execute_command_lists([waits(context, gate)], waiting)

    patient.kill_engine()
    patient.wait_restarted(1)

    assert not waiting.host_synchronize(_NOW)
    gate.host_signal()
    assert waiting.host_synchronize(LONG)


def test_a_fence_that_is_armed_again_belongs_to_the_later_submission(context: Context) -> None:
    queue, told, gate = (
        context.create_command_queue(turbo=True),
        context.create_event(),
        context.create_event(),
    )
    fence, tells, gated = queue.create_fence(), _signals(context, told), waits(context, gate)
    for ended in range(1, 2 * _ROUNDS, 2):
        told.host_reset()
        gate.host_reset()
        queue.execute_command_lists([tells], fence)
        while not told.query_status():  # the end is learnt before the engine has signalled the fence
            pass
        queue.execute_command_lists([gated], fence)
        _await_end(queue, ended)
        assert not fence.query_status()
        gate.host_signal()
        assert fence.host_synchronize(LONG)


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


@pytest.mark.parametrize("again", [True, False], ids=["armed again", "reset"])
def test_a_cancelled_list_is_told_as_cancelled_whatever_becomes_of_its_fence(
    context: Context, again: bool
) -> None:
    queue, begun, memory = context.create_command_queue(), context.create_event(), context.alloc_host(1 << 24)
    endless = recorded(
        context,
        lambda c: c.append_signal_event(begun),
        *[lambda c: c.append_memory_fill(memory, b"\x01", 1 << 24)] * 5_000,
    )
    fence = execute(queue, endless)
    assert begun.host_synchronize(LONG)
    fence.cancel()
    if again:
        queue.execute_command_lists([barrier(context)], fence)
        assert fence.host_synchronize(LONG)
    else:
        fence.reset()
    failure(lambda: queue.synchronize(LONG), ZeResult.ERROR_NOT_AVAILABLE)


@pytest.mark.parametrize("point", ["engine.ended", "engine.signal"])
def test_an_end_that_was_noted_is_told_by_the_next_engine(start_daemon: StartDaemon, point: str) -> None:
    daemon = start_daemon(failpoints=f"{point}=kill:1:1")
    with Driver.open(daemon.socket) as driver:
        context = driver.devices[0].create_context()
        queue, memory = context.create_command_queue(), context.alloc_host(64)
        run(queue, barrier(context))
        memory.view()[:] = 0
        fence = execute(queue, fill(context, memory, 1))
        assert fence.host_synchronize(LONG)
        assert np.all(memory.view() == 1)
        daemon.wait_restarted(1)


# ---------------------------------------------------------------- events


class _Relay:
    """A producer that copies and signals, a consumer that waits and copies on: one number a round."""

    def __init__(self, context: Context) -> None:
        self.source, self.between, self.target = (context.alloc_host(64) for _ in range(3))
        self.event = context.create_event()
        self.produce = _signals(
            context, self.event, lambda c: c.append_memory_copy(self.between, self.source, 64)
        )
        self.consume = recorded(
            context,
            lambda c: c.append_wait_on_events([self.event]),
            lambda c: c.append_memory_copy(self.target, self.between, 64),
        )


@pytest.mark.parametrize("point", ["engine.event", "engine.completing", "engine.ended", "engine.signal"])
def test_an_event_that_the_host_has_reset_is_not_signalled_again(
    start_daemon: StartDaemon, point: str
) -> None:
    daemon = start_daemon(tdr_ms=60_000, failpoints=f"{point}=stop:1:1")
    with Driver.open(daemon.socket) as driver:
        context = driver.devices[0].create_context()
        relay = _Relay(context)
        producer, consumer = context.create_command_queue(), context.create_command_queue()
        engine = daemon.engine().engine_pid
        # the first time it passes: what stops is the second list
        warm = context.create_event()
        run(producer, _signals(context, warm))

        relay.source.view()[:] = 1
        producer.execute_command_lists([relay.produce])
        assert relay.event.host_synchronize(LONG)
        relay.event.host_reset()
        _kill_stopped(engine)

        assert producer.synchronize(LONG)
        assert not relay.event.query_status()
        second = execute(consumer, relay.consume)
        assert not second.host_synchronize(50 * _NOW)
        relay.source.view()[:] = 2
        producer.execute_command_lists([relay.produce])
        assert second.host_synchronize(LONG)
        assert np.all(relay.target.view() == 2)


def test_an_event_that_the_host_has_signalled_is_not_reset_again(start_daemon: StartDaemon) -> None:
    daemon = start_daemon(tdr_ms=60_000, failpoints="engine.event=stop")
    with Driver.open(daemon.socket) as driver:
        context = driver.devices[0].create_context()
        event, queue = context.create_event(), context.create_command_queue()
        event.host_signal()
        fence = execute(queue, recorded(context, lambda c: c.append_event_reset(event)))
        wait_until(lambda: not event.query_status())
        event.host_signal()
        _kill_stopped(daemon.engine().engine_pid)
        assert fence.host_synchronize(LONG)
        assert event.query_status()


# ---------------------------------------------------------------- failures that a user asks for


@pytest.mark.parametrize(
    ("kind", "result"),
    [
        (FaultKind.DROP_SIGNAL, ZeResult.ERROR_DEVICE_LOST),
        (FaultKind.STALL, ZeResult.ERROR_DEVICE_LOST),
        (FaultKind.HANG, ZeResult.ERROR_DEVICE_LOST),
    ],
)
def test_an_injected_failure_stays_decided_when_the_engine_dies(
    start_daemon: StartDaemon, kind: FaultKind, result: ZeResult
) -> None:
    daemon = start_daemon(tdr_ms=60_000)
    with Driver.open(daemon.socket) as driver:
        context = driver.devices[0].create_context()
        queue, memory = context.create_command_queue(), context.alloc_host(64)
        run(queue, barrier(context))
        number = faults.inject(kind, socket=daemon.socket)
        fence = execute(queue, fill(context, memory, 1))
        wait_until(lambda: _hits(daemon, number) == 1)
        assert not fence.query_status()
        daemon.kill_engine()
        failure(lambda: fence.host_synchronize(LONG), result)
        assert _hits(daemon, number) == 1


def _hits(daemon: Daemon, number: int) -> int:
    return next(state.hits for state in faults.status(daemon.socket) if state.id == number)


# ---------------------------------------------------------------- full rings


def test_a_full_ring_ends_with_the_queue_when_its_submissions_cannot(start_daemon: StartDaemon) -> None:
    with Driver.open(start_daemon(tdr_ms=200).socket) as driver:
        context = driver.devices[0].create_context()
        queue, never = context.create_command_queue(slots=2), context.create_event()
        for _ in range(3):  # the third one finds no slot until the device has given up the first
            queue.execute_command_lists([waits(context, never)])
        failure(lambda: queue.synchronize(LONG), ZeResult.ERROR_DEVICE_LOST)
