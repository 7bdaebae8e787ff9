"""An engine that is behind with its orders: clients may use at once what they were given."""

from __future__ import annotations

import os
import signal

import numpy as np
import pytest

from softnpu.driver import Driver
from tests.conftest import StartDaemon
from tests.support.work import LONG, check_works, execute, fill

pytestmark = pytest.mark.quick

_MANY = 900
"""More orders than the socket of an engine takes, which are some hundred."""


def test_memory_of_which_the_engine_has_not_heard_yet_can_be_used(start_daemon: StartDaemon) -> None:
    daemon = start_daemon(tdr_ms=30_000)
    with Driver.open(daemon.socket) as driver:
        context = driver.devices[0].create_context()
        check_works(context)
        queue = context.create_command_queue()
        engine = daemon.engine().engine_pid
        os.kill(engine, signal.SIGSTOP)
        try:
            memory = [context.alloc_host(64) for _ in range(_MANY)]
            fence = execute(queue, fill(context, memory[-1], 0x5A))
        finally:
            os.kill(engine, signal.SIGCONT)

        assert fence.host_synchronize(LONG)
        assert np.all(memory[-1].view() == 0x5A)
        assert daemon.engine().engine_pid == engine


def test_a_session_that_begins_while_an_engine_is_behind(start_daemon: StartDaemon) -> None:
    daemon = start_daemon(tdr_ms=30_000)
    with Driver.open(daemon.socket) as driver, Driver.open(daemon.socket) as second:
        context = driver.devices[0].create_context()
        check_works(context)
        engine = daemon.engine().engine_pid
        os.kill(engine, signal.SIGSTOP)
        try:
            kept = [context.alloc_host(64) for _ in range(_MANY)]
            other = second.devices[0].create_context()
            queue, memory = other.create_command_queue(), other.alloc_host(4096)
            fence = execute(queue, fill(other, memory, 0x33))
        finally:
            os.kill(engine, signal.SIGCONT)

        assert fence.host_synchronize(LONG)
        assert np.all(memory.view() == 0x33)
        assert len(kept) == _MANY
