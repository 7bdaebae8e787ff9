"""Many idle sessions: their cost to the daemon, and to a working client."""

from __future__ import annotations

import statistics
import time

import psutil
import pytest

from softnpu.driver import CommandQueue, Context, Driver
from softnpu.emulator.interface.environment import ENV_SPIN_US
from tests.conftest import StartDaemon, StartPython
from tests.soak.figures import note, sessions
from tests.support.daemon import Daemon
from tests.support.waiting import wait_until
from tests.support.work import LONG, barrier

_SHORT = 100
_ROUNDS, _TIMES = 15, 40
_PER_PROCESS = 250
_STARTING_CPU = 0.1
_MOST_CPU = 0.01
_MOST_WAKE_UPS = 20.0
_MOST_SLOWER = 2.0

_IDLERS = """
import resource
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
held = []
for _ in range(given["count"]):
    driver = Driver.open(given["socket"])
    context = driver.devices[0].create_context()
    held.append((driver, context, context.create_command_queue(), context.alloc_host(4096)))
say("idle")
hear()
"""


class _Worker:
    """A client that measures round trips of an empty command."""

    def __init__(self, daemon: Daemon) -> None:
        self.driver = Driver.open(daemon.socket)
        self.context: Context = self.driver.devices[0].create_context()
        self.queue: CommandQueue = self.context.create_command_queue()
        self.commands = barrier(self.context)
        self.fence = self.queue.create_fence()

    def median_s(self) -> float:
        """Return the median of a few round trips."""
        times = []
        for _ in range(_TIMES):
            self.fence.reset()
            start = time.perf_counter()
            self.queue.execute_command_lists([self.commands], self.fence)
            assert self.fence.host_synchronize(LONG)
            times.append(time.perf_counter() - start)
        return statistics.median(times)


@pytest.fixture(autouse=True)
def no_spin(monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable spinning: whether a side catches the other awake is luck, not a cost of idle sessions."""
    monkeypatch.setenv(ENV_SPIN_US, "0")


def _measure(start_daemon: StartDaemon, start_python: StartPython, count: int, seconds: float) -> float:
    """Return the share of a core that the idle daemon takes; check all else."""
    crowded = start_daemon(spin_us=0)
    empty = start_daemon(spin_us=0, socket=str(crowded.socket.with_name("empty.sock")))
    clients = []
    for first in range(0, count, _PER_PROCESS):
        number = min(_PER_PROCESS, count - first)
        clients.append(start_python(_IDLERS, socket=str(crowded.socket), count=number))
    for client in clients:
        assert client.hear(120) == "idle"
    assert crowded.status().session_count == count
    # an engine without a model prepares for the first one, once
    wait_until(lambda: _cpu_share(crowded, 0.3)[1] < _STARTING_CPU, 30, what="a start that is over")
    wake_ups = _wake_ups(crowded)
    used, share = _cpu_share(crowded, seconds)
    woken = (_wake_ups(crowded) - wake_ups) / seconds

    workers = [_Worker(crowded), _Worker(empty)]
    found: list[list[float]] = [[], []]
    for turn in range(_ROUNDS):
        for index in (0, 1) if turn % 2 else (1, 0):
            found[index].append(workers[index].median_s())
    # the best: all rounds together take as long as one time slice of another process
    with_them, without = (min(values) * 1e6 for values in found)
    for worker in workers:
        worker.driver.destroy()
    for client in clients:
        client.tell()
        client.finish()
    wait_until(lambda: crowded.status().session_count == 0, 30, what="all sessions gone")
    wait_until(lambda: crowded.memory_used() == 0, 30, what="all memory back")
    loop = f"{count} idle sessions"
    words = f"{share:.2%} of a core ({used * 1e3:.0f} ms in {seconds:g} s)"
    note(loop, "processor time of the daemon", words)
    note(loop, "wake-ups of the daemon", f"{woken:.1f} a second")
    ratio = with_them / without
    words = f"{with_them:.1f} us, without them {without:.1f} us, {ratio:.2f} times"
    note(loop, "empty command, median", words)
    assert woken < _MOST_WAKE_UPS
    assert ratio < _MOST_SLOWER
    return share


def _cpu_share(daemon: Daemon, seconds: float) -> tuple[float, float]:
    """Return the CPU seconds that the idle daemon uses, and the share of a core."""
    tree = _processes(daemon)
    time.sleep(0.5)  # the last session has only just begun
    before = sum(_cpu_s(process) for process in tree)
    start = time.monotonic()
    time.sleep(seconds)  # the measurement is of idle time
    used = sum(_cpu_s(process) for process in tree) - before
    return used, used / (time.monotonic() - start)


def _processes(daemon: Daemon) -> list[psutil.Process]:
    return [psutil.Process(daemon.pid), psutil.Process(daemon.engine().engine_pid)]


def _wake_ups(daemon: Daemon) -> int:
    return sum(process.num_ctx_switches().voluntary for process in _processes(daemon))


def _cpu_s(process: psutil.Process) -> float:
    """Return CPU seconds, exact to nanoseconds, where `cpu_times` counts in hundredths of a second."""
    total = 0
    for thread in process.threads():
        with open(f"/proc/{process.pid}/task/{thread.id}/schedstat", "rb") as file:
            total += int(file.read().split()[0])
    return total / 1e9


def test_a_hundred_sessions_idle(start_daemon: StartDaemon, start_python: StartPython) -> None:
    # processor time is more on a busy machine, where caches are cold
    _measure(start_daemon, start_python, _SHORT, 2.0)


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_a_thousand_sessions_idle(start_daemon: StartDaemon, start_python: StartPython) -> None:
    assert _measure(start_daemon, start_python, sessions(), 15.0) < _MOST_CPU
