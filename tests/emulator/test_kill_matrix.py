"""The kill matrix: every step of the protocol, every process that can die there, every way to die.

Each cell kills a process at a fail-point while a client runs through the protocol (`tour`) and another
session works. Then it checks: waiters get the right answer in bounded time, the other session is unaffected,
all resources are reclaimed, nothing is left behind (`nothing_left_behind` of every test), the next start is
clean.

The full tier has the central steps of every process with SIGKILL, and each other way once; `-m soak` has all
ways at all steps.
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

from softnpu.driver import Context, GraphSource, ZeError
from softnpu.driver.graph_creation import import_blob
from softnpu.emulator.common import failpoints
from softnpu.emulator.common.failpoints import ENV_FAILPOINTS
from softnpu.emulator.supervisor.tuning import Tuning
from tests.conftest import OpenContext, StartContext, StartDaemon, StartPython
from tests.support.client import ClientProcess
from tests.support.daemon import Daemon
from tests.support.models import image, on_cpu
from tests.support.tour import TOUR
from tests.support.waiting import Stopwatch, wait_gone, wait_stopped, wait_until
from tests.support.work import Loaded, check_works, same

_TUNING = Tuning(min_hang_s=0.5, min_start_s=1.0, compiler_stall_s=0.5)
_ANSWER_S = 60.0  # a client's time limit on a machine with two cores shared by many
_WAYS = ("kill", "stop", "abort", "memory", "descriptors")
_NO_STEPS = {"idle", "end", "release"}  # without a client: tested in tests/emulator/test_idle_end.py
_CELLS = {
    "client": {
        *(f"{step}-kill" for step in ("connect", "map", "compile", "submit", "running", "completing")),
        "running-stop", "compile-abort", "load-memory", "map-descriptors",
    },
    "engine": {"running-stop", "load-abort", "completing-memory", "map-descriptors"},
    "supervisor": {
        "connect-kill", "compile-kill", "allocate-stop", "load-abort", "queue-memory", "allocate-descriptors",
    },
}  # fmt: skip
"""The cells of the full tier."""


def _soak_unless(full: bool) -> list[pytest.MarkDecorator]:
    return [] if full else [pytest.mark.soak]


def _cells(victim: str) -> list[Any]:
    steps = [point.split(".")[1] for point in failpoints.POINTS if point.startswith(f"{victim}.")]
    return [
        pytest.param(f"{victim}.{step}", way, marks=_soak_unless(f"{step}-{way}" in _CELLS[victim]))
        for step in steps
        if step not in _NO_STEPS
        for way in _WAYS
    ]


class Tour:
    """Starts clients that run through the protocol."""

    def __init__(self, start_python: StartPython, digits: Path) -> None:
        self._start_python, self._digits = start_python, digits
        self.expected = on_cpu(digits, image())[0].ravel()

    def start(self, daemon: Daemon, rules: str = "") -> ClientProcess:
        environment = {ENV_FAILPOINTS: rules} if rules else {}
        socket = str(daemon.socket)
        return self._start_python(TOUR, environment=environment, socket=socket, xml=str(self._digits))

    def outcome(self, client: ClientProcess) -> dict[str, Any]:
        """Return a client's report, with its numbers checked."""
        outcome: dict[str, Any] = client.hear(_ANSWER_S)
        client.finish()
        if "numbers" in outcome:
            assert np.array_equal(np.array(outcome["numbers"], np.float32).ravel(), self.expected)
        return outcome


@pytest.fixture
def tour(start_python: StartPython, digits: Path) -> Tour:
    return Tour(start_python, digits)


class _Bystander:
    """An unrelated session, which must not notice anything."""

    def __init__(self, context: Context, digits: Path) -> None:
        self.context = context
        self.loaded, self.queue = Loaded(context, digits), context.create_command_queue()
        self.expected = on_cpu(digits, image(7))
        self.check()

    def check(self) -> None:
        assert same(self.loaded.infer(self.queue, image(7)), self.expected)
        assert not self.queue.lost


def _lift_limit(pid: int) -> None:
    hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)[1]
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (hard, hard))


def _check_next_start(start_context: StartContext) -> None:
    daemon, context = start_context()
    check_works(context)
    context.destroy()
    wait_until(lambda: daemon.memory_used() == 0)


