"""Compiler workers: one is always ready and small, and one that dies harms nobody."""

from __future__ import annotations

import os
import resource
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from softnpu.driver import GraphSource
from softnpu.emulator.interface import messages as msg
from tests.conftest import StartDaemon
from tests.support.daemon import Daemon
from tests.support.waiting import Stopwatch, wait_gone, wait_until, waits_for_frame
from tests.support.wire import Wire

_POOL = "softnpu.emulator.supervisor.compilers"


def workers(daemon: Daemon) -> set[int]:
    """All compiler processes, the spare with them."""
    found = set()
    for child in psutil.Process(daemon.pid).children():
        try:
            if "softnpu.emulator.compiler" in child.cmdline() and child.status() != psutil.STATUS_ZOMBIE:
                found.add(child.pid)
        except psutil.NoSuchProcess:
            continue
    return found


def spare(daemon: Daemon) -> int:
    """The worker without a job, once it waits for one."""

    def waiting() -> int:
        unused = workers(daemon) - set(daemon.status().compiler_pids)
        return next((pid for pid in unused if waits_for_frame(pid)), 0)

    return wait_until(waiting, what="a spare worker")


def has_openvino(pid: int) -> bool:
    return "openvino" in Path(f"/proc/{pid}/maps").read_text()


class Client:
    """A client by hand: it can ask for a compilation and look at the answer later."""

    def __init__(self, daemon: Daemon, model: Path) -> None:
        self.wire = Wire(daemon.socket)
        self.wire.hello()
        self._context = self.wire.ask(msg.ContextCreate(device=0), msg.ContextCreated).context
        self._model = model

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.wire.close()

    def begin(self) -> int:
        """Asks for a compilation; the number of the request."""
        with GraphSource.from_ir(self._model) as source:
            request = msg.GraphCreate(
                context=self._context,
                name=source.name,
                xml_length=source.xml_length,
                weights=source.sources,
            )
            return self.wire.send(request, source.fds)

    def finish(self, number: int) -> None:
        """Waits for the graph."""
        answer = self.wire.answer(number)
        assert isinstance(answer, msg.GraphCreated), answer

    def compile(self) -> None:
        self.finish(self.begin())


@pytest.fixture
def client(daemon: Daemon, digits: Path) -> Iterator[Client]:
    with Client(daemon, digits) as client:
        yield client


def test_a_spare_is_ready_before_anybody_compiles_and_has_no_openvino(daemon: Daemon) -> None:
    pid = spare(daemon)
    assert workers(daemon) == {pid}
    assert daemon.status().compiler_pids == ()
    assert not has_openvino(pid)


def test_the_first_compilation_takes_the_spare(daemon: Daemon, client: Client) -> None:
    pid = spare(daemon)
    client.compile()
    assert daemon.status().compiler_pids == (pid,)


def test_while_the_spare_is_busy_another_one_is_started(start_daemon: StartDaemon, digits: Path) -> None:
    daemon = start_daemon(patches={f"{_POOL}:_WORKERS": 3})
    first = spare(daemon)
    with Client(daemon, digits) as client:
        os.kill(first, signal.SIGSTOP)  # busy for as long as the test wants
        number = client.begin()
        wait_until(lambda: len(workers(daemon)) == 2, what="the next spare")
        assert daemon.status().compiler_pids == (first,)
        client.compile()
        os.kill(first, signal.SIGCONT)
        client.finish(number)


def test_jobs_in_a_row_start_no_other_worker(daemon: Daemon, client: Client) -> None:
    for _ in range(5):
        client.compile()
    assert len(daemon.status().compiler_pids) == 1
    assert len(workers(daemon)) <= 2


def test_a_worker_that_has_openvino_loaded_is_preferred_to_the_spare(
    start_daemon: StartDaemon, digits: Path
) -> None:
    daemon = start_daemon(patches={f"{_POOL}:_WORKERS": 2})
    first = spare(daemon)
    with Client(daemon, digits) as client:
        os.kill(first, signal.SIGSTOP)
        number = client.begin()
        wait_until(lambda: len(workers(daemon)) == 2, what="the next spare")
        os.kill(first, signal.SIGCONT)
        client.finish(number)
        for _ in range(3):
            client.compile()
        assert daemon.status().compiler_pids == (first,)


def test_a_worker_that_has_compiled_ends_and_a_fresh_spare_stays(
    start_daemon: StartDaemon, digits: Path
) -> None:
    daemon = start_daemon(patches={f"{_POOL}:_IDLE_S": 0.2})
    with Client(daemon, digits) as client:
        first = spare(daemon)
        client.compile()
    wait_gone(first)
    pid = spare(daemon)
    assert workers(daemon) == {pid}
    assert not has_openvino(pid)


def test_a_spare_that_dies_is_replaced_later_and_later_and_told_once(daemon: Daemon) -> None:
    killed = 0
    watch = Stopwatch()
    while watch.seconds < 2.0:
        for pid in workers(daemon):
            os.kill(pid, signal.SIGKILL)
            wait_gone(pid)
            killed += 1
        time.sleep(0.01)  # a process that starts has no event to wait for
    # after 0, 0.5 and 1.5 s
    assert 2 <= killed <= 3
    assert daemon.log.count("before it did anything") == 1
    wait_until(lambda: workers(daemon), what="a spare after all")


def test_without_any_spare_a_compilation_starts_its_worker_itself(
    start_daemon: StartDaemon, digits: Path
) -> None:
    daemon = start_daemon(patches={f"{_POOL}:_SPARE_AFTER_S": 60.0})
    pid = spare(daemon)
    os.kill(pid, signal.SIGKILL)
    wait_gone(pid)
    with Client(daemon, digits) as client:
        client.compile()


def test_a_job_given_to_a_worker_that_had_just_died_goes_to_another_one(
    daemon: Daemon, client: Client
) -> None:
    pid = spare(daemon)
    # the daemon sleeps, so that it finds the job and the dead worker in the same round
    os.kill(daemon.pid, signal.SIGSTOP)
    number = client.begin()
    os.kill(pid, signal.SIGKILL)
    os.kill(daemon.pid, signal.SIGCONT)
    client.finish(number)
    assert daemon.status().compiler_pids != (pid,)


def test_with_one_worker_at_most_there_is_no_other_spare(start_daemon: StartDaemon, digits: Path) -> None:
    daemon = start_daemon(patches={f"{_POOL}:_WORKERS": 1})
    pid = spare(daemon)
    with Client(daemon, digits) as client:
        numbers = [client.begin() for _ in range(3)]
        for number in numbers:
            client.finish(number)
    assert workers(daemon) == {pid}


def test_a_machine_without_processes_fails_the_job_and_recovers(
    start_daemon: StartDaemon, digits: Path
) -> None:
    daemon = start_daemon(patches={f"{_POOL}:_FIRST_PAUSE_S": 60.0})
    pid = spare(daemon)
    before = resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE)
    with Client(daemon, digits) as client:
        os.kill(pid, signal.SIGKILL)
        wait_gone(pid)
        wait_until(lambda: "before it did anything" in daemon.log)
        # room for the descriptors of the job, none for the channel of a worker
        resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, (daemon.fd_count + 2, before[1]))
        answer = client.wire.answer(client.begin())
        resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, before)
        assert isinstance(answer, msg.Failed)
        assert "could not be started" in answer.info.found
        client.compile()
