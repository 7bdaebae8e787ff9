"""The kill matrix: every step of the protocol, everybody who can die there, every way to die.

A cell makes a process die at a fail-point while a client walks through the protocol (`tour`) and a bystander
works, and then checks: who waits gets the right answer in bounded time, the bystander sees nothing,
everything comes back, nothing is left behind (`nothing_left_behind` of every test), the next start is clean.

The short form has most steps of every victim with SIGKILL, and each other way once; `-m soak` has all ways at
all steps.
"""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from softnpu.driver import Driver, ZeError, ZeResult
from softnpu.emulator.common import failpoints
from softnpu.emulator.common.failpoints import ENV_FAILPOINTS
from tests.conftest import StartDaemon, StartPython
from tests.support.client import ClientProcess
from tests.support.daemon import Daemon
from tests.support.models import on_cpu
from tests.support.tour import TOUR
from tests.support.waiting import Stopwatch, wait_gone, wait_until
from tests.support.work import Loaded, barrier, check_works, run, same

_WATCHDOG = "softnpu.emulator.supervisor.watchdog"
_POOL = "softnpu.emulator.supervisor.compilers"
_QUICK = {f"{_WATCHDOG}:_LEAST_HANG_S": 0.5, f"{_WATCHDOG}:_LEAST_START_S": 1.5, f"{_POOL}:_STALLED_S": 1.0}
_ANSWER_S = 60.0  # what a client may take on a machine with two cores that many share
_WAYS = ("kill", "stop", "abort", "memory", "descriptors")
_LONG_STEPS = {"context", "queue", "record", "signal", "import", "export", "free", "allocate"}
_NO_STEPS = {"idle", "end", "withdraw"}  # of no client: tests/emulator/test_idle_end.py is about them
_SHORT_WAYS = {
    "client": {"stop": "running", "abort": "compile", "memory": "load", "descriptors": "map"},
    "engine": {"stop": "running", "abort": "load", "memory": "completing", "descriptors": "map"},
    "compiler": {"stop": "compile", "abort": "import", "memory": "compile", "descriptors": "compile"},
    "supervisor": {"stop": "allocate", "abort": "load", "memory": "queue", "descriptors": "allocate"},
}


def _cells(*victims: str) -> list[Any]:
    cells = []
    for point in failpoints.POINTS:
        victim, step = point.split(".")
        if victim not in victims or step in _NO_STEPS:
            continue
        for way in _WAYS:
            short = step not in _LONG_STEPS if way == "kill" else _SHORT_WAYS[victim][way] == step
            marks = [] if short else [pytest.mark.soak]
            cells.append(pytest.param(point, way, marks=marks, id=f"{point}-{way}"))
    return cells


class _Bystander:
    """A session that is no part of what happens, and must not notice."""

    def __init__(self, daemon: Daemon, digits: Path) -> None:
        self.driver = Driver.open(daemon.socket)
        self.context = self.driver.devices[0].create_context()
        self.loaded, self.queue = Loaded(self.context, digits), self.context.create_command_queue()
        self.image = np.random.default_rng(7).random((1, 1, 8, 8), dtype=np.float32)
        self.expected = on_cpu(digits, self.image)

    def check(self) -> None:
        assert same(self.loaded.infer(self.queue, self.image), self.expected)
        assert not self.queue.lost


@contextmanager
def _bystander(daemon: Daemon, digits: Path) -> Iterator[_Bystander]:
    bystander = _Bystander(daemon, digits)
    with bystander.driver:
        bystander.check()
        yield bystander


def _await_stopped(pid: int) -> None:
    wait_until(lambda: psutil.Process(pid).status() == psutil.STATUS_STOPPED, _ANSWER_S, "it stops itself")


def _outcome(client: ClientProcess) -> dict[str, Any]:
    outcome: dict[str, Any] = client.hear(_ANSWER_S)
    client.finish()
    return outcome


def _numbers_are_right(outcome: dict[str, Any], digits: Path) -> bool:
    image = np.random.default_rng(1).random((1, 1, 8, 8), dtype=np.float32)
    return np.array_equal(
        np.array(outcome.get("numbers"), np.float32).ravel(), on_cpu(digits, image)[0].ravel()
    )


def _check_next_start(start_daemon: StartDaemon) -> None:
    daemon = start_daemon()
    with Driver.open(daemon.socket) as driver:
        check_works(driver.devices[0].create_context())
    wait_until(lambda: daemon.memory_used() == 0)


