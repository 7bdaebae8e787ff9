"""A killed daemon: every wait ends with device lost, and nothing is left."""

from __future__ import annotations

import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from softnpu.driver import Context, Driver, GraphSource, ZeResult
from tests.conftest import StartContext, StartDaemon, StartPython
from tests.support.daemon import Daemon
from tests.support.models import write_chain
from tests.support.waiting import wait_gone
from tests.support.work import Loaded, barrier, check_works, execute, failure, recorded, run


@pytest.fixture
def daemon(start_daemon: StartDaemon) -> Daemon:
    """Return a daemon whose watchdog ignores waits: they still wait when it is killed."""
    return start_daemon(tdr_ms=60_000)


_WAIT = """
driver = Driver.open(Path(given["socket"]))
context = driver.devices[0].create_context()
gate, event = context.create_event(), context.create_event()
commands = recorded(context, lambda c: c.append_barrier(event, [gate]))
context.create_command_queue().execute_command_lists([commands])
say("waiting")
try:
    event.host_synchronize()
except ZeError as error:
    say(error.result)
"""


def test_every_kind_of_wait_ends_with_device_lost(
    daemon: Daemon, context: Context, private_dir: Path, start_python: StartPython
) -> None:
    client = start_python(_WAIT, socket=str(daemon.socket))
    assert client.hear() == "waiting"
    xml = write_chain(private_dir, 16, 4000)
    queue = context.create_command_queue()
    gate, event = context.create_event(), context.create_event()
    commands = recorded(context, lambda c: c.append_barrier(event, [gate]))
    fence = execute(queue, commands)
    compiling = threading.Event()

    def compile_it() -> None:
        with GraphSource.from_ir(xml) as source:
            context.create_graph(source, progress=lambda *_: compiling.set())

    with ThreadPoolExecutor() as pool:
        waiting = [
            pool.submit(fence.host_synchronize),
            pool.submit(fence.host_synchronize, 60 * 10**9),
            pool.submit(queue.synchronize),
            pool.submit(event.host_synchronize),
            pool.submit(compile_it),
        ]
        assert compiling.wait(30)

        daemon.kill()

        for wait in waiting:
            error = failure(lambda wait=wait: wait.result(30), ZeResult.ERROR_DEVICE_LOST)  # type: ignore[misc]
            assert str(daemon.socket) in error.info.object
    assert client.hear() == ZeResult.ERROR_DEVICE_LOST
    client.finish()


def test_every_call_afterwards_is_device_lost_and_every_destroy_harmless(
    daemon: Daemon, driver: Driver, context: Context
) -> None:
    queue, small = context.create_command_queue(), context.create_command_queue(slots=2)
    commands, event, memory = barrier(context), context.create_event(), context.alloc_host(4096)
    done = execute(queue, commands)
    assert done.host_synchronize(6 * 10**10)
    run(small, commands)
    fence = execute(queue, recorded(context, lambda c: c.append_wait_on_events([event])))
    view = memory.view()
    daemon.kill()

    assert done.host_synchronize(), "what was done before is done"

    def submit() -> None:
        for _ in range(100):
            small.execute_command_lists([commands])

    error = failure(submit, ZeResult.ERROR_DEVICE_LOST)
    assert error.call == "zeCommandQueueExecuteCommandLists"
    for call in (
        fence.query_status,
        fence.host_synchronize,
        queue.synchronize,
        driver.status,
        context.query_memory,
        context.create_command_queue,
        lambda: context.alloc_host(1 << 20),
        driver.devices[0].create_context,
        lambda: queue.execute_command_lists([commands]),
    ):
        failure(call, ZeResult.ERROR_DEVICE_LOST)
    view[:] = 7  # memory stays mapped: a program can still write to it
    for handle in (memory, fence, event, commands, queue, context, driver):
        handle.destroy()
        handle.destroy()


def test_engines_and_workers_die_with_it_though_they_are_stopped_and_a_new_session_works(
    start_context: StartContext, digits: Path
) -> None:
    first, context = start_context()
    Loaded(context, digits)
    status = first.status()
    children = (*status.compiler_pids, *(engine.engine_pid for engine in status.engines))
    for pid in children:
        os.kill(pid, signal.SIGSTOP)  # they cannot notice the end of their channel: the kernel ends them
    first.kill()
    for pid in children:
        wait_gone(pid)
    assert os.path.exists(first.socket)
    second, context = start_context()
    check_works(context)
    assert second.pid != first.pid
