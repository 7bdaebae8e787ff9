"""Floods of connections, requests, allocations, doorbells and submissions, while somebody else infers.

Each flood is as fast as one process can make it. The innocent client gets right results in bounded time, and
afterwards the daemon has the memory and the descriptors that it had before.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from textwrap import dedent

import numpy as np
import psutil
import pytest

from softnpu.driver import ZeResult
from softnpu.emulator.engine.context import _SESSION_BYTES
from softnpu.emulator.interface import endpoint, frames
from softnpu.emulator.interface import messages as msg
from softnpu.emulator.supervisor.client import _UNREAD_BYTES
from softnpu.emulator.supervisor.limits import ResourceLimits
from softnpu.emulator.supervisor.rejected_connections import _MOST as _LINGERING
from tests.conftest import StartDaemon, StartPython
from tests.support.client import ClientProcess
from tests.support.daemon import Daemon
from tests.support.models import on_cpu
from tests.support.waiting import wait_until
from tests.support.wire import HELLO, Wire, WireContext

MIB = 1 << 20
_LONGEST_S = 5.0  # for one inference of a bystander, on two cores that many share
_GROWTH = 24 * MIB  # what an allocator may keep after a flood
_HELLO = frames.encode(1, msg.encode(HELLO))

_INNOCENT = """
import select
from softnpu.driver.graph_source import GraphSource
driver = Driver.open(Path(given["socket"]))
context = driver.devices[0].create_context()
with GraphSource.from_ir(Path(given["xml"])) as source:
    graph = context.create_graph(source)
graph.initialize()
memory = [context.alloc_host(a.byte_size) for a in graph.meta.arguments]
memory[0].view(np.float32, (1, 1, 8, 8))[:] = np.random.default_rng(5).random((1, 1, 8, 8), dtype=np.float32)
for index, place in enumerate(memory):
    graph.set_argument_value(index, place)
commands = context.create_command_list()
commands.append_graph_execute(graph)
commands.close()
queue = context.create_command_queue()
expected, done, wrong, worst = bytes.fromhex(given["expected"]), 0, 0, 0.0
say("working")
while not select.select([0], [], [], 0.002)[0]:
    memory[1].view()[:] = 0
    start = time.monotonic()
    extra = context.alloc_host(4096)
    queue.execute_command_lists([commands])
    assert queue.synchronize(60 * 10**9)
    extra.destroy()
    worst = max(worst, time.monotonic() - start)
    done += 1
    wrong += bytes(memory[1].view()) != expected
