"""Floods of connections, requests, allocations, doorbells and submissions, while somebody else infers.

Each flood is as fast as one process can make it. The innocent client always gets right results, and
afterwards the daemon has no more memory or descriptors than before.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

import psutil
import pytest

from softnpu.driver import ZeResult
from softnpu.emulator.engine.commands.program_cache import SESSION_BYTES
from softnpu.emulator.interface import commands as cmd
from softnpu.emulator.interface import endpoint, frames
from softnpu.emulator.interface import messages as msg
from softnpu.emulator.interface.commands import MemoryAt
from softnpu.emulator.supervisor.clients.client import _UNREAD_BYTES
from softnpu.emulator.supervisor.clients.rejected_connections import _MOST as _LINGERING
from softnpu.emulator.supervisor.limits import SESSION_ADDRESS_SPACE, ResourceLimits
from softnpu.emulator.supervisor.tuning import Tuning
from softnpu.emulator.supervisor.users import _UNMAPPING
from tests.conftest import StartDaemon, StartPython
from tests.support.daemon import Daemon
from tests.support.models import image, on_cpu
from tests.support.waiting import wait_until
from tests.support.wire import HELLO, OpenWire, Wire, WireContext, WireModel

MIB = 1 << 20
_GROWTH = 24 * MIB  # an allocator may keep this after a flood
Unnoticed = Callable[[Daemon], AbstractContextManager[ExitStack]]
_HELLO = frames.encode(1, msg.encode(HELLO))

_INNOCENT = """
import select
driver = Driver.open(Path(given["socket"]))
context = driver.devices[0].create_context()
with GraphSource.from_ir(Path(given["xml"])) as source:
    graph, memory = load(context, source)
memory[0].view(np.float32, (1, 1, 8, 8))[:] = np.random.default_rng(5).random((1, 1, 8, 8), dtype=np.float32)
commands = recorded(context, lambda c: c.append_graph_execute(graph))
queue = context.create_command_queue()
expected, done, wrong = bytes.fromhex(given["expected"]), 0, 0
say("working")
while not select.select([0], [], [], 0.002)[0]:
    memory[1].view()[:] = 0
    extra = context.alloc_host(4096)
    queue.execute_command_lists([commands])
    assert queue.synchronize(60 * 10**9), "the others keep it from the device"
    extra.destroy()
    done += 1
    wrong += bytes(memory[1].view()) != expected
