"""`bench submit`: an empty command from Python through ring, engine and completion, and back.

Both sides of each comparison are pinned the same way: the caller to one core, the engine or the peer
process to another (or to the same one).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial

from softnpu.driver import CommandList, Driver
from softnpu.emulator.common.spin import SpinBudget
from softnpu.emulator.interface.environment import DEFAULT_SPIN_US
from softnpu.tools.bench import pairs
from softnpu.tools.bench.echo import EchoProcess
from softnpu.tools.bench.result import Measurement, absolute, compared
from softnpu.tools.bench.rounds import Round, interleave, median, median_time, pinned, split
from softnpu.tools.bench.submission import Submission
from softnpu.tools.shared.private_daemon import private_session

BENCH = "submit"
_ROUND = 100
_SPUN_US = 3.0
"""At most, for a round trip with spin: its pair sleeps, which depends more on the machine."""
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
        near, far = cores[:2]
        yield from _compared("round trip asleep, two cores", 0, near, far, sleeping, trips)
        spinning, metric = ["semaphore", "word"], "round trip with spin, two cores"
        yield from _compared(metric, DEFAULT_SPIN_US, near, far, spinning, trips)
    yield from _compared("round trip asleep, one core", 0, cores[0], cores[0], sleeping, trips)


class EmptySubmission(Submission):
    """A barrier, submitted and waited for repeatedly. `spin_us` bounds the caller's busy wait."""

    def __init__(self, driver: Driver, spin_us: int) -> None:
        super().__init__(driver.devices[0].create_context(), CommandList.append_barrier, "empty command")
        # overrides the environment: the comparison is about this bound
        self.queue.spin = SpinBudget(spin_us * 1000)

    def round(self, count: int) -> float:
        """Return median seconds of `count` round trips."""
        self.run()  # as for the peers, the trip that wakes the other side is not counted
        return median_time(self.run, count)


def _compared(
    metric: str, spin_us: int, near: int, far: int, peers: list[str], trips: int
) -> Iterator[Measurement]:
    """Yield median microseconds of a round trip, against every peer."""
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
    medians = {name: median(values) * 1e6 for name, values in times.items()}
    if spin_us:
        yield absolute(BENCH, metric, "us", medians["device"], at_most=_SPUN_US)
    for name in peers:
        yield compared(BENCH, metric, "us", medians["device"], _PEERS[name], medians[name])
