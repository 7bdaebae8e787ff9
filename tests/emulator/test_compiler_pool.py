"""Compiler workers: one is always ready, and a dying one harms nobody."""

from __future__ import annotations

import importlib.util
import os
import resource
import signal
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from softnpu.driver import GraphSource, ZeResult
from softnpu.emulator.common import linux
from softnpu.emulator.compiler import sandboxed
from softnpu.emulator.interface import messages as msg
from softnpu.emulator.supervisor.children.child_process import ChildProgram
from softnpu.emulator.supervisor.limits import ResourceLimits
from softnpu.emulator.supervisor.tuning import Tuning
from tests.conftest import StartDaemon
from tests.support.daemon import Daemon
from tests.support.models import write_chain
from tests.support.waiting import forked_by, wait_gone, wait_stopped, wait_until, waits_for_job
from tests.support.wire import OpenWire, Wire, WireContext

_MEMORY_IS_ENOUGH = psutil.virtual_memory().available >= sandboxed._ENOUGH_MEMORY


def workers(daemon: Daemon) -> set[int]:
    """Return all compiler processes, including the spare."""
    pids = set()
    for child in psutil.Process(daemon.pid).children():
        try:
            if "softnpu.emulator.compiler" in child.cmdline() and child.status() != psutil.STATUS_ZOMBIE:
                pids.add(child.pid)
        except psutil.NoSuchProcess:
            continue
    return pids


def spare(daemon: Daemon) -> int:
    """Return the idle worker, once it waits for a job."""

    def waiting() -> int:
        unused = workers(daemon) - set(daemon.status().compiler_pids)
        return next((pid for pid in unused if waits_for_job(pid)), 0)

    return wait_until(waiting, what="a spare worker")


def has_openvino(worker: int) -> bool:
    return "openvino" in Path(f"/proc/{forked_by(worker)}/maps").read_text()


class Client:
    """A hand-made client: it can request a compilation and read the answer later.

    It sends memory files, which need no descriptors of the daemon but their own.
    """

    def __init__(self, wire: Wire, model: Path) -> None:
        self.wire = wire
        self._context = WireContext(wire).handle
        self._model = model

    def begin(self, cache: Path | None = None, weights: Path | None = None) -> int:
        """Request a compilation, with weights in memory or in this file; return the request's number."""
        if weights is None:
            weights_fd = linux.sealed_copy("weights", self._model.with_suffix(".bin").read_bytes())
        else:
            weights_fd = os.open(weights, os.O_RDONLY)
        with GraphSource.from_xml(self._model.stem, self._model.read_bytes(), weights_fd) as source:
            request = msg.GraphCreate(
                context=self._context,
                name=source.name,
                xml_length=source.xml_length,
                weights=source.sources,
                cache=None if cache is None else msg.CacheOptions(directory=str(cache), limit=1 << 30),
            )
            return self.wire.send(request, source.fds)

    def finish(self, number: int) -> None:
        """Wait for the graph."""
        answer = self.wire.answer(number)
        assert isinstance(answer, msg.GraphCreated), answer

    def compile(self, cache: Path | None = None) -> None:
        self.finish(self.begin(cache))


StartClient = Callable[[Daemon], Client]


@pytest.fixture
def start_client(open_wire: OpenWire, digits: Path) -> StartClient:
    return lambda daemon: Client(open_wire(daemon), digits)


@pytest.fixture
def client(daemon: Daemon, start_client: StartClient) -> Client:
    return start_client(daemon)


@pytest.mark.quick
def test_the_programs_that_the_supervisor_starts_by_name_exist() -> None:
    for program in ChildProgram:
        assert importlib.util.find_spec(f"{program}.__main__") is not None, program


def test_a_spare_is_ready_before_anybody_compiles_and_takes_all_jobs_in_a_row(
    daemon: Daemon, client: Client
) -> None:
    pid = spare(daemon)
    assert workers(daemon) == {pid}
    assert daemon.status().compiler_pids == ()
    assert has_openvino(pid) == _MEMORY_IS_ENOUGH, "loaded while nobody waits"
    for _ in range(5):
        client.compile()
    assert daemon.status().compiler_pids == (pid,)
    assert len(workers(daemon)) <= 2


def test_a_worker_that_has_loaded_openvino_is_sandboxed_by_all_protections(
    start_daemon: StartDaemon, start_client: StartClient
) -> None:
    """Landlock holds for one thread: no library may have started another one."""
    daemon = start_daemon(interpreter=True, failpoints="compiler.completing=stop")
    pid = spare(daemon)
    client = start_client(daemon)
    number = client.begin()
    of_job = wait_until(lambda: forked_by(forked_by(pid)), what="the process of the job")
    wait_stopped(of_job)
    assert "Seccomp:\t2" in Path(f"/proc/{of_job}/status").read_text()
    os.kill(of_job, signal.SIGCONT)
    client.finish(number)
    assert daemon.status().compiler_pids == (pid,)
    assert "not sandboxed" not in daemon.log


def test_each_job_has_a_process_of_its_own(start_daemon: StartDaemon, start_client: StartClient) -> None:
    """What looked at one model is gone before another comes."""
    daemon = start_daemon(failpoints="compiler.completing=stop:2")
    pid, client = spare(daemon), start_client(daemon)
    seen = []
    for _ in range(2):
        number = client.begin()
        of_job = wait_until(lambda: forked_by(forked_by(pid)), what="the process of the job")
        wait_stopped(of_job)
        os.kill(of_job, signal.SIGCONT)
        client.finish(number)
        wait_gone(of_job)
        seen.append(of_job)
    assert len(set(seen)) == 2
    assert daemon.status().compiler_pids == (pid,)


