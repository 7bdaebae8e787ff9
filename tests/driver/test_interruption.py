"""A call that is interrupted (Ctrl-C, a time-out by signal) leaves driver and daemon with the same books."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from softnpu.driver import Context, Driver, GraphSource, ZeError, ZeResult
from softnpu.driver import memory as memory_module
from softnpu.emulator.interface.channel import Channel, Packet
from tests.conftest import StartDaemon
from tests.support.daemon import Daemon
from tests.support.waiting import wait_until
from tests.support.work import check_works, failure


class Interruption(Exception):
    """What a signal handler of a program raises."""


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """The daemon takes no request inside."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def interrupted(daemon: Daemon, call: Callable[[], object]) -> None:
    """`call` is interrupted while it waits for the daemon, which answers later."""

    def interrupt(*_: object) -> None:
        raise Interruption

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with stopped(daemon.pid):
            signal.setitimer(signal.ITIMER_REAL, 0.05)
            with pytest.raises(Interruption):
                call()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_memory_that_an_interrupted_call_was_given_is_given_back(daemon: Daemon, context: Context) -> None:
    used = daemon.memory_used()
    interrupted(daemon, lambda: context.alloc_host(1000))

    # it lies in the same segment, of which only the lost answer had the descriptor
    later = context.alloc_host(2000)
    later.view()[:] = 7

    check_works(context)
    later.destroy()
    del later
    context.release_memory()
    wait_until(lambda: daemon.memory_used() <= used + 64 * 64, what="all but signals given back")


@pytest.mark.parametrize("export", [False, True])
def test_every_kind_of_memory_survives_it(daemon: Daemon, context: Context, export: bool) -> None:
    for _ in range(3):
        interrupted(daemon, lambda: context.alloc_device(5000, export=export))
        interrupted(daemon, context.create_event)
    check_works(context)


def test_a_queue_that_an_interrupted_call_was_given_is_destroyed(daemon: Daemon, context: Context) -> None:
    interrupted(daemon, context.create_command_queue)
    check_works(context)
    wait_until(lambda: daemon.engine().queues == 0, what="the queue of nobody is gone")


def test_a_compilation_that_is_interrupted_ends(daemon: Daemon, context: Context, digits: Path) -> None:
    with GraphSource.from_ir(digits) as source:
        interrupted(daemon, lambda: context.create_graph(source))
        check_works(context)
        wait_until(lambda: sum(each.graphs for each in daemon.status().sessions) == 0)
        context.create_graph(source).initialize()


def test_descriptors_of_late_answers_are_closed(daemon: Daemon, context: Context) -> None:
    check_works(context)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        interrupted(daemon, lambda: context.alloc_host(1 << 20))
    context.alloc_host(64).destroy()
    context.release_memory()
    assert len(os.listdir("/proc/self/fd")) == before


def test_the_end_of_the_context_takes_what_came_late_with_it(daemon: Daemon, driver: Driver) -> None:
    context = driver.devices[0].create_context()
    interrupted(daemon, lambda: context.alloc_host(1 << 20))
    driver.status()  # reads the late answer
    context.destroy()
    wait_until(lambda: daemon.memory_used() == 0)
    check_works(driver.devices[0].create_context())


def test_an_answer_that_was_lost_for_good_ends_the_session_with_a_clear_error(
    start_daemon: StartDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon = start_daemon()
    with Driver.open(daemon.socket) as driver:
        context = driver.devices[0].create_context()

        def interrupted_reading(_channel: Channel) -> Packet:
            raise Interruption

        with monkeypatch.context() as patch:
            patch.setattr(Channel, "receive", interrupted_reading)
            with pytest.raises(Interruption):
                context.alloc_host(64)
        error = failure(lambda: context.alloc_host(64), ZeResult.ERROR_DEVICE_LOST)
        assert "interrupted" in error.info.found
        assert "open a new driver" in error.info.hint


def test_a_segment_that_is_not_known_here_is_no_key_error(
    daemon: Daemon, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    class NotAlways:
        """Interrupts between the answer and the books."""

        def __call__(self, *_: object) -> None:
            raise Interruption

    with monkeypatch.context() as patch:
        patch.setattr(memory_module, "SharedMapping", NotAlways())
        with pytest.raises(Interruption):
            context.alloc_host(64)
    with pytest.raises(ZeError, match="interruption"):
        context.alloc_host(64)
    assert daemon.alive