say([done, wrong])
"""


@pytest.fixture
def daemon(shared_daemon: Daemon) -> Daemon:
    return shared_daemon


@pytest.fixture
def unnoticed(start_python: StartPython, digits: Path) -> Unnoticed:
    """Run an inference client meanwhile; then check that it noticed nothing and nothing leaked."""

    @contextmanager
    def unnoticed(daemon: Daemon) -> Iterator[ExitStack]:
        expected = on_cpu(digits, image(5))[0].tobytes().hex()
        innocent = start_python(_INNOCENT, socket=str(daemon.socket), xml=str(digits), expected=expected)
        assert innocent.hear(60.0) == "working"
        engine = daemon.engine().engine_pid
        descriptors, memory, used = daemon.base_fd_count(), _memory(daemon.pid), daemon.memory_used()
        with ExitStack() as stack:
            yield stack
        innocent.tell()
        done, wrong = innocent.hear(60.0)
        assert done > 0
        assert wrong == 0
        innocent.finish()
        # before anything connects: connections not yet closed also count
        wait_until(lambda: daemon.base_fd_count() <= descriptors, what="descriptors closed")
        assert daemon.engine().engine_pid == engine
        wait_until(lambda: daemon.memory_used() < used, what="nothing allocated any more")
        assert _memory(daemon.pid) < memory + _GROWTH

    return unnoticed


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


@pytest.mark.parametrize("count", [150, pytest.param(3000, marks=pytest.mark.soak)])
def test_connections_that_come_and_go_and_frames_that_end_in_the_middle(
    daemon: Daemon, unnoticed: Unnoticed, count: int
) -> None:
    whole = [_HELLO, frames.encode(1, msg.encode(msg.Status())), os.urandom(100)]
    with unnoticed(daemon) as stack:
        for number in range(count):
            sock = _connect(daemon)
            if number % 3:
                sock.send(_HELLO)
            sock.close()
        for number in range(count // 5):
            sock = stack.enter_context(_connect(daemon)) if number % 2 else _connect(daemon)
            frame = whole[number % 3]
            sock.send(frame[: 1 + number % (len(frame) - 1)])
            assert b"failed" in sock.recv(70000), "half a frame is no frame"
            assert sock.recv(70000) == b""
            if not number % 2:
                sock.close()
        wait_until(lambda: daemon.status().users[0].connections == 2, what="all noticed")


def test_connections_beyond_the_limit(start_daemon: StartDaemon, unnoticed: Unnoticed) -> None:
    daemon = start_daemon(limits=ResourceLimits(user_connections=50))
    with unnoticed(daemon) as stack:
        for _ in range(49):
            stack.enter_context(Wire(daemon.socket)).hello()
        refused = 0
        for _ in range(200):
            sock = _connect(daemon)
            sock.send(_HELLO)
            refused += b"user-connections" in sock.recv(70000)
            sock.close()
        assert refused == 200
        waiting = [stack.enter_context(_connect(daemon)) for _ in range(_LINGERING + 40)]
        for sock in waiting[:20]:
            assert b"user-connections" in sock.recv(70000), "those who say nothing make room for others"


# ---------------------------------------------------------------- requests


def test_connections_that_never_say_hello_and_clients_that_never_read_their_answers(
    start_daemon: StartDaemon, unnoticed: Unnoticed
) -> None:
    daemon = start_daemon(tuning=Tuning(handshake_s=0.5), limits=ResourceLimits(user_handshakes=64))
    status = frames.encode(2, msg.encode(msg.Status()))
    with unnoticed(daemon) as stack:
        silent = [stack.enter_context(_connect(daemon)) for _ in range(100)]
        first = [sock.recv(70000) for sock in silent]
        assert first[0] == b"", "ended by the clock"
        assert sum(b"user-handshakes" in answer for answer in first) >= 100 - 64
        for _ in range(3):
            sock = stack.enter_context(_connect(daemon))
            sock.send(_HELLO)
            _send_until_cut_off(sock, status)
        # a warning: the line of a leaving client is rate-limited
        assert "frames wait for a peer that does not read" in daemon.log


def test_large_answers_that_nobody_reads_are_bounded_by_bytes(daemon: Daemon) -> None:
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


def test_allocations_up_to_the_limit(start_daemon: StartDaemon, unnoticed: Unnoticed) -> None:
    limits = ResourceLimits(session_allocations=1000, session_segments=300)
    daemon = start_daemon(limits=limits, memory=256 * MIB, session_memory=128 * MIB)
    with unnoticed(daemon) as stack:
        refusals = []
        for size, exportable in ((64, False), (64, True), (MIB, False)):
            wire = stack.enter_context(Wire(daemon.socket))
            wire.hello()
            context = WireContext(wire).handle
            request = msg.MemAlloc(context=context, kind="host", size=size, exportable=exportable)
            answers = (wire.answer(wire.send(request)) for _ in range(2000))
            info = next(answer.info for answer in answers if isinstance(answer, msg.Failed))
            refusals.append((info.result, info.hint.rpartition(" ")[2]))
        assert refusals == [
            (ZeResult.ERROR_OUT_OF_HOST_MEMORY, "session-allocations"),
            (ZeResult.ERROR_OUT_OF_HOST_MEMORY, "session-segments"),
            (ZeResult.ERROR_OUT_OF_DEVICE_MEMORY, "--session-memory"),
        ]


# ---------------------------------------------------------------- requests, doorbells and submissions

_STORMS = """
driver = Driver.open(Path(given["socket"]))
context = driver.devices[0].create_context()
kept = []

def for_a_while(step):
    end = time.monotonic() + given["seconds"]
    while time.monotonic() < end:
        step()

def requests():
    for _ in range(50):
        context.alloc_host(64).destroy()
        driver.status()

def doorbells():
    for _ in range(100):
        try:
            os.eventfd_write(context._doorbell, 2**62)
        except BlockingIOError:
            os.eventfd_read(context._doorbell)

