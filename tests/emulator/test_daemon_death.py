"""A daemon that is killed: every wait ends with device lost, and nothing is left."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from softnpu.driver import Context, Driver, GraphSource, ZeError, ZeResult
from tests.conftest import StartDaemon, StartPython
from tests.support.daemon import Daemon
from tests.support.models import write_chain
from tests.support.waiting import wait_gone
from tests.support.work import Loaded, barrier, check_works, execute, failure, recorded, run


@pytest.fixture
def daemon(start_daemon: StartDaemon) -> Daemon:
    """A daemon whose watchdog leaves waits alone: they wait still when it is killed."""
    return start_daemon(tdr_ms=60_000)


class _Waiting(threading.Thread):
    """A thread that waits; `error` is how it ended."""

    def __init__(self, wait: Callable[[], object]) -> None:
        super().__init__()
        self._wait = wait
        self.error: ZeError | None = None
        self.start()

    def run(self) -> None:
        try:
            self._wait()
        except ZeError as error:
            self.error = error


_WAIT = """
driver = Driver.open(Path(given["socket"]))
context = driver.devices[0].create_context()
gate, event = context.create_event(), context.create_event()
commands = context.create_command_list()
commands.append_barrier(event, [gate])
commands.close()
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

    waiting = [
        _Waiting(fence.host_synchronize),
        _Waiting(lambda: fence.host_synchronize(60 * 10**9)),
        _Waiting(queue.synchronize),
        _Waiting(event.host_synchronize),
        _Waiting(compile_it),
    ]
    assert compiling.wait(30)

    daemon.kill()

    for thread in waiting:
        thread.join(30)
        assert not thread.is_alive()
        assert thread.error is not None
        assert thread.error.result == ZeResult.ERROR_DEVICE_LOST, str(thread.error)
        assert str(daemon.socket) in thread.error.info.object

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
    view[:] = 7  # memory stays mapped: a program that writes to it goes on
    for handle in (memory, fence, event, commands, queue, context, driver):
        handle.destroy()
        handle.destroy()


@pytest.mark.parametrize("stopped", [False, True], ids=["running", "stopped"])
def test_engines_and_workers_die_with_it_and_a_new_session_works(
    start_daemon: StartDaemon, digits: Path, stopped: bool
) -> None:
    first = start_daemon()
    with Driver.open(first.socket) as driver:
        Loaded(driver.devices[0].create_context(), digits)
        status = driver.status()
        children = (*status.compiler_pids, *(engine.engine_pid for engine in status.engines))
        for pid in children if stopped else ():
            os.kill(pid, signal.SIGSTOP)  # they cannot notice the end of their channel: the kernel ends them
        first.kill()
    for pid in children:
        wait_gone(pid)
    assert os.path.exists(first.socket)
    second = start_daemon()
    with Driver.open(second.socket) as driver:
        check_works(driver.devices[0].create_context())
    assert second.pid != first.pid