@contextmanager
def _within(seconds: float) -> Iterator[None]:
    watch = Stopwatch()
    yield
    assert watch.seconds < seconds, "a second, and what looking takes on a busy machine"


# ---------------------------------------------------------------- the client


@pytest.mark.parametrize(("point", "way"), _cells("client"))
def test_a_client_that_dies(
    shared_daemon: Daemon, open_context: OpenContext, tour: Tour, digits: Path, point: str, way: str
) -> None:
    daemon, bystander = shared_daemon, _Bystander(open_context(shared_daemon), digits)
    used, descriptors = daemon.memory_used(), daemon.base_fd_count()
    sessions = daemon.status().session_count
    client = tour.start(daemon, f"{point}={way}")
    if way in ("kill", "abort"):
        assert client.process.wait(_ANSWER_S) == -(signal.SIGKILL if way == "kill" else signal.SIGABRT)
    elif way == "stop":
        wait_stopped(client.pid)
        bystander.check()
        client.process.kill()
        client.process.wait(_ANSWER_S)
    else:
        outcome = tour.outcome(client)
        expected = {"memory": ("MemoryError",), "descriptors": ("OSError", "ERROR_")}[way]
        assert "numbers" in outcome or outcome["error"].startswith(expected), outcome
    with _within(5.0):
        wait_until(lambda: daemon.memory_used() == used, what="its memory back")
        wait_until(lambda: daemon.status().session_count == sessions, what="its session gone")
        wait_until(lambda: daemon.base_fd_count() <= descriptors, what="its descriptors closed")
    bystander.check()
    assert daemon.counts("contexts", "queues", "graphs") == (1, 1, 1)


# ---------------------------------------------------------------- the engine


@pytest.mark.parametrize(("point", "way"), _cells("engine"))
def test_an_engine_that_dies(
    start_daemon: StartDaemon, open_context: OpenContext, tour: Tour, digits: Path, point: str, way: str
) -> None:
    daemon = start_daemon(failpoints=f"{point}={way}:1", tuning=_TUNING)
    daemon.tracebacks_expected = way in ("memory", "descriptors")
    outcome = tour.outcome(tour.start(daemon))
    if way in ("kill", "stop", "abort"):
        assert "numbers" in outcome, outcome
        _check_resets(daemon, 1)
    elif "numbers" not in outcome:
        assert outcome["error"] in ("ERROR_OUT_OF_HOST_MEMORY", "ERROR_MODULE_BUILD_FAILURE"), outcome
    if way == "descriptors":
        _lift_limit(daemon.engine().engine_pid)
    wait_until(lambda: daemon.memory_used() == 0, what="all memory back")
    _Bystander(open_context(daemon), digits)


def _check_resets(daemon: Daemon, count: int) -> None:
    """Assert that this many engines have died, and nobody is blamed."""
    wait_until(lambda: daemon.counts("restarts", "state") == (count, "ready"), what="the next engine")
    assert daemon.counts("aborted", "offences") == (0, 0)


@pytest.mark.parametrize(
    "steps",
    ["connect map load", "submit running staged", "copied completing ended", "handshake event signal"],
)
def test_engines_that_die_one_after_the_other(start_daemon: StartDaemon, tour: Tour, steps: str) -> None:
    daemon = start_daemon(failpoints=",".join(f"engine.{step}=kill" for step in steps.split()))
    outcome = tour.outcome(tour.start(daemon))
    assert "numbers" in outcome, outcome
    _check_resets(daemon, 3)
    wait_until(lambda: daemon.memory_used() == 0, what="all memory back")


# ---------------------------------------------------------------- a compiler worker