def test_what_was_compiled_of_changed_weights_is_not_stored(
    start_daemon: StartDaemon, start_client: StartClient, digits: Path, tmp_path: Path
) -> None:
    """It may be another model under the key of this one: every later compilation would have it."""
    daemon = start_daemon(failpoints="compiler.completing=stop")
    pid, client, cache = spare(daemon), start_client(daemon), tmp_path / "cache"
    weights = tmp_path / "weights.bin"
    weights.write_bytes(digits.with_suffix(".bin").read_bytes())
    number = client.begin(cache, weights)
    of_job = wait_until(lambda: forked_by(forked_by(pid)), what="the process of the job")
    wait_stopped(of_job)
    os.utime(weights)  # as a write does
    os.kill(of_job, signal.SIGCONT)
    client.finish(number)
    assert not list(cache.iterdir())
    client.finish(client.begin(cache, weights))
    assert len(list(cache.iterdir())) == 1


def test_a_worker_serves_all_caches_of_its_user(daemon: Daemon, client: Client, tmp_path: Path) -> None:
    client.compile()
    worker = daemon.status().compiler_pids
    for cache in (tmp_path / "one", tmp_path / "other"):
        client.compile(cache)
        assert list(cache.iterdir())
    assert daemon.status().compiler_pids == worker


def test_a_worker_ends_with_the_process_that_it_has_sandboxed(daemon: Daemon, client: Client) -> None:
    client.compile()
    (pid,) = daemon.status().compiler_pids
    kill(forked_by(pid))
    wait_gone(pid)
    client.compile()


def test_while_the_spare_is_busy_another_one_is_started(
    start_daemon: StartDaemon, start_client: StartClient
) -> None:
    daemon = start_daemon(tuning=Tuning(compilers=3))
    first, client = spare(daemon), start_client(daemon)
    os.kill(first, signal.SIGSTOP)  # busy for as long as the test wants
    number = client.begin()
    wait_until(lambda: len(workers(daemon)) == 2, what="the next spare")
    assert daemon.status().compiler_pids == (first,)
    client.compile()
    os.kill(first, signal.SIGCONT)
    client.finish(number)
    used = set(daemon.status().compiler_pids)
    assert len(used) == 2
    for _ in range(3):
        client.compile()
    assert set(daemon.status().compiler_pids) == used, "those with OpenVINO loaded come first"


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    wait_gone(pid)


def test_a_spare_that_dies_is_replaced_later_and_later_and_the_log_says_it_once(
    start_daemon: StartDaemon, start_client: StartClient
) -> None:
    daemon = start_daemon(tuning=Tuning(spare_delay_s=0.0, spare_retry_s=0.1))
    for _ in range(3):
        kill(spare(daemon))
    wait_until(lambda: workers(daemon), what="a spare after all")
    assert daemon.log.count("before it did anything") == 1
    assert "the next spare is started in 0.1 s" in daemon.log

    daemon.stop()
    daemon = start_daemon(tuning=Tuning(spare_delay_s=60.0, compilers=1))
    kill(spare(daemon))
    client = start_client(daemon)
    for number in [client.begin() for _ in range(3)]:
        client.finish(number)  # a compilation starts its own worker
    assert len(workers(daemon)) == 1, "with one worker at most there is no spare beside it"


def test_a_worker_that_has_compiled_ends_and_a_fresh_spare_stays(
    start_daemon: StartDaemon, start_client: StartClient
) -> None:
    daemon = start_daemon(tuning=Tuning(compiler_idle_s=0.2))
    first = spare(daemon)
    start_client(daemon).compile()
    wait_gone(first)
    pid = spare(daemon)
    assert workers(daemon) == {pid}
    assert has_openvino(pid) == _MEMORY_IS_ENOUGH, "loaded while nobody waits"


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


def test_a_job_ends_that_takes_more_cpu_time_than_it_may(
    start_daemon: StartDaemon, open_wire: OpenWire, private_dir: Path
) -> None:
    daemon = start_daemon(limits=ResourceLimits(job_cpu_s=1), tuning=Tuning(compiler_stall_s=2.0))
    wire = open_wire(daemon)
    answer = wire.answer(Client(wire, write_chain(private_dir, 4, 30_000)).begin())
    assert isinstance(answer, msg.Failed), answer
    info = answer.info
    assert info.result == ZeResult.ERROR_MODULE_BUILD_FAILURE
    assert "1 s of CPU time" in info.found
    assert "--limit job-cpu-s" in info.hint


def test_a_machine_without_processes_fails_the_job_and_recovers(
    start_daemon: StartDaemon, start_client: StartClient
) -> None:
    daemon = start_daemon(tuning=Tuning(spare_retry_s=60.0))
    pid = spare(daemon)
    before = resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE)
    client = start_client(daemon)
    kill(pid)
    wait_until(lambda: "before it did anything" in daemon.log)
    # room for the job's descriptors, none for a worker's channel
    resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, (daemon.fd_count + 2, before[1]))
    answer = client.wire.answer(client.begin())
    resource.prlimit(daemon.pid, resource.RLIMIT_NOFILE, before)
    assert isinstance(answer, msg.Failed)
    assert "could not be started" in answer.info.found
    client.compile()
