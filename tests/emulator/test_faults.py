"""Injected faults as seen through the Python driver; everything works afterwards."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import cast

import numpy as np
import pytest

from softnpu.driver import CommandQueue, Context, Driver, GraphSource, ZeResult, faults
from softnpu.driver.faults import FaultKind, InjectionState
from softnpu.driver.graph_creation import import_blob
from softnpu.emulator.interface import messages as msg
from softnpu.emulator.supervisor.tuning import Tuning
from tests.conftest import OpenContext, StartContext, StartDaemon
from tests.support.daemon import Daemon
from tests.support.models import image, on_cpu
from tests.support.waiting import wait_until
from tests.support.wire import Wire, WireContext
from tests.support.work import LONG, Loaded, barrier, check_works, execute, failure, fill, lost, run, same

ERRORS = [result for result in ZeResult if result.name.startswith("ERROR_")]
_TUNING = Tuning(min_hang_s=0.4, min_start_s=0.5, compiler_stall_s=0.5)


@pytest.fixture
def daemon(start_daemon: StartDaemon) -> Daemon:
    """Return a daemon whose watchdogs are faster than the users' default."""
    return start_daemon(tdr_ms=400, tuning=_TUNING)


def only() -> InjectionState:
    """Return the only injection."""
    (state,) = faults.status()
    return state


# ------------------------------------------------------------ submissions


@pytest.mark.quick
def test_reset_loses_nothing_and_twice_under_one_submission_its_queue(
    daemon: Daemon, context: Context, digits: Path
) -> None:
    queue, loaded = context.create_command_queue(), Loaded(context, digits)
    faults.inject("reset", after=1)
    for _ in range(3):
        assert same(loaded.infer(queue, image()), on_cpu(digits, image()))
    assert (only().hits, only().state) == (1, "used up")
    assert daemon.counts("restarts", "aborted", "offences") == (1, 0, 0)

    faults.inject("reset", count=2)
    assert "engine died" in lost(execute(queue, barrier(context))).info.found
    assert queue.lost
    check_works(context)
    assert daemon.engine().restarts == 3


def test_an_engine_that_polls_its_rings_has_a_fault_before_the_next_submission(
    start_context: StartContext,
) -> None:
    daemon, context = start_context(spin_us=100_000)
    queue, commands = context.create_command_queue(), barrier(context)
    run(queue, commands)
    with daemon.stopped_engine():
        faults.inject("lost")
        fence = execute(queue, commands)
    lost(fence)


def test_hang_and_stall_cost_their_queue_and_hang_an_engine(
    daemon: Daemon, context: Context, open_context: OpenContext, digits: Path
) -> None:
    innocent = open_context(daemon)
    queue, loaded = innocent.create_command_queue(), Loaded(innocent, digits)
    loaded.infer(queue, image())
    for kind, counts in (("stall", (0, 1, 1, 1)), ("hang", (1, 2, 2, 2))):
        guilty = context.create_command_queue()
        faults.inject(kind, session=context.device.driver.session)
        hung = execute(guilty, barrier(context))
        assert same(loaded.infer(queue, image()), on_cpu(digits, image()))
        assert "no progress" in lost(hung).info.found
        assert guilty.lost
        check_works(context)
        assert daemon.counts("restarts", "hangs", "aborted", "offences") == counts


@pytest.mark.quick
def test_lost(daemon: Daemon, context: Context) -> None:
    queue, memory = context.create_command_queue(), context.alloc_host(64)
    faults.inject("lost")
    fence = execute(queue, fill(context, memory, 7))
    assert "injected fault" in lost(fence).info.found
    assert queue.lost
    lost(execute(queue, fill(context, memory, 7)))
    assert not memory.view().any(), "nothing of it ran"
    check_works(context)
    assert daemon.counts("restarts", "aborted", "offences") == (0, 1, 0)


def test_drop_signal_ends_by_the_watchdog_of_waits(daemon: Daemon, context: Context) -> None:
    queue, memory = context.create_command_queue(), context.alloc_host(64)
    other = context.create_command_queue()
    faults.inject("drop-signal")
    fence = execute(queue, fill(context, memory, 7))
    wait_until(lambda: bool(np.all(memory.view() == 7)), what="it has been done")
    run(other, barrier(context))  # its doorbell makes all waiters look again
    assert not fence.query_status()
    lost(fence)
    assert queue.lost
    check_works(context)
    assert daemon.engine().restarts == 0


def test_every_error_can_be_the_end_of_a_submission(daemon: Daemon, context: Context) -> None:
    memory = context.alloc_host(64)
    for kind, result in (("ecc", ZeResult.ERROR_UNKNOWN), *(("fail", result) for result in ERRORS)):
        queue = context.create_command_queue()
        faults.inject(kind, value=None if kind == "ecc" else result.name)
        fence = execute(queue, fill(context, memory, 7))
        error = failure(partial(fence.host_synchronize, LONG), result)
        assert "injected fault" in error.info.found
        assert queue.lost == (result == ZeResult.ERROR_DEVICE_LOST)
        if not queue.lost:
            run(queue, fill(context, memory, 8))
    assert daemon.engine().restarts == 0


