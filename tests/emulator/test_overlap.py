"""Images for throughput: inferences start early, invisibly to clients."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from softnpu.driver import CommandList, CommandQueue, Context, Driver, Fence, ZeError, ZeResult, faults
from softnpu.driver.memory import MemoryRef
from softnpu.emulator.engine.queues.queue import EngineQueue
from softnpu.emulator.engine.queues.queue_table import QueueTable
from softnpu.emulator.engine.running.overlap import EarlyInference, Overlap
from tests.conftest import StartContext
from tests.support.daemon import Daemon
from tests.support.models import Array, on_cpu, random_square, write_chain
from tests.support.waiting import wait_until
from tests.support.work import LONG, Loaded, execute, fill, inference, run, same

_SIZE = 256
_CONFIG = {"PERFORMANCE_HINT": "THROUGHPUT", "INFERENCE_NUM_THREADS": "2"}
_TRIES = 50
pytestmark = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core has one stream")


@pytest.fixture
def daemon(shared_daemon: Daemon) -> Daemon:
    return shared_daemon


@pytest.fixture
def xml(private_dir: Path) -> Path:
    """Return a network that takes some 10 ms."""
    return write_chain(private_dir, _SIZE, 10)


def _matrix(seed: int) -> Array:
    return random_square(_SIZE, seed)


def _several(context: Context, xml: Path, number: int) -> list[Loaded]:
    """Return graphs with memory of their own, fed and executed once each."""
    queue = context.create_command_queue()
    loaded = [Loaded(context, xml, config=_CONFIG) for _ in range(number)]
    for seed, one in enumerate(loaded):
        one.infer(queue, _matrix(seed))
    return loaded


def _forget_outputs(loaded: list[Loaded]) -> None:
    for one in loaded:
        one.memory[-1].view()[:] = 0


def _check(loaded: list[Loaded], xml: Path) -> None:
    for seed, one in enumerate(loaded):
        assert same(one.outputs, on_cpu(xml, _matrix(seed))), f"inference {seed}"


def _result(fence: Fence) -> ZeResult:
    try:
        assert fence.host_synchronize(LONG)
    except ZeError as error:
        return ZeResult(error.result)
    return ZeResult.SUCCESS


def _run_in_turn(queue: CommandQueue, *lists: CommandList) -> None:
    """Submit each list with its own fence, then wait for all."""
    assert all(fence.host_synchronize(LONG) for fence in [execute(queue, commands) for commands in lists])


@contextmanager
def _nothing_overlaps(daemon: Daemon) -> Iterator[None]:
    before = daemon.engine().overlapped
    yield
    assert daemon.engine().overlapped == before


@pytest.mark.parametrize("queues", [1, 4])
def test_submissions_run_side_by_side(daemon: Daemon, context: Context, xml: Path, queues: int) -> None:
    loaded = _several(context, xml, 6)
    before = daemon.engine().overlapped
    _forget_outputs(loaded)
    several = [context.create_command_queue() for _ in range(queues)]

    def overlaps() -> bool:
        fences = [execute(several[number % queues], one.commands) for number, one in enumerate(loaded)]
        assert all(fence.host_synchronize(LONG) for fence in fences)
        # each waits only for its own turn: all but the first can start early, if they come in time
        return daemon.engine().overlapped - before >= (3 if queues == 1 else 1)

    wait_until(overlaps)
    _check(loaded, xml)


@pytest.mark.parametrize("memory", ["the same", "imported twice"])
def test_what_reads_a_result_waits_for_it(daemon: Daemon, context: Context, xml: Path, memory: str) -> None:
    chain = [Loaded(context, xml, config=_CONFIG) for _ in range(3)]
    for one, following in itertools.pairwise(chain):
        read: MemoryRef = one.memory[-1]
        if memory == "imported twice":
            shared = context.alloc_host(one.memory[-1].size, export=True)
            descriptor = context.export_memory(shared)
            read = context.import_memory(descriptor)
            os.close(descriptor)
            one.memory[-1] = shared
            one.graph.set_argument_value(1, shared)
        following.graph.set_argument_value(0, read)
    lists, queue = [inference(context, one.graph) for one in chain], context.create_command_queue()
    chain[0].feed(_matrix(0))
    with _nothing_overlaps(daemon):
        for _ in range(2):  # the second time every program is known
            _forget_outputs(chain)
            _run_in_turn(queue, *lists)
            value = _matrix(0)
            for one in chain:
                (value,) = on_cpu(xml, value)
                assert same(one.outputs, [value])


def test_one_list_submitted_again_and_again_runs_in_order(
    daemon: Daemon, context: Context, xml: Path
) -> None:
    (one,) = _several(context, xml, 1)
    queues = [context.create_command_queue() for _ in range(2)]
    with _nothing_overlaps(daemon):
        fences = [execute(queues[number % 2], one.commands) for number in range(6)]
        assert all(fence.host_synchronize(LONG) for fence in fences)
    _check([one], xml)


def test_what_stands_between_two_inferences_keeps_its_place(context: Context, xml: Path) -> None:
    loaded = _several(context, xml, 2)
    wiped = fill(context, loaded[1].memory[0], 0)
    _forget_outputs(loaded)
    _run_in_turn(context.create_command_queue(), loaded[0].commands, wiped, loaded[1].commands)
    assert same(loaded[0].outputs, on_cpu(xml, _matrix(0)))
    assert same(loaded[1].outputs, on_cpu(xml, np.zeros((_SIZE, _SIZE), np.float32)))


def test_what_was_begun_and_cancelled_writes_nothing_after_its_end(context: Context, xml: Path) -> None:
    loaded = _several(context, xml, 4)
    queue = context.create_command_queue()
    for victim in (1, 3):
        for _ in range(_TRIES):
            fences = [execute(queue, one.commands) for one in loaded]
            fences[victim].cancel()
            result = _result(fences[victim])
            if result != ZeResult.SUCCESS:
                break
            assert fences[-1].host_synchronize(LONG)  # the victim had ended before it was cancelled
        assert result == ZeResult.ERROR_NOT_AVAILABLE
        loaded[victim].memory[-1].view()[:] = 0x5A
        assert fences[-1].host_synchronize(LONG) if victim != 3 else queue.synchronize(LONG)
        assert np.all(loaded[victim].memory[-1].view() == 0x5A)
        run(queue, loaded[victim].commands)
        _check(loaded, xml)


def test_a_queue_can_be_destroyed_while_its_inferences_run_early(context: Context, xml: Path) -> None:
    loaded = _several(context, xml, 4)
    queues = [context.create_command_queue() for _ in loaded]
    fences = [execute(queue, one.commands) for queue, one in zip(queues, loaded, strict=True)]
    for queue in queues[1:]:
        queue.destroy()
    assert fences[0].host_synchronize(LONG)
    for one in loaded[1:]:
        run(queues[0], one.commands)
    _check(loaded, xml)


def test_after_an_engine_reset_all_inferences_are_there(start_context: StartContext, xml: Path) -> None:
    daemon, context = start_context()
    loaded = _several(context, xml, 6)
    queue = context.create_command_queue()
    _forget_outputs(loaded)
    fences = [execute(queue, one.commands) for one in loaded]
    assert fences[0].host_synchronize(LONG)
    daemon.kill_engine()
    assert all(fence.host_synchronize(LONG) for fence in fences)
    _check(loaded, xml)


def test_nothing_starts_early_for_a_while_after_an_engine_reset() -> None:
    class Queues(QueueTable):
        def runnable(self, level: int) -> list[EngineQueue]:
            raise AssertionError(f"candidates of level {level}")

    run = SimpleNamespace(streams=4, started_ns=0, poll_often=lambda _: None)
    inference: Any = SimpleNamespace(
        concurrent=lambda: run,
    )
    queue: Any = SimpleNamespace(level=2)
    nothing: Any = None
    Overlap(Queues(), nothing, after_reset=True).begin(queue, inference)
    with pytest.raises(AssertionError, match="candidates"):
        Overlap(Queues(), nothing, after_reset=False).begin(queue, inference)


def test_only_those_on_a_stream_share_the_time_of_an_inference_and_nobody_that_of_anything_else() -> None:
    inference, run = _inference(), _run()
    running, *early = queues = [cast(Any, SimpleNamespace(level=2, completed=0)) for _ in range(3)]
    inference.concurrent = lambda: run
    overlap = Overlap(QueueTable(), cast(Any, None), after_reset=True)
    overlap._early = [EarlyInference(queue, 1, _inference(), cast(Any, _run())) for queue in queues]
    overlap._early[0] = EarlyInference(running, 1, inference, cast(Any, run))
    overlap.begin(running, inference)
    assert overlap.beside(running) == early[:1]
    overlap.begin(running, None)
    assert overlap.beside(running) == []


@pytest.mark.parametrize("overtaking", ["something else", "a conflict", "no conflict"])
def test_what_is_overtaken_starts_again_unless_nobody_can_tell(overtaking: str) -> None:
    """Work of a higher level may write what an early inference reads."""
    inference: Any = None
    if overtaking != "something else":
        inference, run = _inference(), _run(conflicts=overtaking == "a conflict")
        inference.concurrent = lambda: run
    low, high = (cast(Any, SimpleNamespace(level=level, completed=0)) for level in (1, 2))
    overlap, early = Overlap(QueueTable(), cast(Any, None), after_reset=True), _run()
    overlap._early = [EarlyInference(low, 1, _inference(), cast(Any, early))]
    overlap.begin(high, inference)
    assert early.cancelled == (0 if overtaking == "no conflict" else 1)
    assert overlap.has_early == (overtaking == "no conflict")


def _run(conflicts: bool = False) -> Any:
    """Return an inference that has started early."""
    run = SimpleNamespace(streams=2, started_ns=1, poll_often=lambda _: None, cancelled=0)
    run.conflicts = lambda _: conflicts

    def cancel_early() -> None:
        run.cancelled += 1

    run.cancel_early = cancel_early
    return run


def _inference() -> Any:
    return SimpleNamespace(concurrent=lambda: None)


def test_memory_of_inferences_is_let_go_with_their_context(daemon: Daemon, driver: Driver, xml: Path) -> None:
    """At once: a sleeping engine collects no garbage."""
    maps = Path(f"/proc/{daemon.engine().engine_pid}/maps")

    def segments() -> int:
        return maps.read_text().count("/memfd:")

    with driver.devices[0].create_context() as first:
        _several(first, xml, 2)
    wait_until(lambda: daemon.memory_used() == 0)
    before = segments()
    with driver.devices[0].create_context() as context:
        loaded = _several(context, xml, 4)
        _run_in_turn(context.create_command_queue(), *[one.commands for one in loaded])
        assert segments() > before
    wait_until(lambda: daemon.memory_used() == 0)
    wait_until(lambda: segments() <= before, what="the segments unmapped")


@pytest.mark.parametrize(
    "kind", ["fail", *(pytest.param(kind, marks=pytest.mark.soak) for kind in ("ecc", "lost", "stall"))]
)
def test_an_early_inference_ends_with_its_turn_however_that_ends(
    start_context: StartContext, xml: Path, kind: str
) -> None:
    daemon, context = start_context(tdr_ms=2000)
    loaded = _several(context, xml, 2)
    queues = [context.create_command_queue() for _ in loaded]
    for queue, one in zip(queues, loaded, strict=True):
        run(queue, one.commands)
    before = daemon.engine().overlapped
    # the second one begins beside the first and is hit at its turn
    faults.inject(kind, after=1)
    with daemon.stopped_engine():  # it sees both at once
        fences = [execute(queue, one.commands) for queue, one in zip(queues, loaded, strict=True)]
    assert _result(fences[0]) is ZeResult.SUCCESS
    assert _result(fences[1]) is not ZeResult.SUCCESS
    assert daemon.engine().overlapped > before, "nothing began early: the test shows nothing"
    queue = context.create_command_queue()
    assert same(loaded[1].infer(queue, _matrix(7)), on_cpu(xml, _matrix(7)))
