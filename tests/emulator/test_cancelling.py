"""Cancelling and running out of time: what waits in a queue, what waits for an event, what runs."""

from __future__ import annotations

import numpy as np
import pytest

from softnpu.driver import Context, Driver, ZeResult
from tests.conftest import StartDaemon
from tests.support.daemon import Daemon
from tests.support.work import LONG, barrier, check_works, execute, failure, fill, recorded, run, waits

_NOW = 1_000_000


@pytest.fixture
def patient(start_daemon: StartDaemon) -> Daemon:
    """A daemon whose watchdog leaves waits alone."""
    return start_daemon(tdr_ms=60_000)


def test_a_long_list_ends_at_the_next_command_when_it_is_cancelled(context: Context) -> None:
    memory, queue = context.alloc_host(1 << 24), context.create_command_queue()
    endless = recorded(context, *[lambda c: c.append_memory_fill(memory, b"\x01", 1 << 24)] * 20_000)
    fence = execute(queue, endless)
    assert not fence.host_synchronize(20 * _NOW)
    fence.cancel()
    failure(lambda: fence.host_synchronize(LONG), ZeResult.ERROR_NOT_AVAILABLE)
    run(queue, barrier(context))


@pytest.mark.parametrize("reset", [False, True])
def test_a_queued_submission_that_is_cancelled_has_no_effect(patient: Daemon, reset: bool) -> None:
    with Driver.open(patient.socket) as driver:
        context = driver.devices[0].create_context()
        gate, queue, memory = context.create_event(), context.create_command_queue(), context.alloc_host(64)
        memory.view()[:] = 1
        first = execute(queue, waits(context, gate))
        cancelled, kept = execute(queue, fill(context, memory, 2)), execute(queue, barrier(context))
        cancelled.cancel()
        assert not cancelled.host_synchronize(_NOW), "submissions end in their order"
        assert not queue.synchronize(_NOW)
        if reset:
            patient.kill_engine()
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
        assert not queue.lost
        check_works(context)
