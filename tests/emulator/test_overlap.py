"""Images for throughput: inferences start before their turn, and clients cannot tell."""

from __future__ import annotations

import itertools
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from softnpu.driver import Context, Driver, Fence, ZeError, ZeResult, faults
from softnpu.emulator.engine.overlap import Overlap
from softnpu.emulator.engine.queue import EngineQueue
from softnpu.emulator.engine.queue_table import QueueTable
from tests.conftest import StartDaemon
from tests.support.daemon import Daemon
from tests.support.models import Array, on_cpu, write_chain
from tests.support.waiting import wait_until
from tests.support.work import LONG, Loaded, execute, fill, recorded, run, same

_SIZE = 256
_CONFIG = {"PERFORMANCE_HINT": "THROUGHPUT", "INFERENCE_NUM_THREADS": "2"}
_TRIES = 50
pytestmark = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core has one stream")


@pytest.fixture
def daemon(shared_daemon: Daemon) -> Daemon:
    return shared_daemon


@pytest.fixture
def xml(private_dir: Path) -> Path:
    """A network that takes some 10 ms."""
    return write_chain(private_dir, _SIZE, 10)


def _matrix(seed: int) -> Array:
    return np.random.default_rng(seed).random((_SIZE, _SIZE), dtype=np.float32)


def _several(context: Context, xml: Path, number: int) -> list[Loaded]:
    """Graphs with memory of their own, fed and executed once each."""
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


def _overlapped(daemon: Daemon) -> int:
    return daemon.engine().overlapped


@pytest.mark.parametrize("queues", [1, 4])
def test_submissions_run_side_by_side(daemon: Daemon, context: Context, xml: Path, queues: int) -> None:
    loaded = _several(context, xml, 6)
    before = _overlapped(daemon)
    _forget_outputs(loaded)
    several = [context.create_command_queue() for _ in range(queues)]
    fences = [execute(several[number % queues], one.commands) for number, one in enumerate(loaded)]
    assert all(fence.host_synchronize(LONG) for fence in fences)
    _check(loaded, xml)
    # each waits for nothing but its own turn: all but the first can start early
    wait_until(lambda: _overlapped(daemon) - before >= (3 if queues == 1 else 1))


def test_what_reads_a_result_waits_for_it(daemon: Daemon, context: Context, xml: Path) -> None:
    before = _overlapped(daemon)
    chain = [Loaded(context, xml, config=_CONFIG) for _ in range(4)]
    for one, following in itertools.pairwise(chain):
        following.graph.set_argument_value(0, one.memory[-1])
    lists = [recorded(context, lambda c, one=one: c.append_graph_execute(one.graph)) for one in chain]  # type: ignore[misc]
    queue = context.create_command_queue()
    chain[0].feed(_matrix(0))
    for _ in range(2):  # the second time every program is known
        _forget_outputs(chain)
        fences = [execute(queue, commands) for commands in lists]
        assert all(fence.host_synchronize(LONG) for fence in fences)
        value = _matrix(0)
        for one in chain:
            (value,) = on_cpu(xml, value)
            assert same(one.outputs, [value])
    assert _overlapped(daemon) == before


def test_one_list_submitted_again_and_again_runs_in_order(
    daemon: Daemon, context: Context, xml: Path
) -> None:
    before = _overlapped(daemon)
    (one,) = _several(context, xml, 1)
    queues = [context.create_command_queue() for _ in range(2)]
    fences = [execute(queues[number % 2], one.commands) for number in range(6)]
    assert all(fence.host_synchronize(LONG) for fence in fences)
    _check([one], xml)
    assert _overlapped(daemon) == before


def test_what_stands_between_two_inferences_keeps_its_place(context: Context, xml: Path) -> None:
    loaded = _several(context, xml, 2)
    queue = context.create_command_queue()
    wiped = fill(context, loaded[1].memory[0], 0)
    _forget_outputs(loaded)
    fences = [execute(queue, commands) for commands in (loaded[0].commands, wiped, loaded[1].commands)]
    assert all(fence.host_synchronize(LONG) for fence in fences)
    assert same(loaded[0].outputs, on_cpu(xml, _matrix(0)))
    assert same(loaded[1].outputs, on_cpu(xml, np.zeros((_SIZE, _SIZE), np.float32)))


