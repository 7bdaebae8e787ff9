"""Engines that cannot start, are never ready, or cannot be sent required information."""

from __future__ import annotations

import os
import signal
from contextlib import ExitStack

import numpy as np
import pytest

from softnpu.driver import ZeResult
from softnpu.emulator.interface import messages as msg
from softnpu.emulator.supervisor.settings import Isolation
from softnpu.emulator.supervisor.tuning import Tuning
from tests.conftest import StartContext, StartDaemon
from tests.support.daemon import no_descriptors
from tests.support.waiting import wait_gone, wait_until
from tests.support.wire import NOTHING, Wire, WireContext
from tests.support.work import LONG, SECOND, execute, fill, lost, run

_BACKLOG = 300


def test_an_engine_that_cannot_be_started_is_tried_again_and_sessions_wait(
    start_context: StartContext,
) -> None:
    daemon, context = start_context()
    queue, memory = context.create_command_queue(), context.alloc_host(64)
    commands, engine = fill(context, memory, 7), daemon.engine().engine_pid
    with no_descriptors(daemon):
        os.kill(engine, signal.SIGKILL)
        wait_until(lambda: "no engine can be started" in daemon.log)
        fence = execute(queue, commands)
        assert not fence.host_synchronize(3 * SECOND), "there is no engine"
    assert fence.host_synchronize(LONG)
    assert np.all(memory.view() == 7)
    assert daemon.log.count("no engine can be started") == 1, "one line, however often it was tried"
    assert daemon.counts("restarts", "state") == (1, "ready")


@pytest.mark.parametrize("segments", [700, 1100], ids=["most", "all"])
def test_a_session_with_most_descriptors_keeps_no_engine_from_starting(
    start_daemon: StartDaemon, segments: int
) -> None:
    """What the new engine is told does not fit into its socket, and waits without more descriptors."""
    daemon = start_daemon(open_files=1024)
    with Wire(daemon.socket) as wire:
        wire.hello()
        context = WireContext(wire)
        buffer, queue = context.alloc(4096, "control"), context.queue()
        request = msg.MemAlloc(context=context.handle, kind="host", size=4096, exportable=True)
        for _ in range(segments):
            if isinstance(wire.answer(wire.send(request)), msg.MemAllocated):
                os.close(wire._fds.pop())
        daemon.kill_engine()
        assert queue.run(NOTHING, buffer) == 0
        context.check_works()
    assert daemon.counts("restarts", "state") == (1, "ready")
    assert "could not be told" not in daemon.log


def test_sessions_with_all_contexts_there_can_be_keep_no_engine_from_starting(
    start_daemon: StartDaemon,
) -> None:
    """Each context has a descriptor, its doorbell."""
    daemon = start_daemon(open_files=1024)
    with ExitStack() as stack:
        wires = [stack.enter_context(Wire(daemon.socket)) for _ in range(16)]
        for wire in wires:
            wire.hello()
        first = WireContext(wires[0])
        buffer, queue = first.alloc(4096, "control"), first.queue()
        answers = [wire.answer(wire.send(msg.ContextCreate(device=0))) for wire in wires for _ in range(63)]
        assert isinstance(answers[0], msg.ContextCreated)
        assert isinstance(answers[-1], msg.Failed)
        assert answers[-1].info.result == ZeResult.ERROR_OUT_OF_HOST_MEMORY
        daemon.kill_engine()
        assert queue.run(NOTHING, buffer) == 0
    assert daemon.counts("restarts", "state") == (1, "ready")
    assert "could not be told" not in daemon.log


def test_a_function_that_descriptors_do_not_suffice_for_leaves_none_behind(start_daemon: StartDaemon) -> None:
    daemon = start_daemon(isolate=Isolation.SESSION, tuning=Tuning(function_idle_s=0.2))

    def is_refused(room: int) -> bool:
        with Wire(daemon.socket) as wire:
            wire.hello()
            with no_descriptors(daemon, daemon.fd_count + room):
                answer = wire.answer(wire.send(msg.ContextCreate(device=0)))
            if isinstance(answer, msg.Failed):
                assert answer.info.result == ZeResult.ERROR_OUT_OF_HOST_MEMORY
            WireContext(wire).check_works()
        return isinstance(answer, msg.Failed)

    assert is_refused(0)  # the daemon opens what it closes the others with, and keeps it
    before = daemon.base_fd_count()
    for room in range(1, 10):
        is_refused(room)
    wait_until(lambda: not daemon.engine().functions, what="all functions end")
    wait_until(lambda: daemon.base_fd_count() <= before, what="nothing is left open")


def test_a_device_whose_engines_are_never_ready_again_is_given_up_for_those_who_wait(
    start_context: StartContext,
) -> None:
    daemon, context = start_context(failpoints="engine.handshake=abort:*:1")
    queue, memory = context.create_command_queue(), context.alloc_host(64)
    commands = fill(context, memory, 7)
    daemon.kill_engine()
    fence = execute(queue, commands)
    lost(fence)
    assert daemon.counts("state", "engine_pid", "contexts") == ("failed", 0, 0)
    assert daemon.engine().restarts <= 7
    assert daemon.log.count("is given up") == 1
    assert "signal 6" in next(line for line in daemon.log.splitlines() if "is given up" in line)
    assert daemon.memory_used() == 0


def test_engines_that_others_kill_before_they_are_ready_do_not_fail_the_device(
    start_context: StartContext,
) -> None:
    """As the OOM killer does, while memory is short: when it is not, the sessions go on."""
    daemon, context = start_context(failpoints="engine.handshake=kill:8:1")
    queue, memory = context.create_command_queue(), context.alloc_host(64)
    daemon.kill_engine()
    run(queue, fill(context, memory, 7))
    assert bytes(memory.view()) == b"\7" * 64
    assert daemon.engine().restarts == 9


def test_an_engine_that_reads_nothing_is_replaced_before_its_messages_fill_the_daemon(
    start_daemon: StartDaemon,
) -> None:
    daemon = start_daemon(tuning=Tuning(engine_backlog=_BACKLOG), tdr_ms=60_000)
    wait_until(lambda: daemon.engine().state == "ready")
    engine = daemon.engine().engine_pid
    with Wire(daemon.socket) as wire:
        wire.hello()
        context = WireContext(wire)
        first = context.alloc(64, "control")
        os.kill(engine, signal.SIGSTOP)
        # the socket's capacity, and four times the backlog: messages beyond it survive too
        for _ in range(5 * _BACKLOG):
            context.alloc(64, "control")
        wait_gone(engine)
        wait_until(lambda: daemon.engine().state == "ready", what="an engine that knows all again")
        assert context.queue().run(NOTHING, first) == 0
    assert daemon.engine().restarts
    assert "could not be told all" in daemon.log
