"""`bench recovery`: how long others feel a death or a hang. docs/reliability.md has the promises.

These are clock times, so they are measured here; tests check only the behaviour.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, NamedTuple

from softnpu.driver import CommandList, Context, Driver, Fence, ZeError, faults
from softnpu.tools.bench.client import client
from softnpu.tools.bench.model import BenchModel
from softnpu.tools.bench.result import Measurement, absolute
from softnpu.tools.bench.submission import Submission
from softnpu.tools.demo.digits import model_path
from softnpu.tools.shared.failures import ToolError
from softnpu.tools.shared.private_daemon import PrivateDaemon, private_daemon

BENCH: Final = "recovery"
_DEADLINE_S: Final = 60.0
_DEADLINE_NS: Final = int(_DEADLINE_S * 1e9)
_PAUSE_S: Final = 0.0002


class _Promise(NamedTuple):
    metric: str
    limit_s: float
    measure: Callable[[], float]


def run(rounds: int) -> Iterator[Measurement]:
    """Yield the longest of `rounds` times of each kind, in seconds; the promise is its target."""
    for promise in _PROMISES:
        longest = max(promise.measure() for _ in range(rounds))
        yield absolute(BENCH, promise.metric, "s", longest, at_most=promise.limit_s)


def _daemon_killed() -> float:
    """Return the time until a client waiting for a fence gets DEVICE_LOST."""
    with TemporaryDirectory(prefix="softnpu-bench-") as folder:
        daemon = PrivateDaemon(Path(folder))
        try:
            with Driver.open(daemon.socket, autostart=False) as driver:
                context = driver.devices[0].create_context()
                event = context.create_event()
                waiting = Submission(context, lambda commands: commands.append_wait_on_events([event]))
                waiting.start()
                return _seconds_until_lost(waiting.fence, daemon.pid)
        finally:
            daemon.stop()  # an error at its end results from what was done to it


def _seconds_until_lost(fence: Fence, pid: int) -> float:
    start = time.monotonic()
    os.kill(pid, signal.SIGKILL)
    with suppress(ZeError):
        fence.host_synchronize(_DEADLINE_NS)
        raise ToolError("the wait for a fence", found="its end", expected="DEVICE_LOST, with the daemon dead")
    return time.monotonic() - start


def _client_killed() -> float:
    """Return the time until a client's memory is reclaimed."""
    with ExitStack() as stack:
        daemon = stack.enter_context(private_daemon())
        monitor = stack.enter_context(Driver.open(daemon.socket, autostart=False, role="monitor"))
        model = BenchModel("digits", model_path(), {})
        victim = stack.enter_context(client("driver", daemon.socket, model))
        victim.wait_until_ready()
        start = time.monotonic()
        os.kill(victim.pid, signal.SIGKILL)
        while monitor.status().engines[0].memory_used:
            if time.monotonic() - start > _DEADLINE_S:
                raise ToolError(f"the memory of client {victim.pid}", found="not back", expected="all of it")
            time.sleep(_PAUSE_S)
        return time.monotonic() - start


def _engine_killed() -> float:
    """Return the time until a client's next submission is done."""
    with ExitStack() as stack:
        daemon = stack.enter_context(private_daemon())
        driver = stack.enter_context(Driver.open(daemon.socket, autostart=False))
        context = driver.devices[0].create_context()
        _barrier(context).run()
        start = time.monotonic()
        os.kill(driver.status().engines[0].engine_pid, signal.SIGKILL)
        _barrier(context).run()
        return time.monotonic() - start


def _bystander_of_a_hang() -> float:
    """Return the time until a bystander's submission is done on a device that another session hangs."""
    with ExitStack() as stack:
        daemon = stack.enter_context(private_daemon())
        guilty, bystander = (stack.enter_context(Driver.open(daemon.socket, autostart=False)) for _ in "12")
        context, other = (driver.devices[0].create_context() for driver in (guilty, bystander))
        _barrier(other).run()
        faults.inject("hang", socket=daemon.socket, session=guilty.session)
        start = time.monotonic()
        _barrier(context).start()
        _barrier(other).run()
        return time.monotonic() - start


def _barrier(context: Context) -> Submission:
    return Submission(context, CommandList.append_barrier)


_PROMISES: Final = (
    _Promise("daemon killed, DEVICE_LOST", 0.1, _daemon_killed),
    _Promise("client killed, memory back", 1.0, _client_killed),
    _Promise("engine killed, next submission", 2.0, _engine_killed),
    _Promise("a session hangs, submission of another", 5.0, _bystander_of_a_hang),
)