def test_what_was_begun_and_cancelled_writes_nothing_after_its_end(context: Context, xml: Path) -> None:
    loaded = _several(context, xml, 4)
    queue = context.create_command_queue()
    for victim in (1, 2, 3):
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


def test_after_an_engine_reset_all_inferences_are_there(start_daemon: StartDaemon, xml: Path) -> None:
    daemon = start_daemon()
    context = Driver.open(daemon.socket).devices[0].create_context()
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

    inference, queue = SimpleNamespace(streams=4), SimpleNamespace(level=2)
    Overlap(Queues(), cast(Any, None), after_reset=True).start_more(cast(Any, queue), cast(Any, inference))
    with pytest.raises(AssertionError, match="candidates"):
        Overlap(Queues(), cast(Any, None), after_reset=False).start_more(
            cast(Any, queue), cast(Any, inference)
        )


def test_memory_that_is_imported_twice_is_known_as_one(daemon: Daemon, xml: Path) -> None:
    before = _overlapped(daemon)
    with Driver.open(daemon.socket) as driver:
        context = driver.devices[0].create_context()
        first, second = (Loaded(context, xml, config=_CONFIG) for _ in range(2))
        size = first.memory[-1].size
        shared = context.alloc_host(size, export=True)
        descriptor = context.export_memory(shared)
        try:
            alias = context.import_memory(descriptor)
        finally:
            os.close(descriptor)
        first.graph.set_argument_value(1, shared)
        second.graph.set_argument_value(0, alias)
        lists = [
            recorded(context, lambda c, one=one: c.append_graph_execute(one.graph))  # type: ignore[misc]
            for one in (first, second)
        ]
        first.feed(_matrix(0))
        queue = context.create_command_queue()
        (middle,) = on_cpu(xml, _matrix(0))
        expected = on_cpu(xml, middle)
        for _ in range(2):
            shared.view()[:] = 0
            fences = [execute(queue, commands) for commands in lists]
            assert all(fence.host_synchronize(LONG) for fence in fences)
            assert same(second.outputs, expected)
        assert _overlapped(daemon) == before


def test_memory_of_inferences_is_let_go_with_their_context(daemon: Daemon, driver: Driver, xml: Path) -> None:
    """At once: an engine that sleeps collects no garbage."""
    engine = daemon.engine().engine_pid
    with driver.devices[0].create_context() as first:
        _several(first, xml, 2)
    wait_until(lambda: daemon.memory_used() == 0)
    before = _segments(engine)
    with driver.devices[0].create_context() as context:
        loaded = _several(context, xml, 4)
        queue = context.create_command_queue()
        fences = [execute(queue, one.commands) for one in loaded]
        assert all(fence.host_synchronize(LONG) for fence in fences)
        assert _segments(engine) > before
    wait_until(lambda: daemon.memory_used() == 0)
    wait_until(lambda: _segments(engine) <= before, what="the segments unmapped")


def _segments(engine: int) -> int:
    """Memory of clients that the engine has mapped."""
    return Path(f"/proc/{engine}/maps").read_text().count("/memfd:")


@pytest.mark.parametrize(
    "kind", ["fail", "stall", *(pytest.param(kind, marks=pytest.mark.soak) for kind in ("ecc", "lost"))]
)
def test_an_early_inference_ends_with_its_turn_however_that_ends(
    start_daemon: StartDaemon, xml: Path, kind: str
) -> None:
    daemon = start_daemon(tdr_ms=2000)
    with Driver.open(daemon.socket) as driver:
        context = driver.devices[0].create_context()
        loaded = _several(context, xml, 2)
        queues = [context.create_command_queue() for _ in loaded]
        for queue, one in zip(queues, loaded, strict=True):
            run(queue, one.commands)
        before = _overlapped(daemon)
        # the second one begins beside the first and is hit at its turn
        number = faults.inject(kind, socket=daemon.socket, after=1)
        with daemon.stopped_engine():  # it sees both at once
            fences = [execute(queue, one.commands) for queue, one in zip(queues, loaded, strict=True)]
        assert _result(fences[0]) is ZeResult.SUCCESS
        assert _result(fences[1]) is not ZeResult.SUCCESS
        assert faults.status(daemon.socket)[0].id == number
        assert _overlapped(daemon) > before, "nothing began early: the test shows nothing"
        queue = context.create_command_queue()
        assert same(loaded[1].infer(queue, _matrix(7)), on_cpu(xml, _matrix(7)))
