"""The watchdog: what makes no progress is ended, what only takes long is not, and the innocent go on."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np
import pytest

from softnpu.driver import CommandList, Context, Driver, ZeResult
from softnpu.emulator.interface import commands as cmd
from softnpu.emulator.supervisor.tuning import Tuning
from tests.conftest import StartDaemon
from tests.support.daemon import Daemon
from tests.support.models import on_cpu, write_chain
from tests.support.waiting import wait_gone, wait_until
from tests.support.wire import Wire, WireContext
from tests.support.work import LONG, Loaded, barrier, check_works, execute, failure, fill, recorded, run, same

_TUNING = Tuning(min_hang_s=0.4, min_start_s=1.0)


def test_a_stopped_engine_is_no_fault_of_what_it_was_running(start_daemon: StartDaemon, digits: Path) -> None:
    daemon = start_daemon(failpoints="engine.running=stop:1:1")
    with Driver.open(daemon.socket) as driver:
        context = driver.devices[0].create_context()
        queue, loaded = context.create_command_queue(), Loaded(context, digits)
        run(queue, barrier(context))
        image = np.random.default_rng(1).random((1, 1, 8, 8), dtype=np.float32)

        assert same(loaded.infer(queue, image), on_cpu(digits, image))

        engine = daemon.engine()
        assert (engine.restarts, engine.hangs, engine.offences, engine.aborted) == (1, 1, 0, 0)
        assert not queue.lost

        os.kill(engine.engine_pid, signal.SIGSTOP)  # now though nothing runs on it
        run(queue, barrier(context))
        wait_gone(engine.engine_pid)
        assert daemon.engine().restarts == 2


def test_a_command_that_hangs_is_lost_with_its_queue_and_all_others_complete(
    start_daemon: StartDaemon, digits: Path
) -> None:
    daemon = start_daemon(failpoints="engine.running=hang:1:1")
    with Driver.open(daemon.socket) as guilty, Driver.open(daemon.socket) as other:
        context, innocent = guilty.devices[0].create_context(), other.devices[0].create_context()
        loaded, queue = Loaded(innocent, digits), innocent.create_command_queue()
        memory = innocent.alloc_host(4096)
        image = np.random.default_rng(1).random((1, 1, 8, 8), dtype=np.float32)
        run(queue, fill(innocent, memory, 1))
        bad, spare = context.create_command_queue(), context.create_command_queue()

        hung = execute(bad, barrier(context))
        behind = execute(bad, barrier(context))
        wait_until(lambda: daemon.engine().running == 1, what="the command that hangs")
        loaded.feed(image)
        fences = [execute(queue, loaded.commands), execute(queue, fill(innocent, memory, 2))]

        error = failure(lambda: hung.host_synchronize(LONG), ZeResult.ERROR_DEVICE_LOST)
        assert "no progress" in error.info.found
        failure(lambda: behind.host_synchronize(LONG), ZeResult.ERROR_DEVICE_LOST)
        assert all(fence.host_synchronize(LONG) for fence in fences)
        assert same(loaded.outputs, on_cpu(digits, image))
        assert np.all(memory.view() == 2)
        run(spare, barrier(context))
        run(context.create_command_queue(), barrier(context))
        engine = daemon.engine()
        assert (engine.restarts, engine.hangs, engine.aborted, engine.offences) == (1, 1, 1, 1)


_TRIAL = 50


@pytest.mark.parametrize("limit_s", [0.0, 0.4], ids=["one long command", "many short ones"])
def test_long_is_not_hung_and_many_short_commands_are_not_one_long_one(
    start_daemon: StartDaemon, private_dir: Path, limit_s: float
) -> None:
    daemon = start_daemon(tdr_ms=300, tuning=_TUNING, command_limit_s=limit_s)
    with Driver.open(daemon.socket) as driver:
        context = driver.devices[0].create_context()
        memory, queue = context.alloc_host(1 << 24), context.create_command_queue()

        def fills(count: int) -> CommandList:
            return recorded(context, *[lambda c: c.append_memory_fill(memory, b"\x01", 1 << 24)] * count)

        if limit_s:
            run(queue, fills(_TRIAL))  # how long a command takes here says how many are needed
            commands = fills(int(_TRIAL * 1e9 / daemon.engine().busy_ns))
        else:
            commands = Loaded(context, write_chain(private_dir, 1536, 40)).commands
        before = daemon.engine().busy_ns
        run(queue, commands)
        engine = daemon.engine()
        assert engine.busy_ns - before > 0.4e9, "or this test shows nothing"
        assert (engine.restarts, engine.hangs, engine.aborted) == (0, 0, 0)


def test_a_command_beyond_the_limit_is_aborted_without_a_reset(
    start_daemon: StartDaemon, private_dir: Path
) -> None:
    daemon = start_daemon(command_limit_s=0.5, tdr_ms=20_000)
    xml = write_chain(private_dir, 1536, 400)
    with Driver.open(daemon.socket) as driver:
        context = driver.devices[0].create_context()
        loaded, queue = Loaded(context, xml), context.create_command_queue()
        fence = execute(queue, loaded.commands)

        error = failure(lambda: fence.host_synchronize(LONG), ZeResult.ERROR_DEVICE_LOST)

        assert "more than 0.5 s" in error.info.found
        assert queue.lost
        check_works(context)
        engine = daemon.engine()
        assert (engine.restarts, engine.hangs, engine.aborted, engine.offences) == (0, 0, 1, 1)


@pytest.mark.parametrize("point", ["connect", "load", "load:2"])
def test_an_engine_that_hangs_while_it_starts_or_loads_is_replaced(
    start_daemon: StartDaemon, digits: Path, point: str
) -> None:
    name, _, times = point.partition(":")
    daemon = start_daemon(failpoints=f"engine.{name}=hang:{times or 1}", tuning=_TUNING)
    with Driver.open(daemon.socket) as driver:
        context = driver.devices[0].create_context()
        if times:
            error = failure(lambda: Loaded(context, digits), ZeResult.ERROR_DEVICE_LOST)
            assert "while it loaded this graph" in error.info.found
        queue, loaded = context.create_command_queue(), Loaded(context, digits)
        image = np.random.default_rng(1).random((1, 1, 8, 8), dtype=np.float32)
        assert same(loaded.infer(queue, image), on_cpu(digits, image))
        assert daemon.engine().hangs == int(times or 1)


def test_a_reset_does_not_do_twice_what_was_done(start_daemon: StartDaemon) -> None:
    daemon = start_daemon(tdr_ms=30_000)
    with Driver.open(daemon.socket) as driver:
        context = driver.devices[0].create_context()
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

        for restarts in (1, 2, 3):
            daemon.kill_engine()
            daemon.wait_restarted(restarts)
        last.host_signal()

        assert fence.host_synchronize(LONG), "it does not wait again for the event that it has reset"
        assert list(counted.view()) == [0, 0, 1, 2, 3, 4, 5, 6]


def test_a_buffer_of_two_million_commands_keeps_nobody_waiting(daemon: Daemon) -> None:
    with Wire(daemon.socket) as wire, Driver.open(daemon.socket) as driver:
        wire.hello()
        hostile, context = WireContext(wire), driver.devices[0].create_context()
        nops = bytes.fromhex("0100000008000000") * ((cmd.MAX_BUFFER - cmd.HEADER.size) // 8)
        count = len(nops) // 8
        data = cmd.HEADER.pack(cmd.MAGIC, 1, 0, cmd.MAX_BUFFER, count) + nops
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


@pytest.mark.parametrize("kind", ["copy", "fill"])
def test_a_command_of_a_gigabyte_keeps_nobody_waiting(daemon: Daemon, context: Context, kind: str) -> None:
    size = 1 << 29
    one, other = context.alloc_host(size), context.alloc_host(size)
    big = {
        "copy": lambda c: c.append_memory_copy(one, other, size),
        "fill": lambda c: c.append_memory_fill(one, b"\x01\x02\x03\x04", size),
    }[kind]
    with Driver.open(daemon.socket) as driver:
        own = driver.devices[0].create_context()
        queue, commands = own.create_command_queue(), barrier(own)
        run(queue, commands)
        fence = execute(context.create_command_queue(), recorded(context, big))
        others = 0
        while not fence.query_status():
            run(queue, commands)
            others += 1
        assert others > 5, "others take turns with it"
    if kind == "fill":
        assert np.all(one.view(np.uint32) == 0x04030201)


@pytest.mark.parametrize("shift", [-5, 5])
def test_a_long_copy_onto_itself_is_right(context: Context, shift: int) -> None:
    size = 40 << 20
    memory, queue = context.alloc_host(size + 16), context.create_command_queue()
    memory.view()[:] = np.random.default_rng(3).integers(0, 256, size + 16, dtype=np.uint8)
    before = memory.view().copy()
    run(
        queue,
        recorded(
            context, lambda c: c.append_memory_copy(memory.view()[8 + shift :], memory.view()[8:], size)
        ),
    )
    assert np.array_equal(memory.view()[8 + shift : 8 + shift + size], before[8 : 8 + size])
