"""An engine that dies is a device reset: the guilty submission fails, everything else completes."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from softnpu.driver import CommandList, Context, Driver, ZeError, ZeResult
from tests.conftest import StartDaemon
from tests.support.daemon import Daemon
from tests.support.models import Array, on_cpu, write_chain, write_scale
from tests.support.waiting import wait_until
from tests.support.work import LONG, Loaded, barrier, check_works, execute, failure, fill, recorded, run, same

_SIZE = 384
_IN_A_ROW = 10
_TIMES = 40  # about a third of a second on two cores


def _matrix(seed: int = 1) -> Array:
    return np.random.default_rng(seed).random((_SIZE, _SIZE), dtype=np.float32)


class _LongRun:
    """A submission that computes for a while and tells when it has begun."""

    def __init__(self, context: Context, xml: Path, times: int = _TIMES) -> None:
        self.loaded = Loaded(context, xml)
        self.queue = context.create_command_queue()
        self.begun = context.create_event()

        def one(commands: CommandList) -> None:
            commands.append_graph_execute(self.loaded.graph)

        # not the first command: after a reset a submission waits until its graph is loaded again
        self.commands = recorded(context, one, lambda c: c.append_signal_event(self.begun), *[one] * times)

    def start(self) -> None:
        self.fence = execute(self.queue, self.commands)
        self.await_begin()

    def await_begin(self) -> None:
        assert self.begun.host_synchronize(LONG)
        assert not self.fence.query_status()


@pytest.fixture
def xml(private_dir: Path) -> Path:
    return write_chain(private_dir, _SIZE, 20)


def test_killed_as_soon_as_it_is_ready_it_comes_back_each_time(start_daemon: StartDaemon) -> None:
    daemon = start_daemon()
    for kills in range(1, 9):
        daemon.kill_engine()
        daemon.wait_restarted(kills)
    with Driver.open(daemon.socket) as driver:
        check_works(driver.devices[0].create_context())


def test_a_device_whose_engines_never_get_ready_is_given_up(start_daemon: StartDaemon) -> None:
    daemon = start_daemon(failpoints="engine.handshake=abort:*")
    wait_until(lambda: daemon.engine().state == "failed", what="the device given up")
    assert daemon.engine().restarts == 5
    with Driver.open(daemon.socket) as driver:
        error = failure(driver.devices[0].create_context, ZeResult.ERROR_DEVICE_LOST)
    assert "before they are ready" in error.info.found
    assert "log" in error.info.hint


@pytest.mark.quick
def test_killed_while_idle_it_comes_back_and_nobody_notices(
    daemon: Daemon, context: Context, digits: Path
) -> None:
    image = np.random.default_rng(1).random((1, 1, 8, 8), dtype=np.float32)
    queue, loaded = context.create_command_queue(), Loaded(context, digits)
    expected = on_cpu(digits, image)
    assert same(loaded.infer(queue, image), expected)

    killed = daemon.kill_engine()

    assert same(loaded.infer(queue, image), expected), "handles, memory and graph are what they were"
    engine = daemon.engine()
    assert engine.engine_pid != killed
    assert engine.restarts == 1
    assert engine.state == "ready"


def test_killed_while_computing_everything_runs_once_with_the_right_numbers(
    daemon: Daemon, context: Context, xml: Path
) -> None:
    long, matrix, counted = _LongRun(context, xml), _matrix(), context.alloc_host(8)
    # each run shifts the bytes by one: a second run would show
    shift = recorded(context, lambda c: c.append_memory_copy(counted.view()[1:], counted, 7))
    long.loaded.feed(matrix)
    counted.view()[:] = np.arange(8)
    with Driver.open(daemon.socket) as other:
        innocent = other.devices[0].create_context()
        queue, memory = innocent.create_command_queue(), innocent.alloc_host(1 << 20)
        long.start()
        behind = [execute(long.queue, shift) for _ in range(3)]
        beside = [execute(queue, fill(innocent, memory, 0x11)) for _ in range(20)]

        daemon.kill_engine()
        long.loaded.memory[1].view()[:] = 0  # the dead engine's numbers do not count

        assert all(fence.host_synchronize(LONG) for fence in (long.fence, *behind, *beside))
        assert same(long.loaded.outputs, on_cpu(xml, matrix))
        assert list(counted.view()) == [0, 0, 0, 0, 1, 2, 3, 4]
        assert np.all(memory.view() == 0x11)
        assert daemon.engine().restarts == 1


def test_objects_and_submissions_made_while_no_engine_lives(daemon: Daemon, driver: Driver) -> None:
    daemon.kill_engine()
    with driver.devices[0].create_context() as context:
        context.create_command_queue().destroy()
        context.alloc_host(4096).destroy()
        queue, memory = context.create_command_queue(), context.alloc_host(64)
        for value in (1, 2, 3):
            daemon.kill_engine()
            run(queue, fill(context, memory, value))
            assert np.all(memory.view() == value)
    wait_until(lambda: daemon.memory_used() == 0)


def _await_running(daemon: Daemon, restarts: int) -> None:
    """A long inference runs. A submission that only looks at an event runs for a moment as well."""
    seen = 0

    def running() -> bool:
        nonlocal seen
        engine = daemon.engine()
        runs = engine.restarts == restarts and engine.state == "ready" and engine.running == 1
        seen = seen + 1 if runs else 0
        return seen == _IN_A_ROW

    wait_until(running, 60, what="a submission that runs")


def test_a_submission_goes_on_though_engines_die_again_and_again(
    start_daemon: StartDaemon, xml: Path
) -> None:
    daemon = start_daemon(tdr_ms=30_000)
    with Driver.open(daemon.socket) as driver:
        context = driver.devices[0].create_context()
        long, matrix = _LongRun(context, xml, 2 * _TIMES), _matrix()
        long.loaded.feed(matrix)
        long.start()
        for restarts in (0, 1, 2):
            _await_running(daemon, restarts)
            before = daemon.engine().tile_busy_ns
            wait_until(lambda before=before: daemon.engine().tile_busy_ns > before)  # type: ignore[misc]
            daemon.kill_engine()

        assert long.fence.host_synchronize(3 * LONG), "no two of them died under the same command"
        assert same(long.loaded.outputs, on_cpu(xml, matrix))


def test_a_submission_under_which_two_engines_died_is_lost_and_no_other(
    start_daemon: StartDaemon, xml: Path, private_dir: Path
) -> None:
    daemon = start_daemon(tdr_ms=30_000)
    with Driver.open(daemon.socket) as guilty, Driver.open(daemon.socket) as other:
        context, innocent = guilty.devices[0].create_context(), other.devices[0].create_context()
        long = _LongRun(context, xml, 0)
        slow = Loaded(context, write_chain(private_dir, 1536, 200, "slow"))  # many seconds
        long.commands = slow.commands
        gate = innocent.create_event()
        queue = innocent.create_command_queue()
        waiting = execute(queue, recorded(innocent, lambda c: c.append_wait_on_events([gate])))
        behind = execute(queue, barrier(innocent))
        spare = context.create_command_queue()
        fence = execute(long.queue, long.commands)
        for restarts in (0, 1):
            _await_running(daemon, restarts)
            daemon.kill_engine()

        error = failure(lambda: fence.host_synchronize(LONG), ZeResult.ERROR_DEVICE_LOST)
        assert "engine died" in error.info.found
        assert long.queue.lost
        later = execute(long.queue, barrier(context))
        failure(lambda: later.host_synchronize(LONG), ZeResult.ERROR_DEVICE_LOST)
        run(spare, barrier(context))
        gate.host_signal()
        assert waiting.host_synchronize(LONG), "it waited while the engines died: it is innocent"
        assert behind.host_synchronize(LONG)
        check_works(innocent)
        assert daemon.engine().restarts == 2


def test_an_engine_that_dies_before_it_runs_anything_condemns_nobody(
    start_daemon: StartDaemon, xml: Path
) -> None:
    daemon = start_daemon(tdr_ms=30_000)
    with Driver.open(daemon.socket) as driver:
        context = driver.devices[0].create_context()
        long, matrix = _LongRun(context, xml), _matrix()
        long.loaded.feed(matrix)
        long.start()
        daemon.kill_engine()
        for _ in range(2):  # engines that have not finished starting
            daemon.kill_engine()

        assert long.fence.host_synchronize(3 * LONG), "three engines have to start"
        assert same(long.loaded.outputs, on_cpu(xml, matrix))


@pytest.mark.quick
def test_a_fence_that_was_reset_is_not_signalled_again(daemon: Daemon, context: Context) -> None:
    queue = context.create_command_queue()
    fence = execute(queue, barrier(context))
    assert fence.host_synchronize(LONG)
    fence.reset()

    daemon.kill_engine()
    daemon.wait_restarted(1)

    assert not fence.query_status()
    run(queue, barrier(context))


def test_weights_that_changed_on_disk_fail_their_graph_and_no_engine(
    daemon: Daemon, context: Context, private_dir: Path
) -> None:
    xml = write_scale(private_dir, 2.0)
    data = np.ones(4096, np.float32)
    queue, loaded = context.create_command_queue(), Loaded(context, xml)
    assert same(loaded.infer(queue, data), on_cpu(xml, data))
    os.truncate(xml.with_suffix(".bin"), 0)

    for restarts in (1, 2, 3):
        daemon.kill_engine()
        daemon.wait_restarted(restarts)
        check_works(context)
        fence = execute(queue, loaded.commands)
        with pytest.raises(ZeError, match="weights"):
            fence.host_synchronize(LONG)