say([done, wrong, worst])
"""


@pytest.fixture
def daemon(shared_daemon: Daemon) -> Daemon:
    return shared_daemon


@contextmanager
def _bystander(daemon: Daemon, start_python: StartPython, digits: Path) -> Iterator[ClientProcess]:
    """Somebody who infers meanwhile; then the proof that nobody has noticed and nothing is left."""
    image = np.random.default_rng(5).random((1, 1, 8, 8), dtype=np.float32)
    innocent = start_python(
        _INNOCENT,
        socket=str(daemon.socket),
        xml=str(digits),
        expected=on_cpu(digits, image)[0].tobytes().hex(),
    )
    assert innocent.hear(60.0) == "working"
    engine = daemon.engine().engine_pid
    descriptors, memory, used = daemon.base_fd_count(), _memory(daemon.pid), daemon.memory_used()
    yield innocent
    innocent.tell()
    done, wrong, worst = innocent.hear(60.0)
    print(f"bystander: {done} inferences, the longest {worst * 1e3:.1f} ms")
    assert done > 0
    assert wrong == 0
    assert worst < _LONGEST_S
    innocent.finish()
    assert daemon.engine().engine_pid == engine
    wait_until(lambda: daemon.memory_used() < used, what="nothing allocated any more")
    wait_until(lambda: daemon.base_fd_count() <= descriptors, what="descriptors closed")
    assert _memory(daemon.pid) < memory + _GROWTH


def _memory(pid: int) -> int:
    return int(psutil.Process(pid).memory_info().rss)


def _connect(daemon: Daemon) -> socket.socket:
    sock = endpoint.new_socket()
    sock.settimeout(30.0)
    sock.connect(str(daemon.socket))
    return sock


def _send_until_cut_off(sock: socket.socket, frame: bytes) -> None:
    for _ in range(100_000):
        try:
            sock.send(frame)
        except ConnectionError:
            return
    raise AssertionError("whoever does not read is never cut off")


# ---------------------------------------------------------------- connections


def test_thousands_of_connections_that_come_and_go(
    daemon: Daemon, start_python: StartPython, digits: Path
) -> None:
    with _bystander(daemon, start_python, digits):
        for number in range(3000):
            sock = _connect(daemon)
            if number % 3:
                sock.send(_HELLO)
            sock.close()
        wait_until(lambda: daemon.status().users[0].connections == 2, what="all noticed")


def test_thousands_of_connections_beyond_the_limit(
    start_daemon: StartDaemon, start_python: StartPython, digits: Path
) -> None:
    daemon = start_daemon(limits=ResourceLimits(user_connections=50))
    with _bystander(daemon, start_python, digits), ExitStack() as stack:
        for _ in range(49):
            stack.enter_context(Wire(daemon.socket)).hello()
        refused = 0
        for _ in range(1000):
            sock = _connect(daemon)
            sock.send(_HELLO)
            refused += b"user-connections" in sock.recv(70000)
            sock.close()
        assert refused == 1000
        waiting = [stack.enter_context(_connect(daemon)) for _ in range(_LINGERING + 40)]
        for sock in waiting[:20]:
            assert b"user-connections" in sock.recv(70000), "those who say nothing make room for others"


def test_frames_that_end_in_the_middle(daemon: Daemon, start_python: StartPython, digits: Path) -> None:
    with _bystander(daemon, start_python, digits), ExitStack() as stack:
        whole = [_HELLO, frames.encode(1, msg.encode(msg.Status())), os.urandom(100)]
        for number in range(600):
            sock = stack.enter_context(_connect(daemon)) if number % 2 else _connect(daemon)
            frame = whole[number % 3]
            sock.send(frame[: 1 + number % (len(frame) - 1)])
            answer = sock.recv(70000)
            assert b"failed" in answer, "half a frame is no frame"
            assert sock.recv(70000) == b""
            if not number % 2:
                sock.close()


def test_connections_that_never_say_hello_end(
    start_daemon: StartDaemon, start_python: StartPython, digits: Path
) -> None:
    daemon = start_daemon(patches={"softnpu.emulator.supervisor.client:_HANDSHAKE_S": 1.0})
    with _bystander(daemon, start_python, digits), ExitStack() as stack:
        silent = [stack.enter_context(_connect(daemon)) for _ in range(400)]
        first = [sock.recv(70000) for sock in silent]
        assert first[0] == b"", "ended by the clock"
        assert sum(b"user-handshakes" in answer for answer in first) >= 400 - 256


# ---------------------------------------------------------------- requests


def test_clients_that_never_read_their_answers(
    daemon: Daemon, start_python: StartPython, digits: Path
) -> None:
    status = frames.encode(2, msg.encode(msg.Status()))
    with _bystander(daemon, start_python, digits), ExitStack() as stack:
        for _ in range(5):
            sock = stack.enter_context(_connect(daemon))
            sock.send(_HELLO)
            _send_until_cut_off(sock, status)
        # a warning: the line with which a client leaves is one of those that are bounded
        assert "frames wait for a peer that does not read" in daemon.log


def test_large_answers_that_nobody_reads_are_bounded_by_bytes(start_daemon: StartDaemon) -> None:
    daemon = start_daemon()
    with ExitStack() as stack:
        for number in range(200):
            wire = stack.enter_context(Wire(daemon.socket))
            wire.ask(msg.Hello(major=1, minor=0, client=f"{number:64}"), msg.Welcome)
        status = frames.encode(2, msg.encode(msg.Status()))
        before = _memory(daemon.pid)
        sock = stack.enter_context(_connect(daemon))
        sock.send(_HELLO)
        _send_until_cut_off(sock, status)
        assert "bytes wait for a peer that does not read" in daemon.log
        assert _memory(daemon.pid) - before < 16 * _UNREAD_BYTES


def test_requests_as_fast_as_a_process_can_send_them(
    daemon: Daemon, start_python: StartPython, digits: Path
) -> None:
    flood = """
    from softnpu.emulator.interface import messages as msg
    driver = Driver.open(Path(given["socket"]))
    context = driver.devices[0].create_context()
    end = time.monotonic() + 2.0
    count = 0
    while time.monotonic() < end:
        for _ in range(50):
            context.alloc_host(64).destroy()
            driver.status()
            count += 2
    say(count)
    """
    with _bystander(daemon, start_python, digits):
        clients = [start_python(flood, socket=str(daemon.socket)) for _ in range(2)]
        for client in clients:
            assert client.hear(60.0) > 0
            client.finish()


def test_allocations_up_to_the_limit(
    start_daemon: StartDaemon, start_python: StartPython, digits: Path
) -> None:
    limits = ResourceLimits(session_allocations=4000, session_segments=1000)
    daemon = start_daemon(limits=limits, memory=256 * MIB, session_memory=128 * MIB)
    with _bystander(daemon, start_python, digits), ExitStack() as stack:
        refusals = []
        for size, exportable in ((64, False), (64, True), (MIB, False)):
            wire = stack.enter_context(Wire(daemon.socket))
            wire.hello()
            request = msg.MemAlloc(
                context=WireContext(wire).handle, kind="host", size=size, exportable=exportable
            )
            for _ in range(5000):
                answer = wire.answer(wire.send(request))
                if isinstance(answer, msg.Failed):
                    refusals.append(answer.info)
                    break
        assert [info.result for info in refusals] == [
            ZeResult.ERROR_OUT_OF_HOST_MEMORY,
            ZeResult.ERROR_OUT_OF_HOST_MEMORY,
            ZeResult.ERROR_OUT_OF_DEVICE_MEMORY,
        ]
        assert [info.hint.rpartition(" ")[2] for info in refusals] == [
            "session-allocations",
            "session-segments",
            "--session-memory",
        ]


# ---------------------------------------------------------------- doorbells and submissions

_STORMS = {
    "doorbells": """
        doorbell = context.doorbell
        end = time.monotonic() + 2.0
        while time.monotonic() < end:
            for _ in range(100):
                try:
                    os.eventfd_write(doorbell, 2**62)
                except BlockingIOError:
                    os.eventfd_read(doorbell)
    """,
    "submissions": """
        queues = [context.create_command_queue() for _ in range(8)]
        memory = context.alloc_host(1 << 20)
        commands = context.create_command_list()
        for _ in range(20):
            commands.append_memory_fill(memory, b"\\x01", 1 << 20)
        commands.close()
        end = time.monotonic() + 2.0
        while time.monotonic() < end:
            for queue in queues:
                queue.execute_command_lists([commands])
        for queue in queues:
            assert queue.synchronize(60 * 10**9)
    """,
    "empty submissions": """
        queues = [context.create_command_queue() for _ in range(64)]
        commands = context.create_command_list()
        commands.append_barrier()
        commands.close()
        end = time.monotonic() + 2.0
        while time.monotonic() < end:
            for queue in queues:
                queue.execute_command_lists([commands] * 50)
        for queue in queues:
            assert queue.synchronize(60 * 10**9)
    """,
    "different buffers": """
        queue = context.create_command_queue()
        memory = context.alloc_host(1 << 16)
        end = time.monotonic() + 2.0
        kept = []
        while time.monotonic() < end:
            commands = context.create_command_list()
            for place in range(200):
                commands.append_memory_fill(memory, bytes([len(kept) % 256, 1]), 2 + 2 * (place % 100))
            commands.close()
            queue.execute_command_lists([commands])
            kept.append(commands)
        assert queue.synchronize(60 * 10**9)
    """,
    "queues": """
        end = time.monotonic() + 2.0
        while time.monotonic() < end:
            queues = [context.create_command_queue() for _ in range(20)]
            for queue in queues:
                queue.destroy()
    """,
}


@pytest.mark.parametrize("storm", _STORMS)
def test_a_storm(daemon: Daemon, start_python: StartPython, digits: Path, storm: str) -> None:
    opening = """
    driver = Driver.open(Path(given["socket"]))
    context = driver.devices[0].create_context()
    """
    with _bystander(daemon, start_python, digits):
        before = _memory(daemon.engine().engine_pid)
        client = start_python(_dedented(opening, _STORMS[storm], "say('done')"), socket=str(daemon.socket))
        assert client.hear(90.0) == "done"
        client.finish()
        wait_until(lambda: daemon.engine().contexts == 1)
        assert _memory(daemon.engine().engine_pid) < before + _SESSION_BYTES + 2 * _GROWTH


def _dedented(*parts: str) -> str:
    return "\n".join(dedent(part) for part in parts)