# ---------------------------------------------------------------- the client


@pytest.mark.parametrize(("point", "way"), _cells("client"))
def test_a_client_that_dies(
    shared_daemon: Daemon, start_python: StartPython, digits: Path, point: str, way: str
) -> None:
    daemon = shared_daemon
    with _bystander(daemon, digits) as bystander:
        used, descriptors = daemon.memory_used(), daemon.base_fd_count()
        sessions = daemon.status().session_count
        rules = {ENV_FAILPOINTS: f"{point}={way}"}
        client = start_python(TOUR, environment=rules, socket=str(daemon.socket), xml=str(digits))
        if way in ("kill", "abort"):
            assert client.process.wait(_ANSWER_S) == -(signal.SIGKILL if way == "kill" else signal.SIGABRT)
        elif way == "stop":
            _await_stopped(client.pid)
            bystander.check()
            client.process.kill()
            client.process.wait(_ANSWER_S)
        else:
            outcome = _outcome(client)
            expected = {"memory": ("MemoryError",), "descriptors": ("OSError", "ERROR_")}[way]
            assert "numbers" in outcome or outcome["error"].startswith(expected), outcome
        watch = Stopwatch()
        wait_until(lambda: daemon.memory_used() == used, what="its memory back")
        wait_until(lambda: daemon.status().session_count == sessions, what="its session gone")
        wait_until(lambda: daemon.base_fd_count() <= descriptors, what="its descriptors closed")
        assert watch.seconds < 5.0, "a second, and what the looking takes on a busy machine"
        bystander.check()
        engine = daemon.engine()
        assert (engine.contexts, engine.queues, engine.graphs) == (1, 1, 1)


# ---------------------------------------------------------------- the engine


@pytest.mark.parametrize(("point", "way"), _cells("engine"))
def test_an_engine_that_dies(
    start_daemon: StartDaemon, start_python: StartPython, digits: Path, point: str, way: str
) -> None:
    daemon = start_daemon(failpoints=f"{point}={way}:1", patches=_QUICK)
    daemon.tracebacks_expected = way in ("memory", "descriptors")
    client = start_python(TOUR, socket=str(daemon.socket), xml=str(digits))
    outcome = _outcome(client)
    if way in ("kill", "stop", "abort"):
        assert _numbers_are_right(outcome, digits), outcome
        wait_until(lambda: daemon.engine().restarts == 1, what="the end of the engine")
        wait_until(lambda: daemon.engine().state == "ready", what="the next engine")
        engine = daemon.engine()
        assert (engine.restarts, engine.aborted, engine.offences) == (1, 0, 0)
    elif "numbers" in outcome:
        assert _numbers_are_right(outcome, digits)
    else:
        assert outcome["error"] in ("ERROR_OUT_OF_HOST_MEMORY", "ERROR_MODULE_BUILD_FAILURE"), outcome
    if way == "descriptors":
        _lift_limit(daemon.engine().engine_pid)
    wait_until(lambda: daemon.memory_used() == 0, what="all memory back")
    with _bystander(daemon, digits) as bystander:
        bystander.check()
    wait_until(lambda: daemon.engine().contexts == daemon.engine().images == 0)


# ---------------------------------------------------------------- a compiler worker


@pytest.mark.parametrize(("point", "way"), _cells("compiler"))
def test_a_compiler_that_dies(
    start_daemon: StartDaemon, start_python: StartPython, digits: Path, point: str, way: str
) -> None:
    daemon = start_daemon(failpoints=f"{point}={way}:1:{int(point != 'compiler.connect')}", patches=_QUICK)
    daemon.tracebacks_expected = way in ("memory", "descriptors")
    if point == "compiler.connect":
        first = _outcome(start_python(TOUR, socket=str(daemon.socket), xml=str(digits)))
        assert "numbers" in first or first["error"] == "ERROR_MODULE_BUILD_FAILURE", first
    with _bystander(daemon, digits) as bystander:
        clients = [start_python(TOUR, socket=str(daemon.socket), xml=str(digits)) for _ in range(2)]
        outcomes = [_outcome(client) for client in clients]
        good = [outcome for outcome in outcomes if "numbers" in outcome]
        bad = [outcome for outcome in outcomes if "numbers" not in outcome]
        assert all(_numbers_are_right(outcome, digits) for outcome in good)
        assert len(bad) <= 1, "one job at most had this worker"
        for outcome in bad:
            assert outcome["error"].startswith(("ERROR_MODULE_BUILD", "ERROR_OUT_OF_HOST")), outcome
        bystander.check()
        assert _numbers_are_right(
            _outcome(start_python(TOUR, socket=str(daemon.socket), xml=str(digits))), digits
        )
        assert daemon.engine().restarts == 0
    wait_until(lambda: daemon.memory_used() == 0, what="all memory back")