def test_slow_computes_the_same_is_progress_for_the_watchdog_and_is_cancelled_like_all_work(
    daemon: Daemon, context: Context, digits: Path
) -> None:
    queue, loaded = context.create_command_queue(), Loaded(context, digits)
    loaded.infer(queue, image())
    before = daemon.engine().busy_ns
    with faults.injected("slow", value="1200ms"):
        assert same(loaded.infer(queue, image()), on_cpu(digits, image()))
    assert daemon.engine().busy_ns - before >= 1_200_000_000, "by the device's own count"
    assert daemon.counts("hangs", "aborted", "restarts") == (0, 0, 0), "three times the watchdog's limit"

    memory = context.alloc_host(1 << 28)
    faults.inject("slow", value="999x")
    fence = execute(queue, fill(context, memory, 1))
    wait_until(lambda: daemon.engine().running == 1, what="it runs")
    wait_until(lambda: bool(np.all(memory.view() == 1)), what="its command is done")
    fence.cancel()
    failure(lambda: fence.host_synchronize(LONG), ZeResult.ERROR_NOT_AVAILABLE)
    run(queue, barrier(context))


# ------------------------------------------------------------ doorbells


def _asleep(context: Context) -> CommandQueue:
    """Return a queue for which the engine needs the doorbell."""
    queue = context.create_command_queue()
    run(queue, barrier(context))
    wait_until(lambda: queue.describe().asleep, what="an engine that sleeps")
    return queue


def test_a_dropped_doorbell_is_replaced_by_the_next(start_context: StartContext) -> None:
    _, context = start_context(tdr_ms=60_000, spin_us=0)
    queue = _asleep(context)
    faults.inject("drop-doorbell")
    first = execute(queue, barrier(context))
    wait_until(lambda: only().hits == 1, what="the doorbell is dropped")
    assert not first.query_status()
    second = execute(queue, barrier(context))
    assert first.host_synchronize(LONG)
    assert second.host_synchronize(LONG)


def test_a_dropped_doorbell_without_another_loses_the_queue(start_context: StartContext) -> None:
    _, context = start_context(tdr_ms=300, spin_us=0)
    queue, memory = _asleep(context), context.alloc_host(64)
    faults.inject("drop-doorbell")
    assert "doorbell" in lost(execute(queue, fill(context, memory, 7))).info.found
    assert queue.lost
    assert not memory.view().any()
    check_works(context)


# ------------------------------------------------------------ loads


def test_load_crash_is_tried_again(daemon: Daemon, context: Context, digits: Path) -> None:
    queue = context.create_command_queue()
    faults.inject("load-crash")
    assert same(Loaded(context, digits).infer(queue, image()), on_cpu(digits, image()))
    assert daemon.engine().restarts == 1


@pytest.mark.parametrize("kind", ["load-crash", "load-hang"])
def test_a_load_that_takes_two_engines_is_refused(context: Context, digits: Path, kind: str) -> None:
    faults.inject(kind, count=2)
    error = failure(lambda: Loaded(context, digits), ZeResult.ERROR_DEVICE_LOST)
    assert "while it loaded this graph" in error.info.found
    check_works(context)
    Loaded(context, digits)


# ------------------------------------------------------------ memory and graphs


def test_memory_and_graphs(context: Context, digits: Path) -> None:
    def fails_once(
        fault: str, result: ZeResult, call: Callable[[], object], value: str | None = None
    ) -> None:
        faults.inject(fault, value=value)
        failure(call, result)
        call()

    faults.inject("oom", after=1)
    run(context.create_command_queue(), barrier(context))
    assert only().matched == 0, "it is about allocations of the program only"
    faults.inject("oom", after=1, value="host")
    context.alloc_host(4096)
    failure(lambda: context.alloc_host(4096), ZeResult.ERROR_OUT_OF_DEVICE_MEMORY)
    failure(lambda: context.alloc_device(4096), ZeResult.ERROR_OUT_OF_HOST_MEMORY)

    export = partial(context.alloc_host, 4096, export=True)
    fails_once("export-fail", ZeResult.ERROR_OUT_OF_DEVICE_MEMORY, export)
    with open(context.export_memory(export()), "rb") as exported:
        take = partial(context.import_memory, exported.fileno())
        fails_once("import-fail", ZeResult.ERROR_INVALID_ARGUMENT, take)

    with GraphSource.from_ir(digits) as source:
        graph = context.create_graph(source)
    faults.inject("load-fail")
    failure(graph.initialize, ZeResult.ERROR_MODULE_BUILD_FAILURE)
    result = ZeResult.ERROR_OUT_OF_DEVICE_MEMORY
    fails_once("load-fail", result, graph.initialize, result.name)
    fails_once("export-fail", ZeResult.ERROR_UNKNOWN, graph.get_native_binary)
    blob = graph.get_native_binary()
    fails_once("import-fail", ZeResult.ERROR_INVALID_NATIVE_BINARY, lambda: import_blob(context, blob))


