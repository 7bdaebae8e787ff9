"""Events between host and device, between queues, and the watchdog of waits."""

from __future__ import annotations

import threading

import numpy as np

from softnpu.driver import CommandQueue, Context, Driver, ZeResult
from tests.conftest import StartDaemon
from tests.support.waiting import Stopwatch, wait_until
from tests.support.work import LONG, barrier, check_works, execute, failure, recorded, run


def test_the_host_signals_and_resets_at_once(context: Context) -> None:
    event = context.create_event()
    assert not event.query_status()
    event.host_signal()
    assert event.query_status()
    assert event.host_synchronize(0)
    event.host_reset()
    assert not event.query_status()


def test_the_device_signals_and_resets(context: Context, queue: CommandQueue) -> None:
    event = context.create_event()
    run(queue, recorded(context, lambda c: c.append_signal_event(event)))
    assert event.query_status()
    run(queue, recorded(context, lambda c: c.append_event_reset(event)))
    assert not event.query_status()


def test_nothing_resets_it_by_itself(context: Context, queue: CommandQueue) -> None:
    event = context.create_event()
    event.host_signal()
    waits = recorded(context, lambda c: c.append_wait_on_events([event]))
    for _ in range(3):
        run(queue, waits)
    assert event.query_status()


def test_a_wait_for_several_needs_all(context: Context, queue: CommandQueue) -> None:
    events = [context.create_event() for _ in range(3)]
    fence = execute(queue, recorded(context, lambda c: c.append_wait_on_events(events)))
    for event in events:
        assert not fence.query_status()
        event.host_signal()
    assert fence.host_synchronize(LONG)


def test_queues_play_ping_pong(context: Context) -> None:
    rounds = 50
    ping, pong = context.create_event(), context.create_event()
    memory = context.alloc_host(2 * rounds * 8)
    stamps = memory.view(np.uint64)
    first = context.create_command_list()
    second = context.create_command_list()
    for turn in range(rounds):
        first.append_write_global_timestamp(stamps[2 * turn :])
        first.append_signal_event(ping)
        first.append_wait_on_events([pong])
        first.append_event_reset(pong)
        second.append_wait_on_events([ping])
        second.append_event_reset(ping)
        second.append_write_global_timestamp(stamps[2 * turn + 1 :])
        second.append_signal_event(pong)
    first.close()
    second.close()
    fences = [
        execute(context.create_command_queue(), first),
        execute(context.create_command_queue(), second),
    ]
    assert all(fence.host_synchronize(LONG) for fence in fences)
    assert np.all(np.diff(stamps.astype(np.int64)) >= 0), "one after the other"


def test_many_threads_wait_for_one_event(context: Context, queue: CommandQueue) -> None:
    gate, event = context.create_event(), context.create_event()
    commands = recorded(context, lambda c: c.append_barrier(event, [gate]))
    fence = execute(queue, commands)
    results: list[bool] = []
    threads = [
        threading.Thread(target=lambda: results.append(event.host_synchronize(LONG))) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    gate.host_signal()
    for thread in threads:
        thread.join(20)
    assert results == [True] * 8
    assert fence.host_synchronize(LONG)


def test_a_time_out_is_kept(context: Context, queue: CommandQueue) -> None:
    gate, event = context.create_event(), context.create_event()
    commands = recorded(context, lambda c: c.append_barrier(event, [gate]))
    fence = execute(queue, commands)
    watch = Stopwatch()
    assert not event.host_synchronize(0)
    assert watch.seconds < 0.2
    assert not event.host_synchronize(100_000_000)
    assert 0.1 <= watch.seconds < 1
    gate.host_signal()
    assert fence.host_synchronize(LONG)


def test_an_event_that_nobody_signals_loses_its_queue_and_no_other(start_daemon: StartDaemon) -> None:
    daemon = start_daemon(tdr_ms=200)
    with Driver.open(daemon.socket) as driver, Driver.open(daemon.socket) as other:
        assert driver.limits.tdr_ms == 200
        context, elsewhere = driver.devices[0].create_context(), other.devices[0].create_context()
        never, memory = context.create_event(), context.alloc_host(64)
        queue, good = context.create_command_queue(), context.create_command_queue()
        wait = recorded(context, lambda c: c.append_wait_on_events([never]))
        fill = recorded(context, lambda c: c.append_memory_fill(memory, b"\x01", 64))
        watch = Stopwatch()
        fence = execute(queue, barrier(context), wait)
        behind = execute(queue, fill)

        error = failure(lambda: fence.host_synchronize(LONG), ZeResult.ERROR_DEVICE_LOST)

        assert 0.2 <= watch.seconds < 2
        assert "200 ms" in error.info.found
        failure(lambda: behind.host_synchronize(LONG), ZeResult.ERROR_DEVICE_LOST)
        assert not memory.view().any(), "nothing of a lost queue runs"
        for _ in range(3):
            failure(queue.synchronize, ZeResult.ERROR_DEVICE_LOST)
        later = execute(queue, fill)
        failure(lambda: later.host_synchronize(LONG), ZeResult.ERROR_DEVICE_LOST)
        assert queue.lost
        run(good, fill)
        check_works(elsewhere)
        assert not never.query_status()
        assert daemon.engine().restarts == 0


def test_the_watchdog_bites_while_the_engine_is_busy(start_daemon: StartDaemon) -> None:
    daemon = start_daemon(tdr_ms=200)
    with Driver.open(daemon.socket) as driver:
        context = driver.devices[0].create_context()
        never, memory = context.create_event(), context.alloc_host(1 << 12)
        busy, queue = context.create_command_queue(), context.create_command_queue()
        # short ones: only the time between them counts, in which the device has nothing to do
        fill = recorded(context, lambda c: c.append_memory_fill(memory, b"\x01", 1 << 12))
        stop = threading.Event()

        def keep_busy() -> None:
            while not stop.is_set():
                busy.execute_command_lists([fill])

        thread = threading.Thread(target=keep_busy)
        thread.start()
        try:
            wait_until(lambda: not busy.synchronize(0), what="the engine never runs dry")
            fence = execute(queue, recorded(context, lambda c: c.append_wait_on_events([never])))
            watch, busy_ns = Stopwatch(), daemon.engine().busy_ns
            failure(lambda: fence.host_synchronize(LONG), ZeResult.ERROR_DEVICE_LOST)
            assert watch.seconds - (daemon.engine().busy_ns - busy_ns) / 1e9 < 2
        finally:
            stop.set()
            thread.join(20)
        assert busy.synchronize(LONG)


def test_the_watchdog_counts_anew_after_progress(start_daemon: StartDaemon) -> None:
    daemon = start_daemon(tdr_ms=600)
    with Driver.open(daemon.socket) as driver:
        context = driver.devices[0].create_context()
        queue = context.create_command_queue()
        gates, seen = ([context.create_event() for _ in range(3)] for _ in range(2))
        commands = context.create_command_list()
        for gate, mark in zip(gates, seen, strict=True):
            commands.append_barrier(mark, [gate])
        commands.close()
        fence = execute(queue, commands)
        for gate, mark in zip(gates, seen, strict=True):
            # each wait is shorter than the limit, all together they are longer
            assert not mark.host_synchronize(300_000_000)
            gate.host_signal()
            assert mark.host_synchronize(LONG)
        assert fence.host_synchronize(LONG)
