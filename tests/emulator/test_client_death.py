"""A client killed at any moment: all its resources are reclaimed, and nobody else notices."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from softnpu.emulator.interface import messages as msg
from tests.conftest import OpenContext, StartPython
from tests.support.daemon import Daemon
from tests.support.models import write_chain
from tests.support.waiting import wait_gone, wait_readable, wait_until
from tests.support.wire import Wire, WireContext
from tests.support.work import LONG, barrier, check_works, execute, run

MIB = 1 << 20
_OPEN = """
driver = Driver.open(Path(given["socket"]))
context = driver.devices[0].create_context()
memory = [context.alloc_host(1 << 20) for _ in range(8)]
queue, begun = context.create_command_queue(), context.create_event()

def compute(times):
    with GraphSource.from_ir(Path(given["xml"])) as source:
        graph, _ = load(context, source)
    execute = [lambda commands: commands.append_graph_execute(graph)] * times
    fence = queue.create_fence()
    commands = recorded(context, lambda commands: commands.append_signal_event(begun), *execute)
    queue.execute_command_lists([commands], fence)
    begun.host_synchronize()
    return fence
"""
_DOING = {
    "computing": "compute(400); say('busy'); hear()",
    "destroying a queue": """
say("busy")
while True:
    queue.destroy()
    queue = context.create_command_queue()
""",
    "submitting": """
commands = recorded(context, lambda c: c.append_memory_copy(memory[0], memory[1], 1 << 20))
queue.execute_command_lists([commands])
say("busy")
while True:
    queue.execute_command_lists([commands])
""",
}


_COMPILING = """
def progress(stage, done):
    if stage == "read":
        say("busy")
with GraphSource.from_ir(Path(given["xml"])) as source:
    while True:
        context.create_graph(source, progress=progress)
"""


# killed at each step of the protocol: tests/emulator/test_kill_matrix.py
@pytest.mark.parametrize("doing", _DOING)
def test_everything_of_a_killed_client_comes_back(
    shared_daemon: Daemon, open_context: OpenContext, start_python: StartPython, private_dir: Path, doing: str
) -> None:
    daemon, xml = shared_daemon, write_chain(private_dir, 384, 20)
    context = open_context(daemon)
    queue, commands = context.create_command_queue(), barrier(context)
    run(queue, commands)
    engine = daemon.counts("engine_pid", "restarts", "contexts")
    used, descriptors = daemon.memory_used(), daemon.base_fd_count()
    client = start_python(_OPEN + _DOING[doing], socket=str(daemon.socket), xml=str(xml))
    assert client.hear() == "busy"
    assert daemon.memory_used() - used >= 8 * MIB

    fence = execute(queue, commands)
    os.kill(client.pid, signal.SIGKILL)

    wait_until(lambda: daemon.memory_used() == used, what="its memory back")
    wait_until(lambda: daemon.base_fd_count() <= descriptors, what="its descriptors closed")
    assert fence.host_synchronize(LONG)
    run(queue, commands)
    check_works(context)
    assert daemon.counts("engine_pid", "restarts", "contexts") == engine
    assert daemon.engine().images == 0


@pytest.mark.parametrize("how", ["killed", "cancelled"])
def test_one_long_inference_ends_with_its_client_or_its_cancellation(
    shared_daemon: Daemon, start_python: StartPython, private_dir: Path, how: str
) -> None:
    daemon, before = shared_daemon, shared_daemon.counts("restarts", "inferences")
    code = """
fence = compute(1)
say("busy")
hear()
fence.cancel()
try:
    fence.host_synchronize()
except ZeError as error:
    say(error.info.found)
"""
    xml = write_chain(private_dir, 1536, 200)  # many seconds
    client = start_python(_OPEN + code, socket=str(daemon.socket), xml=str(xml))
    assert client.hear(60) == "busy"
    if how == "killed":
        client.process.kill()
    else:
        client.tell()
        assert "cancelled" in client.hear()
        client.finish()
    wait_until(lambda: daemon.memory_used() == 0, what="its memory back")
    assert daemon.counts("restarts", "inferences") == before, "it was not computed to its end"


def test_a_compilation_ends_with_its_client(
    daemon: Daemon, start_python: StartPython, private_dir: Path
) -> None:
    code = _OPEN + _COMPILING
    client = start_python(code, socket=str(daemon.socket), xml=str(write_chain(private_dir, 64, 3000)))
    assert client.hear() == "busy"
    workers = [os.pidfd_open(pid) for pid in daemon.status().compiler_pids]

    client.process.kill()

    wait_until(lambda: any(wait_readable(worker, 0) for worker in workers), what="the worker of the job ends")
    for worker in workers:
        os.close(worker)


def test_a_socket_that_a_child_kept_open_does_not_keep_a_dead_client_alive(
    shared_daemon: Daemon, start_python: StartPython
) -> None:
    daemon = shared_daemon
    # the fork holds the connection open: only the pidfd shows that the client itself is dead
    code = """
import signal
child = os.fork()
if child == 0:
    signal.pause()
say(child); hear()
"""
    client = start_python(_OPEN + code, socket=str(daemon.socket))
    child = client.hear()
    assert daemon.memory_used() > 8 * MIB
    client.process.kill()
    try:
        wait_until(lambda: daemon.memory_used() == 0, 2, what="memory back although the socket is open")
        os.kill(child, 0)
    finally:
        os.kill(child, signal.SIGKILL)
        wait_gone(child)


def test_hundreds_of_sessions_that_vanish_leave_nothing(shared_daemon: Daemon) -> None:
    daemon = shared_daemon
    for number in range(200):
        wire = Wire(daemon.socket)
        wire.hello()
        context = WireContext(wire)
        context.queue(2)
        wire.send(msg.MemAlloc(context=context.handle, kind="host", size=4096 * (1 + number % 90)))
        wire.close()
        if not number:
            wait_until(lambda: daemon.memory_used() == 0)
            descriptors = daemon.base_fd_count()
    wait_until(lambda: daemon.memory_used() == 0)
    wait_until(lambda: daemon.base_fd_count() <= descriptors)
    assert daemon.status().session_count == 0