@pytest.mark.parametrize("way", _WAYS)
def test_a_compiler_that_dies(
    start_context: StartContext, open_context: OpenContext, digits: Path, way: str
) -> None:
    steps = ("compile", "completing", "export", "import")
    # the bystander compiles first
    rules = [f"compiler.{step}={way}:1:{int(step in ('compile', 'completing'))}" for step in steps]
    daemon, innocent = start_context(failpoints=",".join(rules), tuning=_TUNING)
    daemon.tracebacks_expected = way in ("memory", "descriptors")
    bystander, context = _Bystander(innocent, digits), open_context(daemon)
    failures = []

    def attempt(call: Any) -> Any:
        """At each of its steps a worker may die under a job once; the next one completes it."""
        for _ in range(len(steps) + 1):
            try:
                return call()
            except ZeError as error:
                failures.append(error.info.name)
        raise AssertionError(f"{failures}")

    with GraphSource.from_ir(digits) as source:
        graph = attempt(lambda: context.create_graph(source))
    blob = bytes(attempt(graph.get_native_binary))
    attempt(lambda: import_blob(context, blob)).initialize()
    assert 0 < len(failures) <= len(steps)
    assert set(failures) <= {
        "ZE_RESULT_ERROR_MODULE_BUILD_FAILURE",
        "ZE_RESULT_ERROR_OUT_OF_HOST_MEMORY",
    }
    bystander.check()
    assert daemon.engine().restarts == 0


def test_a_compiler_that_dies_before_its_first_job(start_context: StartContext, digits: Path) -> None:
    daemon, context = start_context(failpoints="compiler.connect=kill", tuning=_TUNING)
    with GraphSource.from_ir(digits) as source:
        context.create_graph(source)
    assert daemon.engine().restarts == 0


# ---------------------------------------------------------------- the supervisor


@pytest.mark.parametrize(("point", "way"), _cells("supervisor"))
def test_a_supervisor_that_dies(
    start_context: StartContext,
    start_daemon: StartDaemon,
    open_context: OpenContext,
    tour: Tour,
    digits: Path,
    point: str,
    way: str,
) -> None:
    # in this test the first connection is the engine watcher's, the bystander's at no step
    skipped = 1 if point in ("supervisor.connect", "supervisor.handshake") else 0
    daemon = start_daemon(failpoints=f"{point}={way}:1:{skipped}")
    daemon.tracebacks_expected = way in ("memory", "descriptors")
    engine = daemon.engine().engine_pid if skipped else None
    client = tour.start(daemon)
    if way in ("memory", "descriptors"):
        outcome = tour.outcome(client)
        if point in ("supervisor.compile", "supervisor.import") and "numbers" not in outcome:
            # the worker has compiled: its blob is what cannot be received
            assert "descriptors" in outcome["text"], outcome
        else:
            assert "numbers" in outcome or outcome["error"] == "ERROR_OUT_OF_HOST_MEMORY" or skipped, outcome
        assert daemon.alive
        _lift_limit(daemon.pid)
        wait_until(lambda: daemon.memory_used() == 0, what="all memory back")
        _Bystander(open_context(daemon), digits)
        return
    children = [] if engine is None else [engine]
    if way == "stop":
        wait_stopped(daemon.pid)
        children = [child.pid for child in psutil.Process(daemon.pid).children()]
        daemon.process.kill()
    code = daemon.process.wait(_ANSWER_S)
    assert code == -(signal.SIGABRT if way == "abort" else signal.SIGKILL)
    with _within(5.0):
        outcome = tour.outcome(client)
    if point != "supervisor.close":
        assert "numbers" not in outcome
        assert outcome["error"] in ("ERROR_DEVICE_LOST", "ERROR_UNINITIALIZED"), outcome
    for pid in children:
        wait_gone(pid)
    _check_next_start(start_context)


@pytest.mark.parametrize(
    ("victim", "step"),
    [
        pytest.param(
            victim, step, marks=_soak_unless(f"{victim} {step}" in ("engine submit", "supervisor running"))
        )
        for victim in ("engine", "supervisor")
        for step in ("record", "map", "submit", "running", "completing", "signal", "free", "close")
    ],
)
def test_the_daemon_dies_while_a_client_is_at_a_step(
    start_context: StartContext, start_daemon: StartDaemon, tour: Tour, step: str, victim: str
) -> None:
    """Steps without daemon activity: the client stops itself there, and continues afterwards."""
    daemon = start_daemon()
    client = tour.start(daemon, f"client.{step}=stop")
    wait_stopped(client.pid)
    if victim == "engine":
        daemon.kill_engine()
    else:
        daemon.kill()
    os.kill(client.pid, signal.SIGCONT)

    outcome = tour.outcome(client)
    if victim == "engine":
        assert "numbers" in outcome, outcome
        wait_until(lambda: daemon.memory_used() == 0)
    else:
        assert "numbers" in outcome or outcome["error"] == "ERROR_DEVICE_LOST", outcome
        _check_next_start(start_context)
