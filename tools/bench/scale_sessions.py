"""`bench scale`: short sessions that come and go."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from softnpu.driver import Driver
from softnpu.tools.bench.load import wait_for_rest
from softnpu.tools.bench.memory import total
from softnpu.tools.bench.scale_point import Point
from softnpu.tools.bench.submit import EmptySubmission
from softnpu.tools.shared.private_daemon import private_daemon

_ALLOCATION: Final = 1 << 20


def measure(sizes: Sequence[int]) -> Iterator[Point]:
    """Yield the cost of the last of this many sessions, and the daemon's memory after them.

    Each size continues from the previous one.
    """
    with private_daemon() as daemon:
        _come_and_go(daemon.socket)  # pays the daemon's cost of a first session
        wait_for_rest(daemon)
        done = 0
        for size in sizes:
            begin = time.perf_counter()
            for _ in range(size - done):
                _come_and_go(daemon.socket)
            taken = (time.perf_counter() - begin) / (size - done)
            done = size
            yield Point("session", size, taken * 1e3, "ms")
            yield Point("memory of the daemon", size, total(daemon.pid, ()) / (1 << 20), "MiB in all")


def _come_and_go(socket: Path) -> None:
    with Driver.open(socket, autostart=False) as driver:
        empty = EmptySubmission(driver, 0)
        driver.devices[0].create_context().alloc_host(_ALLOCATION).view().fill(1)
        empty.run()
