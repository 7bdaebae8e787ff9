"""A compiler worker that dies or is cancelled: its compilation fails with the reason, the next one works."""

from __future__ import annotations

import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from softnpu.driver import Context, GraphSource, ZeResult, connection
from softnpu.driver.graph_creation import ProgressCallback
from tests.conftest import OpenContext
from tests.support.daemon import Daemon
from tests.support.models import write_chain
from tests.support.waiting import wait_gone, wait_until
from tests.support.work import Loaded, barrier, failure, run


@pytest.fixture
def slow(private_dir: Path) -> Path:
    """Return a model with enough operations to compile for a while."""
    return write_chain(private_dir, 16, 3000)


def _compile(context: Context, model: Path, progress: ProgressCallback | None = None) -> None:
    with GraphSource.from_ir(model) as source:
        context.create_graph(source, progress=progress)


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGSTOP])
def test_a_worker_that_dies_or_hangs_fails_its_compilation_and_not_the_session(
    daemon: Daemon,
    context: Context,
    slow: Path,
    digits: Path,
    monkeypatch: pytest.MonkeyPatch,
    sent: signal.Signals,
) -> None:
    hit: list[int] = []

    def hit_workers(_stage: str, _done: float) -> None:
        if not hit:
            hit.extend(daemon.status().compiler_pids)
            for pid in hit:
                os.kill(pid, sent)

    with monkeypatch.context() as patch:
        if sent == signal.SIGSTOP:
            patch.setattr(connection, "LONG_ANSWER_S", 1.0)
        error = failure(lambda: _compile(context, slow, hit_workers), ZeResult.ERROR_MODULE_BUILD_FAILURE)

    if sent == signal.SIGKILL:
        assert f"signal {signal.SIGKILL.value}" in error.info.found
        assert "compiler" in error.info.object
    else:
        assert "compiler: it has said nothing for 1 s" in str(error)
    Loaded(context, digits)
    assert daemon.engine().restarts == 0
    for pid in hit:
        wait_gone(pid)


@pytest.mark.timeout(120)
def test_a_job_outlives_all_workers_that_had_died_before_they_began_it(
    daemon: Daemon, context: Context, private_dir: Path, digits: Path
) -> None:
    model = write_chain(private_dir, 16, 600)  # long enough for two workers to run concurrently
    with ThreadPoolExecutor() as pool:
        for job in [pool.submit(_compile, context, model) for _ in range(2)]:
            job.result(60)
        workers = wait_until(lambda: daemon.status().compiler_pids, what="workers")
        for pid in workers:
            os.kill(pid, signal.SIGSTOP)  # as good as dead: they read no more jobs
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


class _Enough(Exception):
    pass


def test_raising_in_the_progress_cancels_the_compilation(
    daemon: Daemon, context: Context, slow: Path, digits: Path
) -> None:
    for stage in ("receive", "check"):
        workers: list[int] = []

        def stop(now: str, _done: float, stage: str = stage, workers: list[int] = workers) -> None:
            if now == stage and not workers:
                workers.extend(daemon.status().compiler_pids)
                raise _Enough

        with pytest.raises(_Enough):
            _compile(context, slow, stop)
        assert workers
        wait_until(lambda workers=workers: not set(workers) <= set(daemon.status().compiler_pids))  # type: ignore[misc]
        assert daemon.engine().graphs == 0
    Loaded(context, digits)


def test_other_compilations_go_on_when_one_is_cancelled(
    daemon: Daemon, context: Context, open_context: OpenContext, slow: Path, digits: Path
) -> None:
    began, go_on, elsewhere = threading.Event(), threading.Event(), open_context(daemon)

    def stop(_now: str, _done: float) -> None:
        began.set()
        assert go_on.wait(30)
        raise _Enough

    with ThreadPoolExecutor() as pool:
        cancelled = pool.submit(_compile, context, slow, stop)
        assert began.wait(30)
        loaded = pool.submit(Loaded, elsewhere, digits)
        go_on.set()
        with pytest.raises(_Enough):
            cancelled.result(60)
        run(elsewhere.create_command_queue(), loaded.result(60).commands, barrier(elsewhere))