# ---------------------------------------------------------------- the supervisor


@pytest.mark.parametrize(("point", "way"), _cells("supervisor"))
def test_a_supervisor_that_dies(
    start_daemon: StartDaemon, start_python: StartPython, digits: Path, point: str, way: str
) -> None:
    # the first connection is that of the engine's watcher in this test, the bystander of no step
    skipped = 1 if point in ("supervisor.connect", "supervisor.handshake") else 0
    daemon = start_daemon(failpoints=f"{point}={way}:1:{skipped}")
    daemon.tracebacks_expected = way in ("memory", "descriptors")
    engine = daemon.engine().engine_pid if skipped else None
    client = start_python(TOUR, socket=str(daemon.socket), xml=str(digits))
    if way in ("memory", "descriptors"):
        outcome = _outcome(client)
        if point in ("supervisor.compile", "supervisor.import") and "numbers" not in outcome:
            # the worker has compiled: what cannot be received is its blob
            assert "descriptors" in outcome["text"], outcome
        else:
            assert "numbers" in outcome or outcome["error"] == "ERROR_OUT_OF_HOST_MEMORY" or skipped, outcome
        assert daemon.alive
        _lift_limit(daemon.pid)
        wait_until(lambda: daemon.memory_used() == 0, what="all memory back")
        with _bystander(daemon, digits) as bystander:
            bystander.check()
        return
    children = [] if engine is None else [engine]
    if way == "stop":
        _await_stopped(daemon.pid)
        children = [child.pid for child in psutil.Process(daemon.pid).children()]
        daemon.process.kill()
    code = daemon.process.wait(_ANSWER_S)
    assert code == -(signal.SIGABRT if way == "abort" else signal.SIGKILL)
    watch = Stopwatch()
    outcome = _outcome(client)
    if point != "supervisor.close":
        assert "numbers" not in outcome
        assert outcome["error"] in ("ERROR_DEVICE_LOST", "ERROR_UNINITIALIZED"), outcome
    assert watch.seconds < 5.0, "100 ms, and the end of the client itself on a busy machine"
    for pid in children:
        wait_gone(pid)
    _check_next_start(start_daemon)


def _lift_limit(pid: int) -> None:
    hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)[1]
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (hard, hard))


@pytest.mark.parametrize(
    "step",
    [
        pytest.param(step, marks=[] if step in ("submit", "running") else [pytest.mark.soak])
        for step in ("record", "map", "submit", "running", "completing", "signal", "free", "close")
    ],
)
@pytest.mark.parametrize("victim", ["engine", "supervisor"])
def test_the_daemon_dies_while_a_client_is_at_a_step(
    start_daemon: StartDaemon, start_python: StartPython, digits: Path, step: str, victim: str
) -> None:
    """Steps at which the daemon does nothing: the client stops itself there, and goes on afterwards."""
    daemon = start_daemon()
    rules = {ENV_FAILPOINTS: f"client.{step}=stop"}
    client = start_python(TOUR, environment=rules, socket=str(daemon.socket), xml=str(digits))
    _await_stopped(client.pid)

    if victim == "engine":
        daemon.kill_engine()
    else:
        daemon.kill()
    os.kill(client.pid, signal.SIGCONT)

    outcome = _outcome(client)
    if victim == "engine" or "numbers" in outcome:
        assert _numbers_are_right(outcome, digits), outcome
    else:
        assert outcome["error"] == "ERROR_DEVICE_LOST", outcome
    if victim == "engine":
        wait_until(lambda: daemon.memory_used() == 0)
    else:
        _check_next_start(start_daemon)


def test_a_driver_of_a_dead_daemon_says_so_at_every_call(start_daemon: StartDaemon) -> None:
    daemon = start_daemon()
    with Driver.open(daemon.socket) as driver:
        context = driver.devices[0].create_context()
        queue = context.create_command_queue()
        run(queue, barrier(context))
        daemon.kill()
        with pytest.raises(ZeError) as caught:
            context.alloc_host(64)
        assert caught.value.result == ZeResult.ERROR_DEVICE_LOST