def test_compilations(context: Context, digits: Path) -> None:
    def compiled() -> object:
        with GraphSource.from_ir(digits) as source:
            return context.create_graph(source)

    with faults.injected(FaultKind.COMPILE_FAIL, value="no way: line 3"):
        failure(compiled, ZeResult.ERROR_MODULE_BUILD_FAILURE)
        assert "no way: line 3" in cast(Driver, context.device.driver).get_last_error_description()
        assert only().hits == 1
    for kind, reason in (("compile-crash", "signal 9"), ("compile-hang", "no progress")):
        faults.inject(kind)
        assert reason in failure(compiled, ZeResult.ERROR_MODULE_BUILD_FAILURE).info.found
    compiled()


# ------------------------------------------------------------ requests and connections


def test_requests_are_refused(daemon: Daemon, context: Context) -> None:
    faults.inject("refuse", value="queue_create=ERROR_NOT_AVAILABLE")
    faults.inject("refuse", value="status")
    failure(context.create_command_queue, ZeResult.ERROR_NOT_AVAILABLE)
    failure(context.device.get_status, ZeResult.ERROR_DEVICE_LOST)
    context.create_command_queue()
    context.device.get_status()
    for result in ERRORS:
        faults.inject("refuse", value=f"context_memory={result.name}")
        failure(context.query_graph_memory, result)
        context.query_graph_memory()
    faults.inject("refuse", value="hello=ERROR_UNSUPPORTED_VERSION")
    assert daemon.engine().state == "ready", "monitors are not refused"
    failure(Driver.open, ZeResult.ERROR_UNSUPPORTED_VERSION)
    Driver.open().destroy()


def _compile_late(wire: Wire, xml: Path) -> int:
    """Send a model that is compiled some time; return the request's number."""
    context = WireContext(wire)
    with open(xml, "rb") as model:
        request = msg.GraphCreate(context=context.handle, name="late", xml_length=xml.stat().st_size)
        return wire.send(request, [model.fileno()])


def test_a_late_request_delays_no_other_can_be_cancelled_and_goes_with_its_client(
    daemon: Daemon, digits: Path
) -> None:
    def is_open() -> bool:
        open_files = set()
        for path in Path(f"/proc/{daemon.pid}/fd").iterdir():
            with suppress(FileNotFoundError):  # others come and go
                open_files.add(os.readlink(path))
        return str(digits) in open_files

    faults.inject("delay", value="context_create=600s")
    with Wire(daemon.socket) as wire, Driver.open() as other:
        wire.hello()
        wire.send(msg.ContextCreate(device=0))
        wait_until(lambda: only().hits == 1, what="it is delayed")
        check_works(other.devices[0].create_context())
    faults.clear()

    number = faults.inject("compile-slow", value="600s", count=2)
    with Wire(daemon.socket) as wire:
        wire.hello()
        request = _compile_late(wire, digits)
        cancel = wire.send(msg.Cancel(request=request))
        answered, answer = wire.receive()
        assert answered == request
        assert isinstance(answer, msg.Failed)
        assert answer.info.result == ZeResult.ERROR_NOT_AVAILABLE
        assert wire.receive() == (cancel, msg.Ok())

        _compile_late(wire, digits)
        wait_until(lambda: only().hits == 2, what="it is late")
        assert is_open()
    wait_until(lambda: not is_open(), what="nothing is kept for it")
    assert faults.clear([number]) == 1


def test_disconnect_is_a_lost_device_for_one_client_and_daemon_death_for_all(
    daemon: Daemon, context: Context
) -> None:
    queue = context.create_command_queue()
    with Driver.open() as victim:
        hurt = victim.devices[0].create_context()
        faults.inject("disconnect", session=victim.session)
        failure(lambda: hurt.alloc_host(64), ZeResult.ERROR_DEVICE_LOST)
        failure(hurt.create_command_queue, ZeResult.ERROR_DEVICE_LOST)
    check_works(context)
    with Driver.open() as again:
        check_works(again.devices[0].create_context())

    faults.inject("daemon-death")
    failure(lambda: context.alloc_host(64), ZeResult.ERROR_DEVICE_LOST)
    failure(lambda: queue.execute_command_lists([]), ZeResult.ERROR_DEVICE_LOST)
    assert daemon.process.wait(10) == -9
