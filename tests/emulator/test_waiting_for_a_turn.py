"""A wait for an event that comes late because others were served first is no hang."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from softnpu.driver import Driver, ZeError
from tests.conftest import StartDaemon
from tests.support.models import write_chain
from tests.support.waiting import Stopwatch, wait_until
from tests.support.work import LONG, Loaded, execute, fill, recorded, run, waits

_TDR_MS = 1000
_OTHERS_S = 2.5
_BEFORE = 8 << 20


def test_a_queue_waits_for_another_that_waits_for_its_turn(
    start_daemon: StartDaemon, private_dir: Path
) -> None:
    daemon = start_daemon(tdr_ms=_TDR_MS)
    with Driver.open(daemon.socket) as driver, Driver.open(daemon.socket) as other:
        context, foreign = driver.devices[0].create_context(), other.devices[0].create_context()
        first, second = context.create_command_queue(), context.create_command_queue()
        memory, event = context.alloc_host(64), context.create_event()
        run(second, fill(context, memory, 1))
        long = Loaded(foreign, write_chain(private_dir, 1536, 200))  # many seconds
        begun, foreign_queue = foreign.create_event(), foreign.create_command_queue()

        waiting = execute(first, waits(context, event), fill(context, memory, 0x5A))
        busy = execute(
            foreign_queue,
            recorded(
                foreign,
                lambda c: c.append_signal_event(begun),
                lambda c: c.append_graph_execute(long.graph),
            ),
        )
        assert begun.host_synchronize(LONG)
        large = context.alloc_host(_BEFORE)
        before = [execute(second, fill(context, large, value)) for value in range(4)]
        signalling = execute(second, recorded(context, lambda c: c.append_signal_event(event)))
        watch = Stopwatch()
        wait_until(lambda: watch.seconds > _OTHERS_S, 30)
        assert not signalling.query_status(), "the other session has the device"
        busy.cancel()
        with pytest.raises(ZeError, match="cancelled"):
            busy.host_synchronize(LONG)

        assert all(fence.host_synchronize(LONG) for fence in before)
        assert signalling.host_synchronize(LONG)
        assert waiting.host_synchronize(LONG), "its event was signalled as soon as the device came to it"
        assert not first.lost
        assert np.all(memory.view() == 0x5A)


def test_a_wait_for_nothing_is_given_up_though_another_queue_works(start_daemon: StartDaemon) -> None:
    daemon = start_daemon(tdr_ms=_TDR_MS)
    with Driver.open(daemon.socket) as driver:
        context = driver.devices[0].create_context()
        queue, other = context.create_command_queue(), context.create_command_queue()
        waiting = execute(queue, waits(context, context.create_event()))
        commands = fill(context, context.alloc_host(4096), 3)
        while not queue.lost:
            run(other, commands)
        with pytest.raises(ZeError, match="without progress"):
            waiting.host_synchronize(LONG)
