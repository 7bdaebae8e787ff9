"""An engine's death is a device reset: the guilty submission fails, everything else completes."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import numpy as np
import pytest

from softnpu.driver import Context, Driver, GraphSource, ZeError, ZeResult
from tests.conftest import OpenContext, StartContext, StartDaemon
from tests.support.daemon import Daemon
from tests.support.models import Array, image, on_cpu, random_square, write_chain, write_scale
from tests.support.waiting import wait_until
from tests.support.work import (
    LONG,
    Loaded,
    barrier,
    check_works,
    execute,
    failure,
    fill,
    lost,
    recorded,
    run,
    same,
    waits,
)

_SIZE = 384
_IN_A_ROW = 10
_TIMES = 40  # about a third of a second on two cores


def _matrix(seed: int = 1) -> Array:
    return random_square(_SIZE, seed)


class _LongRun:
    """A submission that computes for a while and signals when it has begun."""

    def __init__(self, context: Context, xml: Path, times: int = _TIMES) -> None:
        self.loaded = Loaded(context, xml)
        self.loaded.feed(_matrix())
        self.queue = context.create_command_queue()
        begun = context.create_event()
        one = [lambda c: c.append_graph_execute(self.loaded.graph)]
        # not the first command: after a reset a submission waits until its graph is reloaded
        commands = recorded(context, *one, lambda c: c.append_signal_event(begun), *one * times)
        self.fence = execute(self.queue, commands)
        assert begun.host_synchronize(LONG)
        assert not self.fence.query_status()


@pytest.fixture
def xml(private_dir: Path) -> Path:
    return write_chain(private_dir, _SIZE, 20)


# ------------------------------------------------------------ starts and ends of engines


def test_killed_as_soon_as_it_is_ready_it_comes_back_each_time(start_context: StartContext) -> None:
    daemon, context = start_context()
    for kills in range(1, 5):
        daemon.kill_engine()
        daemon.wait_restarted(kills)
    check_works(context)


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
    queue, loaded = context.create_command_queue(), Loaded(context, digits)
    expected = on_cpu(digits, image())
    assert same(loaded.infer(queue, image()), expected)

    killed = daemon.kill_engine()

    assert same(loaded.infer(queue, image()), expected), "handles, memory and graph are what they were"
    engine = daemon.engine()
    assert engine.engine_pid != killed
    assert (engine.restarts, engine.state) == (1, "ready")


def test_objects_and_submissions_made_while_no_engine_lives(start_context: StartContext) -> None:
    daemon, first = start_context()
    daemon.kill_engine()
    with first.device.create_context() as context:
        context.create_command_queue().destroy()
        context.alloc_host(4096).destroy()
        queue, memory = context.create_command_queue(), context.alloc_host(64)
        for value in (1, 2):
            daemon.kill_engine()
            run(queue, fill(context, memory, value))
            assert np.all(memory.view() == value)
    wait_until(lambda: daemon.memory_used() == 0)


# ------------------------------------------------------------ running submissions


def test_killed_while_computing_everything_runs_once_with_the_right_numbers(
    daemon: Daemon, context: Context, open_context: OpenContext, xml: Path
) -> None:
    innocent, counted = open_context(daemon), context.alloc_host(8)
    # each run shifts the bytes by one: a repeated run would show
    shift = recorded(context, lambda c: c.append_memory_copy(counted.view()[1:], counted, 7))
    counted.view()[:] = np.arange(8)
    queue, memory = innocent.create_command_queue(), innocent.alloc_host(1 << 20)
    long = _LongRun(context, xml)
    behind = [execute(long.queue, shift) for _ in range(3)]
    beside = [execute(queue, fill(innocent, memory, 0x11)) for _ in range(20)]

    daemon.kill_engine()
    long.loaded.memory[1].view()[:] = 0  # discard the dead engine's numbers

    assert all(fence.host_synchronize(LONG) for fence in (long.fence, *behind, *beside))
    assert same(long.loaded.outputs, on_cpu(xml, _matrix()))
    assert list(counted.view()) == [0, 0, 0, 0, 1, 2, 3, 4]
    assert np.all(memory.view() == 0x11)
    assert daemon.engine().restarts == 1


def _await_running(daemon: Daemon, restarts: int) -> None:
    """Wait for a long inference to run: a submission that only checks an event also runs, but briefly."""
    seen = 0

    def running() -> bool:
        nonlocal seen
        runs = daemon.counts("restarts", "state", "running") == (restarts, "ready", 1)
        seen = seen + 1 if runs else 0
        return seen == _IN_A_ROW

    wait_until(running, 60, what="a submission that runs")


def test_a_submission_goes_on_though_engines_die_again_and_again(
    start_context: StartContext, xml: Path
) -> None:
    daemon, context = start_context(tdr_ms=30_000)
    long = _LongRun(context, xml, 2 * _TIMES)
    daemon.kill_engine()
    daemon.kill_engine()  # a starting engine that runs nothing yet
    _await_running(daemon, 2)
    before = daemon.engine().tile_busy_ns
    wait_until(lambda: daemon.engine().tile_busy_ns > before, what="another command")
    daemon.kill_engine()

    assert long.fence.host_synchronize(3 * LONG), "no two of them died under the same command"
    assert same(long.loaded.outputs, on_cpu(xml, _matrix()))


def test_a_submission_under_which_two_engines_died_is_lost_and_no_other(
    start_context: StartContext, open_context: OpenContext, private_dir: Path
) -> None:
    daemon, context = start_context(tdr_ms=30_000)
    innocent, guilty = open_context(daemon), context.create_command_queue()
    slow = Loaded(context, write_chain(private_dir, 1536, 200, "slow"))  # many seconds
    gate, queue = innocent.create_event(), innocent.create_command_queue()
    waiting, behind = execute(queue, waits(innocent, gate)), execute(queue, barrier(innocent))
    spare = context.create_command_queue()
    fence = execute(guilty, slow.commands)
    for restarts in (0, 1):
        _await_running(daemon, restarts)
        daemon.kill_engine()

    assert "engine died" in lost(fence).info.found
    assert guilty.lost
    lost(execute(guilty, barrier(context)))
    run(spare, barrier(context))
    gate.host_signal()
    assert waiting.host_synchronize(LONG), "it waited while the engines died: it is innocent"
    assert behind.host_synchronize(LONG)
    check_works(innocent)
    assert daemon.engine().restarts == 2


# ------------------------------------------------------------ changing weights


def _edit(xml: Path) -> None:
    """Change the last byte of the weights through a mapping, as a program with the file open could."""
    with open(xml.with_suffix(".bin"), "r+b") as file, mmap.mmap(file.fileno(), 0) as content:
        content[-1] ^= 1


def _cut(xml: Path) -> None:
    os.truncate(xml.with_suffix(".bin"), 0)


def test_the_next_engine_refuses_weights_that_were_edited_or_cut_since_and_lives(
    daemon: Daemon, context: Context, private_dir: Path
) -> None:
    xml, data = write_scale(private_dir, 2.0), np.arange(4096, dtype=np.float32)
    queue, loaded = context.create_command_queue(), Loaded(context, xml)
    assert same(loaded.infer(queue, data), on_cpu(xml, data))
    for restarts, change in enumerate((_edit, _cut), 1):
        change(xml)
        daemon.kill_engine()
        daemon.wait_restarted(restarts)
        check_works(context)
        fence = execute(queue, loaded.commands)
        with pytest.raises(
            ZeError, match="constant 'weights'.*other weights" if restarts == 1 else "weights"
        ):
            fence.host_synchronize(LONG)


def test_weights_that_were_edited_before_they_are_loaded_are_refused(
    shared_daemon: Daemon, open_context: OpenContext, private_dir: Path
) -> None:
    xml = write_scale(private_dir, 2.0)
    with GraphSource.from_ir(xml) as source:
        graph = open_context(shared_daemon).create_graph(source)
    _edit(xml)
    assert "constant 'weights'" in str(failure(graph.initialize, ZeResult.ERROR_INVALID_ARGUMENT))
    _edit(xml)  # restored
    graph.initialize()
