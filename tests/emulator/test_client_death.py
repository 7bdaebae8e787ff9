"""A client that is killed, whatever it does: everything it had comes back, and nobody else notices."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from softnpu.driver import Driver
from softnpu.emulator.interface import messages as msg
from tests.conftest import StartPython
from tests.support.daemon import Daemon
from tests.support.models import write_chain
from tests.support.waiting import wait_gone, wait_until
from tests.support.wire import Wire, WireContext
from tests.support.work import barrier, check_works, execute, run

MIB = 1 << 20
_OPEN = """
driver = Driver.open(Path(given["socket"]))
context = driver.devices[0].create_context()
memory = [context.alloc_host(1 << 20) for _ in range(8)]
queue = context.create_command_queue()
"""
_DOING = {
    "nothing": """
say("busy"); hear()
""",
    "computing": """
with GraphSource.from_ir(Path(given["xml"])) as source:
    graph = context.create_graph(source)
for index, argument in enumerate(graph.meta.arguments):
    graph.set_argument_value(index, context.alloc_host(argument.byte_size))
begun = context.create_event()
commands = context.create_command_list()
commands.append_graph_initialize(graph)
commands.append_signal_event(begun)
for _ in range(400):
    commands.append_graph_execute(graph)
commands.close()
queue.execute_command_lists([commands])
begun.host_synchronize()
say("busy"); hear()
""",
    "waiting for a fence": """
event = context.create_event()
commands = context.create_command_list()
commands.append_wait_on_events([event])
commands.close()
fence = queue.create_fence()
queue.execute_command_lists([commands], fence)
say("busy")
fence.host_synchronize()
""",
    "compiling": """
def progress(stage, done):
    if stage == "receive":
        say("busy")
with GraphSource.from_ir(Path(given["xml"])) as source:
    while True:
        context.create_graph(source, progress=progress)
""",
    "destroying a queue": """
say("busy")
while True:
    queue.destroy()
    queue = context.create_command_queue()
""",
    "allocating": """
say("busy")
while True:
    more = [context.alloc_host(4096) for _ in range(100)]
""",
    "submitting": """
commands = context.create_command_list()
commands.append_memory_copy(memory[0], memory[1], 1 << 20)
commands.close()
queue.execute_command_lists([commands])
say("busy")
while True:
    queue.execute_command_lists([commands])
""",
}


@pytest.mark.parametrize("doing", _DOING)
def test_everything_of_a_killed_client_comes_back(
    shared_daemon: Daemon, start_python: StartPython, private_dir: Path, doing: str
) -> None:
    daemon, before = shared_daemon, shared_daemon.engine().restarts
    xml = write_chain(private_dir, 384, 20)
    with Driver.open(daemon.socket) as innocent:
        context = innocent.devices[0].create_context()
        queue, commands = context.create_command_queue(), barrier(context)
        run(queue, commands)
        engine, used, descriptors = daemon.engine(), daemon.memory_used(), daemon.base_fd_count()
        client = start_python(_OPEN + _DOING[doing], socket=str(daemon.socket), xml=str(xml))
        assert client.hear() == "busy"
        assert daemon.memory_used() - used >= 8 * MIB

        fence = execute(queue, commands)
        os.kill(client.pid, signal.SIGKILL)

        wait_until(lambda: daemon.memory_used() == used, what="its memory back")
        wait_until(lambda: daemon.base_fd_count() <= descriptors, what="its descriptors closed")
        assert fence.host_synchronize(6 * 10**10)
        run(queue, commands)
        check_works(context)
        after = daemon.engine()
        assert (after.engine_pid, after.restarts) == (engine.engine_pid, before)
        assert after.contexts == engine.contexts
        assert after.images == 0


_ONE_LONG_INFERENCE = (
    _OPEN
    + """
with GraphSource.from_ir(Path(given["xml"])) as source:
    graph = context.create_graph(source)
for index, argument in enumerate(graph.meta.arguments):
    graph.set_argument_value(index, context.alloc_host(argument.byte_size))
begun = context.create_event()
commands = context.create_command_list()
commands.append_graph_initialize(graph)
commands.append_signal_event(begun)
commands.append_graph_execute(graph)
commands.close()
fence = queue.create_fence()
queue.execute_command_lists([commands], fence)
begun.host_synchronize()
say("busy")
if hear() == "cancel":
    fence.cancel()
    try:
        fence.host_synchronize()
    except ZeError as error:
        say(error.info.found)
"""
)


@pytest.mark.parametrize("how", ["killed", "cancelled"])
def test_one_long_inference_ends_with_its_client_or_its_cancellation(
    daemon: Daemon, start_python: StartPython, private_dir: Path, how: str
) -> None:
    xml = write_chain(private_dir, 1536, 200)  # many seconds
    client = start_python(_ONE_LONG_INFERENCE, socket=str(daemon.socket), xml=str(xml))
    assert client.hear(60) == "busy"
    if how == "killed":
        client.process.kill()
    else:
        client.tell("cancel")
        assert "cancelled" in client.hear()
        client.finish()
    wait_until(lambda: daemon.memory_used() == 0, what="its memory back")
    engine = daemon.engine()
    assert (engine.restarts, engine.inferences) == (0, 0), "it was not computed to its end"


def test_a_compilation_ends_with_its_client(
    daemon: Daemon, start_python: StartPython, private_dir: Path
) -> None:
    xml = write_chain(private_dir, 64, 3000)
    client = start_python(
        _OPEN + _DOING["compiling"].replace('stage == "receive"', 'stage == "read"'),
        socket=str(daemon.socket),
        xml=str(xml),
    )
    assert client.hear() == "busy"
    workers = daemon.status().compiler_pids

    client.process.kill()

    wait_until(lambda: any(not _running(pid) for pid in workers), what="the worker of the job ends")


def _running(pid: int) -> bool:
    try:
        wait_gone(pid, 0)
    except AssertionError:
        return True
    return False


def test_a_socket_that_a_child_kept_open_does_not_keep_a_dead_client_alive(
    daemon: Daemon, start_python: StartPython
) -> None:
    # the fork holds the connection open: only the pidfd tells that the client itself is dead
    client = start_python(
        _OPEN
        + """
import signal
child = os.fork()
if child == 0:
    signal.pause()
say(child); hear()
""",
        socket=str(daemon.socket),
    )
    child = client.hear()
    assert daemon.memory_used() > 8 * MIB
    client.process.kill()
    try:
        wait_until(lambda: daemon.memory_used() == 0, 2, what="memory back although the socket is open")
        os.kill(child, 0)
    finally:
        os.kill(child, signal.SIGKILL)


def test_hundreds_of_sessions_that_vanish_leave_nothing(shared_daemon: Daemon) -> None:
    daemon = shared_daemon
    with Wire(daemon.socket) as wire:
        wire.hello()
    descriptors = daemon.base_fd_count()
    for number in range(200):
        wire = Wire(daemon.socket)
        wire.hello()
        context = WireContext(wire)
        context.queue(2)
        request = msg.MemAlloc(context=context.handle, kind="host", size=4096 * (1 + number % 90))
        wire.send(request)
        wire.close()
    wait_until(lambda: daemon.memory_used() == 0)
    wait_until(lambda: daemon.base_fd_count() <= descriptors)
    assert daemon.status().session_count == 0
