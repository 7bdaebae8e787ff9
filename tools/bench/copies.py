"""`bench copy`: a device-memory copy by the device, against `numpy.copyto` between two ordinary arrays."""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np

from softnpu.driver import Driver
from softnpu.tools.bench.load import wait_for_rest
from softnpu.tools.bench.result import Measurement, compared
from softnpu.tools.bench.rounds import interleave, median
from softnpu.tools.bench.submission import Submission
from softnpu.tools.shared.console import format_bytes
from softnpu.tools.shared.failures import ToolError
from softnpu.tools.shared.private_daemon import private_daemon

BENCH = "copy"
_VALUE = 5


def run(size: int, rounds: int) -> Iterator[Measurement]:
    """Yield GiB/s of copies of `size` bytes. Both sides have touched all their pages before."""
    source, target = np.full(size, _VALUE, np.uint8), np.zeros(size, np.uint8)
    with private_daemon() as daemon, Driver.open(daemon.socket, autostart=False) as driver:
        device = DeviceCopy(driver, size)
        wait_for_rest(daemon)
        times = interleave({"device": device.copy, "host": lambda: _copy_on_host(target, source)}, rounds + 1)
        device.check()
    mine, peer = (size / median(times[side][1:]) / (1 << 30) for side in ("device", "host"))
    metric = f"{format_bytes(size)}, from host to device memory"
    yield compared(BENCH, metric, "GiB/s", mine, "numpy.copyto", peer)


class DeviceCopy:
    """A command list with one copy, from host memory to device memory."""

    def __init__(self, driver: Driver, size: int) -> None:
        context = driver.devices[0].create_context()
        self._source, self._target = context.alloc_host(size), context.alloc_device(size)
        self._source.view()[:] = _VALUE
        self._submission = Submission(
            context, lambda commands: commands.append_memory_copy(self._target, self._source, size), "copy"
        )

    def copy(self) -> float:
        """Return seconds from submission to the return of the wait for completion."""
        start = time.perf_counter()
        self._submission.run()
        return time.perf_counter() - start

    def check(self) -> None:
        """Raise if nothing was copied."""
        if not (self._target.view() == _VALUE).all():
            raise ToolError("copy", found="target differs from source", expected="the same bytes")


def _copy_on_host(target: np.ndarray, source: np.ndarray) -> float:
    start = time.perf_counter()
    np.copyto(target, source)
    return time.perf_counter() - start
