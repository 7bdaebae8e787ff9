"""A compiler worker that dies or is cancelled: its compilation fails with the reason, the next one works."""

from __future__ import annotations

import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from softnpu.driver import Context, Driver, GraphSource, ZeResult, connection
from tests.support.daemon import Daemon
from tests.support.models import write_chain
from tests.support.waiting import wait_gone, wait_until
from tests.support.work import Loaded, barrier, failure, run


@pytest.fixture
def slow(private_dir: Path) -> Path:
    """A model with so many operations that its compilation takes a while."""
    return write_chain(private_dir, 16, 3000)


def test_a_worker_killed_in_the_middle_fails_its_compilation_by_the_signal(
    daemon: Daemon, context: Context, slow: Path, digits: Path
) -> None:
    killed: list[int] = []

    def kill(_stage: str, _done: float) -> None:
        if not killed:
            killed.extend(daemon.status().compiler_pids)
            for pid in killed:
                os.kill(pid, signal.SIGKILL)

    with GraphSource.from_ir(slow) as source:
        error = failure(
            lambda: context.create_graph(source, progress=kill), ZeResult.ERROR_MODULE_BUILD_FAILURE
        )

    assert f"signal {signal.SIGKILL.value}" in error.info.found
    assert "compiler" in error.info.object
    Loaded(context, digits)
    assert daemon.engine().restarts == 0


def test_a_worker_that_hangs_fails_its_compilation_and_not_the_session(
    daemon: Daemon, context: Context, slow: Path, digits: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "LONG_ANSWER_S", 1.0)
    stopped: list[int] = []

    def stop(_stage: str, _done: float) -> None:
        if not stopped:
            stopped.extend(daemon.status().compiler_pids)
            for pid in stopped:
                os.kill(pid, signal.SIGSTOP)

    with GraphSource.from_ir(slow) as source:
        error = failure(
            lambda: context.create_graph(source, progress=stop), ZeResult.ERROR_MODULE_BUILD_FAILURE
        )

    assert "compiler: it has said nothing for 1 s" in str(error)
    monkeypatch.setattr(connection, "LONG_ANSWER_S", 600.0)
    Loaded(context, digits)
    for pid in stopped:
        wait_gone(pid)


def test_an_idle_worker_may_die(daemon: Daemon, context: Context, digits: Path) -> None:
    Loaded(context, digits)
    for pid in daemon.status().compiler_pids:
        os.kill(pid, signal.SIGKILL)
        wait_gone(pid)
    wait_until(lambda: all(_lives(pid) for pid in daemon.status().compiler_pids))

    Loaded(context, digits)


@pytest.mark.timeout(120)
def test_a_job_outlives_all_workers_that_had_died_before_they_began_it(
    daemon: Daemon, context: Context, private_dir: Path, digits: Path
) -> None:
    model = write_chain(private_dir, 16, 600)  # long enough for two workers to be at work side by side

    def compile_it() -> None:
        with GraphSource.from_ir(model) as source:
            context.create_graph(source)

    with ThreadPoolExecutor() as pool:
        for job in [pool.submit(compile_it) for _ in range(2)]:
            job.result(60)
        workers = wait_until(lambda: daemon.status().compiler_pids, what="workers")
        for pid in workers:
            os.kill(pid, signal.SIGSTOP)  # as good as dead: they read no job any more
        last = pool.submit(Loaded, context, digits)
        for pid in workers:
            wait_until(lambda: daemon.status().users[0].compiles == 1, what="the job at a worker")
            os.kill(pid, signal.SIGKILL)
            wait_until(
                lambda pid=pid: pid not in daemon.status().compiler_pids,  # type: ignore[misc]
                what="a death noticed",
            )
        last.result(60)
    assert not set(workers) & set(daemon.status().compiler_pids)


def _lives(pid: int) -> bool:
    try:
        return " Z " not in Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False


class _Enough(Exception):
    pass


@pytest.mark.parametrize("stage", ["receive", "read", "check"])
def test_raising_in_the_progress_cancels_the_compilation(
    daemon: Daemon, context: Context, slow: Path, digits: Path, stage: str
) -> None:
    workers: list[int] = []

    def stop(now: str, _done: float) -> None:
        if now == stage and not workers:
            workers.extend(daemon.status().compiler_pids)
            raise _Enough

    with GraphSource.from_ir(slow) as source, pytest.raises(_Enough):
        context.create_graph(source, progress=stop)

    assert len(workers) == 1
    wait_gone(workers[0])
    assert daemon.engine().graphs == 0
    Loaded(context, digits)


def test_other_compilations_go_on_when_one_is_cancelled(
    daemon: Daemon, context: Context, slow: Path, digits: Path
) -> None:
    done: list[Loaded] = []
    began, go_on = threading.Event(), threading.Event()

    def stop(_now: str, _done: float) -> None:
        began.set()
        assert go_on.wait(10)
        raise _Enough

    def compile_slow() -> None:
        with GraphSource.from_ir(slow) as source, pytest.raises(_Enough):
            context.create_graph(source, progress=stop)

    with Driver.open(daemon.socket) as other:
        elsewhere = other.devices[0].create_context()
        thread = threading.Thread(target=compile_slow)
        thread.start()
        assert began.wait(10)
        second = threading.Thread(target=lambda: done.append(Loaded(elsewhere, digits)))
        second.start()
        go_on.set()
        thread.join(20)
        second.join(20)
        assert len(done) == 1
        run(elsewhere.create_command_queue(), done[0].commands, barrier(elsewhere))


def test_more_compilations_than_workers_are_all_done(daemon: Daemon, digits: Path) -> None:
    with Driver.open(daemon.socket) as driver:
        context = driver.devices[0].create_context()
        loaded: list[Loaded] = []
        threads = [threading.Thread(target=lambda: loaded.append(Loaded(context, digits))) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert len(loaded) == 8
        assert daemon.engine().images == 1
        assert len(daemon.status().compiler_pids) <= 4
