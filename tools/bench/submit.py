"""`bench submit`: an empty command from Python through ring, engine and completion, and back.

Both sides of each comparison are pinned the same way: the caller to one core, the engine or the peer
process to another (or to the same one).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial

from softnpu.driver import CommandList, CommandQueue, Driver, Fence
from softnpu.emulator.common.spin import SpinBudget
from softnpu.emulator.interface.environment import DEFAULT_SPIN_US
from softnpu.tools.bench import pairs
from softnpu.tools.bench.echo import EchoProcess
from softnpu.tools.bench.result import Measurement, compared
from softnpu.tools.bench.rounds import Round, interleave, median, median_time, pinned, split
from softnpu.tools.shared.failures import ToolError
from softnpu.tools.shared.private_daemon import private_session

BENCH = "submit"
_ROUND = 100
_DEADLINE_NS = 10_000_000_000
_PEERS = {
    "semaphore": "semaphore pair",
    "socket": "AF_UNIX SEQPACKET",
    "word": "spinning word",
    "iceoryx2": "iceoryx2 event pair",
}


def run(trips: int) -> Iterator[Measurement]:
    """Yield the figures of about `trips` round trips on every side of every comparison."""
    cores = sorted(os.sched_getaffinity(0))
    sleeping = ["semaphore", "socket"] + ["iceoryx2"] * pairs.has_iceoryx()
    if len(cores) > 1:
        yield from _asleep("two cores", cores[0], cores[1], sleeping, trips)
        yield from _spinning(cores[0], cores[1], trips)
    yield from _asleep("one core", cores[0], cores[0], sleeping, trips)


class EmptySubmission:
    """A barrier, submitted and waited for repeatedly. `spin_us` bounds the caller's busy wait."""

    def __init__(self, driver: Driver, spin_us: int) -> None:
        self._context = driver.devices[0].create_context()
        self._queue: CommandQueue = self._context.create_command_queue()
        # overrides the environment: the comparison is about this bound
        self._queue.spin = SpinBudget(spin_us * 1000)
        commands: CommandList = self._context.create_command_list()
        commands.append_barrier()
        commands.close()
        self._lists = [commands]
        self._fence: Fence = self._queue.create_fence()

    def ask(self) -> None:
        """Make one round trip."""
        self._queue.execute_command_lists(self._lists, self._fence)
        if not self._fence.host_synchronize(_DEADLINE_NS):
            raise ToolError(
                "empty command", found="not ended", expected=f"its end within {_DEADLINE_NS / 1e9:g} s"
            )

    def round(self, count: int) -> float:
        """Return median seconds of `count` round trips."""
        self.ask()  # as for the peers, the trip that wakes the other side is not counted
        return median_time(self.ask, count)


def _asleep(where: str, near: int, far: int, peers: list[str], trips: int) -> Iterator[Measurement]:
    times = _measure(0, near, far, peers, trips)
    metric = f"round trip asleep, {where}"
    mine = times["device"]
    for name in peers:
        yield compared(BENCH, metric, "us", mine, _PEERS[name], times[name])


def _spinning(near: int, far: int, trips: int) -> Iterator[Measurement]:
    times = _measure(DEFAULT_SPIN_US, near, far, ["semaphore", "word"], trips)
    metric = "round trip with spin, two cores"
    mine = times["device"]
    for name in ("semaphore", "word"):
        yield compared(BENCH, metric, "us", mine, _PEERS[name], times[name])


def _measure(spin_us: int, near: int, far: int, peers: list[str], trips: int) -> dict[str, float]:
    """Return median microseconds of a round trip, by side."""
    rounds, count = split(trips, _ROUND)
    with ExitStack() as stack:
        driver = stack.enter_context(private_session(spin_us=spin_us))
        # created before this process is pinned: on one core a spin budget gives up at once
        device = EmptySubmission(driver, spin_us)
        os.sched_setaffinity(driver.status().engines[0].engine_pid, {far})
        sides: dict[str, Round] = {"device": partial(device.round, count)}
        for name in peers:
            sides[name] = partial(stack.enter_context(EchoProcess(name, far)).round, count)
        stack.enter_context(pinned(near))
        times = interleave(sides, rounds)
    return {name: median(values) * 1e6 for name, values in times.items()}