def fills(times, size):
    fill = lambda c: c.append_memory_fill(memory, b"\\x01", size)
    return recorded(context, *[fill] * times, lambda c: c.append_barrier())

memory = context.alloc_host(1 << 20)
queues = [context.create_command_queue() for _ in range(64)]
large, empty = fills(20, 1 << 20), fills(0, 0)

def submissions():
    for queue in queues[:8]:
        queue.execute_command_lists([large])

def empty_submissions():
    for queue in queues:
        queue.execute_command_lists([empty] * 50)

def different_buffers():
    kept.append(fills(200, 2 + 2 * (len(kept) % 100)))
    queues[0].execute_command_lists([kept[-1]])

def short_queues():
    for queue in [context.create_command_queue() for _ in range(20)]:
        queue.destroy()

for step in (requests, doorbells, submissions, empty_submissions, different_buffers, short_queues):
    for_a_while(step)
    for queue in queues:
        assert queue.synchronize(60 * 10**9)
    say(step.__name__)
"""


@pytest.mark.parametrize("seconds", [0.1, pytest.param(2.0, marks=pytest.mark.soak)])
def test_storms(daemon: Daemon, start_python: StartPython, unnoticed: Unnoticed, seconds: float) -> None:
    with unnoticed(daemon):
        before = _memory(daemon.engine().engine_pid)
        clients = [start_python(_STORMS, socket=str(daemon.socket), seconds=seconds) for _ in range(2)]
        for client in clients:
            for _ in range(6):
                client.hear(90.0)
            client.finish()
        wait_until(lambda: daemon.engine().contexts == 1)
        assert _memory(daemon.engine().engine_pid) < before + 2 * (SESSION_BYTES + 2 * _GROWTH)


def test_few_allocations_wait_for_addresses_at_once(daemon: Daemon, open_wire: OpenWire) -> None:
    """Each is tried again every 5 ms: thousands kept everybody else waiting."""
    context = WireContext(open_wire(daemon))
    most = msg.MemAlloc(context=context.handle, kind="host", size=SESSION_ADDRESS_SPACE, sparse=True)
    event, target = context.alloc(4096, "control"), context.wire.ask(most, msg.MemAllocated).memory
    event.event().initialize()
    waits = cmd.EventWait(MemoryAt(event.handle, 0)), cmd.Fill(MemoryAt(target, 0), 4096, b"\0")
    commands = cmd.encode_buffer([cmd.encode_command(command) for command in waits])
    buffer = context.alloc(4096, "control")
    buffer.write(commands)
    context.queue().submit(buffer, len(commands))
    wait_until(lambda: daemon.engine().queued == 1, what="a submission that keeps the memory mapped")
    context.wire.ask(msg.MemFree(memory=(target,)), msg.Ok)
    numbers = [context.wire.send(most) for _ in range(_UNMAPPING + 1)]
    first, answer = context.wire.receive()
    assert first == numbers[-1], "it does not wait"
    assert isinstance(answer, msg.Failed)
    event.event().host_signal()
    os.eventfd_write(context.doorbell, 1)
    for _ in numbers[:-1]:
        context.wire.receive()


def test_who_asks_again_and_again_while_a_graph_is_loaded_is_refused(
    start_daemon: StartDaemon, open_wire: OpenWire, chain: WireModel
) -> None:
    """What waits for a load is answered in one go: 150,000 requests kept others waiting for 6 s."""
    daemon = start_daemon(failpoints="engine.load=sleep(3000)", limits=ResourceLimits(session_graphs=2))
    wire = open_wire(daemon)
    request = msg.GraphInitialize(graph=chain.create(WireContext(wire)))
    waiting = [wire.send(request) for _ in range(2)]
    info = wire.info(request)
    assert info.result == ZeResult.ERROR_OUT_OF_HOST_MEMORY
    assert "2 initialisations of graphs under way" in info.found
    assert "session-graphs" in info.hint
    for number in waiting:
        assert isinstance(wire.answer(number), msg.GraphInitialized)
    wire.ask(request, msg.GraphInitialized)
