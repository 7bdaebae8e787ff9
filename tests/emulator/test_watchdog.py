"""The watchdog: stalled work is ended, slow work is not, and the innocent continue."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np
import pytest

from softnpu.driver import CommandList, Context, ZeResult
from softnpu.emulator.interface import commands as cmd
from softnpu.emulator.supervisor.tuning import Tuning
from tests.conftest import OpenContext, StartContext
from tests.support.daemon import Daemon
from tests.support.models import image, on_cpu, write_chain
from tests.support.waiting import Stopwatch, wait_gone, wait_until
from tests.support.wire import Wire, WireContext
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
    signals,
    waits,
)

_TUNING = Tuning(min_hang_s=0.4, min_start_s=0.5)
_OTHERS_S = 1.2


def test_a_stopped_engine_is_no_fault_of_what_it_was_running(
    start_context: StartContext, digits: Path
) -> None:
    daemon, context = start_context(failpoints="engine.running=stop:1:1", tdr_ms=400, tuning=_TUNING)
    queue, loaded = context.create_command_queue(), Loaded(context, digits)
    run(queue, barrier(context))

    assert same(loaded.infer(queue, image()), on_cpu(digits, image()))

    assert daemon.counts("restarts", "hangs", "offences", "aborted") == (1, 1, 0, 0)
    assert not queue.lost

    engine = daemon.engine().engine_pid
    os.kill(engine, signal.SIGSTOP)  # now, although nothing runs on it
    run(queue, barrier(context))
    wait_gone(engine)
    assert daemon.engine().restarts == 2


def test_a_command_that_hangs_is_lost_with_its_queue_and_all_others_complete(
    start_context: StartContext, open_context: OpenContext, digits: Path
) -> None:
    daemon, context = start_context(failpoints="engine.running=hang:1:1", tdr_ms=600, tuning=_TUNING)
    innocent = open_context(daemon)
    loaded, queue, memory = (
        Loaded(innocent, digits),
        innocent.create_command_queue(),
        innocent.alloc_host(4096),
    )
    run(queue, fill(innocent, memory, 1))
    bad, spare = context.create_command_queue(), context.create_command_queue()

    hung, behind = execute(bad, barrier(context)), execute(bad, barrier(context))
    wait_until(lambda: daemon.engine().running == 1, what="the command that hangs")
    loaded.feed(image())
    fences = [execute(queue, loaded.commands), execute(queue, fill(innocent, memory, 2))]

    assert "no progress" in lost(hung).info.found
    lost(behind)
    assert all(fence.host_synchronize(LONG) for fence in fences)
    assert same(loaded.outputs, on_cpu(digits, image()))
    assert np.all(memory.view() == 2)
    for each in (spare, context.create_command_queue()):
        run(each, barrier(context))
    assert daemon.counts("restarts", "hangs", "aborted", "offences") == (1, 1, 1, 1)


_FEW = 100
_LAYERS = 15
_TRIALS = 8


@pytest.mark.parametrize("limit_s", [0.0, 0.4], ids=["one long command", "many short ones"])
def test_long_is_not_hung_and_many_short_commands_are_not_one_long_one(
    start_context: StartContext, private_dir: Path, limit_s: float
) -> None:
    daemon, context = start_context(tdr_ms=300, tuning=_TUNING, command_limit_s=limit_s)
    memory, queue = context.alloc_host(1 << 24), context.create_command_queue()

    def fills(count: int) -> CommandList:
        return recorded(context, *[lambda c: c.append_memory_fill(memory, b"\x01", 1 << 24)] * count)

    for doubled in range(_TRIALS):  # until it takes long enough on any machine
        work = (
            fills(_FEW << doubled)
            if limit_s
            else Loaded(
                context, write_chain(private_dir, 1536, _LAYERS << doubled, f"chain{doubled}")
            ).commands
        )
        before = daemon.engine().busy_ns
        run(queue, work)
        if daemon.engine().busy_ns - before > 0.4e9:
            break
    assert daemon.engine().busy_ns - before > 0.4e9, "or this test shows nothing"
    assert daemon.counts("restarts", "hangs", "aborted") == (0, 0, 0)


def test_a_command_beyond_the_limit_is_aborted_without_a_reset(
    start_context: StartContext, private_dir: Path
) -> None:
    daemon, context = start_context(command_limit_s=0.3, tdr_ms=20_000)
    loaded, queue = Loaded(context, write_chain(private_dir, 1536, 200)), context.create_command_queue()

    assert "more than 0.3 s" in lost(execute(queue, loaded.commands)).info.found

    assert queue.lost
    check_works(context)
    assert daemon.counts("restarts", "hangs", "aborted", "offences") == (0, 0, 1, 1)


@pytest.mark.parametrize("point", ["load", "connect"])
def test_an_engine_that_hangs_while_it_starts_or_loads_is_replaced(
    start_context: StartContext, digits: Path, point: str
) -> None:
    daemon, context = start_context(failpoints=f"engine.{point}=hang", tdr_ms=600, tuning=_TUNING)
    queue, loaded = context.create_command_queue(), Loaded(context, digits)
    assert same(loaded.infer(queue, image()), on_cpu(digits, image()))
    assert daemon.engine().hangs == 1


# ---------------------------------------------------------------- waits for events


def test_a_queue_waits_for_another_that_waits_for_its_turn(
    start_context: StartContext, open_context: OpenContext, private_dir: Path
) -> None:
    daemon, context = start_context(tdr_ms=500)
    foreign = open_context(daemon)
    first, second = context.create_command_queue(), context.create_command_queue()
    memory, event = context.alloc_host(64), context.create_event()
    run(second, fill(context, memory, 1))
    long = Loaded(foreign, write_chain(private_dir, 1536, 200))  # many seconds
    begun = foreign.create_event()

    waiting = execute(first, waits(context, event), fill(context, memory, 0x5A))
    busy = execute(
        foreign.create_command_queue(),
        recorded(
            foreign, lambda c: c.append_signal_event(begun), lambda c: c.append_graph_execute(long.graph)
        ),
    )
    assert begun.host_synchronize(LONG)
    large = context.alloc_host(8 << 20)
    before = [execute(second, fill(context, large, value)) for value in range(4)]
    signalling = execute(second, signals(context, event))
    watch = Stopwatch()
    wait_until(lambda: watch.seconds > _OTHERS_S, 30)
    assert not signalling.query_status(), "the other session has the device"
    busy.cancel()
    failure(lambda: busy.host_synchronize(LONG), ZeResult.ERROR_NOT_AVAILABLE)

    assert all(fence.host_synchronize(LONG) for fence in (*before, signalling))
    assert waiting.host_synchronize(LONG), "its event was signalled as soon as the device came to it"
    assert np.all(memory.view() == 0x5A)


def test_a_wait_for_nothing_is_given_up_though_another_queue_works(start_context: StartContext) -> None:
    _, context = start_context(tdr_ms=400)
    queue, other = context.create_command_queue(), context.create_command_queue()
    waiting = execute(queue, waits(context, context.create_event()))
    commands = fill(context, context.alloc_host(4096), 3)
    while not queue.lost:
        run(other, commands)
    assert "without progress" in lost(waiting).info.found


# ------------------------------------------------------------ preemption of long commands


def test_a_buffer_of_two_million_commands_keeps_nobody_waiting(daemon: Daemon, context: Context) -> None:
    with Wire(daemon.socket) as wire:
        wire.hello()
        hostile = WireContext(wire)
        nops = bytes.fromhex("0100000008000000") * ((cmd.MAX_BUFFER - cmd.HEADER.size) // 8)
        data = cmd.HEADER.pack(cmd.MAGIC, 1, 0, cmd.MAX_BUFFER, len(nops) // 8) + nops
        memory, bad = hostile.alloc(len(data), "control"), hostile.queue()
        memory.write(data)
        queue, commands = context.create_command_queue(), barrier(context)
        run(queue, commands)

        number = bad.submit(memory, len(data))
        others = 0
        while bad.completed < number:
            run(queue, commands)
            others += 1

        assert others > 20, "others take turns with it"
        assert bad.wait(number) == 0


def test_a_command_of_half_a_gigabyte_keeps_nobody_waiting(
    shared_daemon: Daemon, open_context: OpenContext
) -> None:
    context, own = open_context(shared_daemon), open_context(shared_daemon)
    size = 1 << 29
    one, other = context.alloc_host(size), context.alloc_host(size)
    queue, commands = own.create_command_queue(), barrier(own)
    run(queue, commands)
    for big in (
        lambda c: c.append_memory_fill(one, b"\x01\x02\x03\x04", size),
        lambda c: c.append_memory_copy(other, one, size),
    ):
        fence = execute(context.create_command_queue(), recorded(context, big))
        others = 0
        while not fence.query_status():
            run(queue, commands)
            others += 1
        assert others > 5, "others take turns with it"
    assert np.all(other.view(np.uint32) == 0x04030201)
