"""Clients killed repeatedly, at every step and moment: nobody else notices, nothing is left behind."""

from __future__ import annotations

import statistics
import time
from pathlib import Path

import numpy as np
import pytest

from softnpu.driver import Context, Driver
from tests.conftest import StartPython
from tests.soak.figures import loops, note, note_times
from tests.support.daemon import Daemon
from tests.support.models import on_cpu
from tests.support.waiting import wait_until
from tests.support.work import Loaded, same

_SHORT = 10
_LEAK_BYTES = 2 << 20

# forks one client after the other: each computes once in full, and is killed during a second round
_CLIENTS = """
import random, resource, signal
from softnpu.emulator.common import failpoints
image = np.frombuffer(bytes.fromhex(given["image"]), np.float32)
expected = bytes.fromhex(given["expected"])
never = ("client.connect", "client.export")
points = [p for p in failpoints.POINTS if p.startswith("client.") and p not in never]

def round_of(driver):
    context = driver.devices[0].create_context()
    queue = context.create_command_queue()
    with GraphSource.from_ir(Path(given["xml"])) as source:
        graph = context.create_graph(source)
    graph.initialize()
    memory = [context.alloc_host(a.byte_size) for a in graph.meta.arguments]
    for index, block in enumerate(memory):
        graph.set_argument_value(index, block)
    commands = context.create_command_list()
    commands.append_graph_execute(graph)
    commands.close()
    memory[0].view(np.float32)[:] = image
    shared = context.alloc_host(1 << 20, export=True)
    fd = context.export_memory(shared)
    context.import_memory(fd)
    os.close(fd)
    event = context.create_event()
    event.host_signal()
    fence = queue.create_fence()
    queue.execute_command_lists([commands], fence)
    fence.host_synchronize()
    context.alloc_host(100).destroy()
    context.release_memory()
    return memory[1].view().tobytes()

def life(number, report):
    chosen = random.Random(f"{given['seed']}.{number}")
    driver = Driver.open(given["socket"])
    os.write(report, b"r" if round_of(driver) == expected else b"w")
    if chosen.random() < 0.5:
        failpoints.configure(f"{chosen.choice(points)}=kill")
    else:
        signal.setitimer(signal.ITIMER_REAL, chosen.uniform(0.0001, 0.05))
    driver.destroy()
    with Driver.open(given["socket"]) as again:
        round_of(again)
    os.kill(os.getpid(), signal.SIGKILL)

import gc
gc.freeze()
while True:
    number = hear()
    if number is None:
        break
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            linux.die_with_parent(os.getppid())
            os.close(read)
            life(number, write)
        finally:
            os._exit(9)
    os.close(write)
    word = os.read(read, 1).decode()
    os.close(read)
    status = os.waitpid(pid, 0)[1]
    say([word, os.WTERMSIG(status), pid])
"""


def _kill_loop(daemon: Daemon, context: Context, start_python: StartPython, digits: Path, count: int) -> None:
    image = np.random.default_rng(3).random((1, 1, 8, 8), dtype=np.float32) * 16
    expected = on_cpu(digits, image)
    survivor, queue = Loaded(context, digits), context.create_command_queue()
    assert same(survivor.infer(queue, image), expected)
    clients = start_python(
        _CLIENTS,
        socket=str(daemon.socket),
        xml=str(digits),
        image=image.tobytes().hex(),
        expected=expected[0].tobytes().hex(),
        seed=count,
    )
    back, infer, memory, start = [], [], [], time.monotonic()
    used = daemon.memory_used()
    descriptors = -1
    with Driver.open(daemon.socket, role="monitor") as monitor:
        for number in range(count):
            clients.tell(number)
            word, signal_number, pid = clients.hear(60)
            died = time.monotonic()
            assert word == "r", f"loop {number}: the result of a client that started again is wrong"
            assert signal_number in (9, 14), f"loop {number}: it ended with signal {signal_number}"

            def gone(pid: int = pid) -> bool:
                status = monitor.status()
                alive = any(session.pid == pid for session in status.sessions)
                return not alive and status.engines[0].memory_used == used

            wait_until(gone, 10, what=f"loop {number}: memory of the dead client back")
            back.append(time.monotonic() - died)
            start_infer = time.monotonic()
            assert same(survivor.infer(queue, image), expected), f"loop {number}"
            infer.append(time.monotonic() - start_infer)
            if number == min(5, count // 2):
                descriptors = daemon.base_fd_count()
            if number % max(1, count // 20) == 0:
                memory.append(_private_bytes(daemon.pid))
        wait_until(lambda: daemon.base_fd_count() <= descriptors, what="descriptors closed")
        engine = monitor.status().engines[0]
    clients.tell(None)
    clients.finish()
    assert (engine.restarts, engine.hangs) == (0, 0)
    quarter = max(1, len(memory) // 4)
    # what stays: a sample may be taken while a message is handled, whose megabytes are freed again
    grown = min(memory[-quarter:]) - statistics.median(memory[:quarter])
    assert grown < max(_LEAK_BYTES, 0.05 * memory[0]), f"the supervisor grew by {grown / 1024:.0f} KiB"
    assert statistics.median(back) < 1.0
    loop = f"client killed x{count}"
    note_times(loop, "memory back after", back)
    note_times(loop, "next inference of another client", infer)
    note(loop, "supervisor grew by", f"{grown / 1024:.0f} KiB")
    note(loop, "took", f"{time.monotonic() - start:.0f} s")


def _private_bytes(pid: int) -> int:
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    (line,) = (line for line in text.splitlines() if line.startswith("Pss_Anon:"))
    return 1024 * int(line.split()[1])


def test_ten_clients_are_killed(
    daemon: Daemon, context: Context, start_python: StartPython, digits: Path
) -> None:
    _kill_loop(daemon, context, start_python, digits, _SHORT)


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_clients_are_killed_a_thousand_times(
    daemon: Daemon, context: Context, start_python: StartPython, digits: Path
) -> None:
    _kill_loop(daemon, context, start_python, digits, loops())
