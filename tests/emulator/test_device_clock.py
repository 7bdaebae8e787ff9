"""Devices with the modelled clock: their times, and the pacing of a paced device."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from softnpu.driver import Context, GraphSource, ZeResult, faults
from softnpu.driver.profiling import ProfilingPool
from softnpu.emulator.interface.messages import Clock
from tests.conftest import OpenContext, StartContext
from tests.support.models import Array, on_cpu, write_chain
from tests.support.waiting import wait_until
from tests.support.work import LONG, Loaded, execute, failure, fill, lost, recorded, run, same, stamp

_MS = 1_000_000
_DATA = np.random.default_rng(1).random((64, 64), np.float32)
_PROFILED = {"PERF_COUNT": "YES"}


class Times(NamedTuple):
    """A program's view of its device's clock: timestamps in ticks, the profile in nanoseconds."""

    begin: int
    end: int
    layers: tuple[tuple[str, int], ...]
    device: int


@pytest.fixture
def xml(private_dir: Path) -> Path:
    return write_chain(private_dir, 64, 4)


@pytest.fixture
def expected(xml: Path) -> list[Array]:
    return on_cpu(xml, _DATA)


def _times(context: Context, xml: Path, expected: list[Array]) -> Times:
    with GraphSource.from_ir(xml) as source:
        graph = context.create_graph(source, _PROFILED)
    graph.initialize()
    memory = [context.alloc_host(argument.byte_size) for argument in graph.meta.arguments]
    for index, each in enumerate(memory):
        graph.set_argument_value(index, each)
    query = ProfilingPool(graph, 1).create_query(0)
    profiled = recorded(context, lambda c: c.append_graph_execute(graph, profiling_query=query))
    queue = context.create_command_queue()
    stamps = [context.alloc_host(4096) for _ in range(2)]
    memory[0].view(_DATA.dtype, _DATA.shape)[...] = _DATA
    run(queue, stamp(context, stamps[0]))
    for _ in range(3):
        run(queue, profiled)
    run(queue, fill(context, context.alloc_host(4096), 1))
    run(queue, stamp(context, stamps[1]))
    assert same([memory[1].view(_DATA.dtype, _DATA.shape).copy()], expected)
    begin, end = (int(each.view(np.dtype(np.uint64), (1,))[0]) for each in stamps)
    layers = tuple((layer.name, layer.duration_ns) for layer in query.layers())
    return Times(begin, end, layers, context.device.get_global_timestamps()[1])


def test_modelled_times_are_the_same_for_the_same_submissions(
    start_context: StartContext, xml: Path, expected: list[Array], private_dir: Path
) -> None:
    """Times are independent of the host, and the profile is the predicted one."""
    runs = []
    for number in range(2):
        daemon, context = start_context(clock=Clock.DEVICE, socket=str(private_dir / f"{number}.sock"))
        runs.append(_times(context, xml, expected))
        engine = daemon.engine()
        assert (engine.late, engine.unmodelled) == (0, 0)
    first, second = runs
    assert first == second
    inference = sum(ns for _, ns in first.layers)
    tick = context.device.info.timer_ns_per_tick
    assert first.begin == 0
    assert first.layers
    assert abs((first.end - first.begin) * tick - 3 * inference) < inference  # a fill beside them
    assert first.device == first.end


def test_the_host_clock_is_shown_unless_asked_otherwise(
    start_context: StartContext, xml: Path, expected: list[Array]
) -> None:
    _, context = start_context()
    before = time.monotonic_ns()
    times = _times(context, xml, expected)
    tick = context.device.info.timer_ns_per_tick
    assert before <= (times.begin + 1) * tick <= (times.end + 1) * tick <= time.monotonic_ns() + tick
    assert context.device.info.clock == Clock.HOST


def test_a_paced_device_takes_its_time_and_others_run_meanwhile(
    start_context: StartContext, open_context: OpenContext, xml: Path
) -> None:
    daemon, context = start_context(clock=Clock.PACED, inference_us=600_000_000)
    loaded = Loaded(context, xml)
    loaded.feed(_DATA)
    fence = execute(context.create_command_queue(), loaded.commands)
    other = open_context(daemon)
    memory = other.alloc_host(4096)
    run(other.create_command_queue(), fill(other, memory, 7))
    assert bytes(memory.view()[:8]) == bytes([7] * 8)
    assert not fence.query_status()  # ten minutes on the modelled device have not passed
    daemon.kill_engine()
    daemon.wait_restarted(1)
    run(other.create_command_queue(), fill(other, memory, 8))
    assert not fence.query_status()


def test_a_paced_inference_never_ends_before_its_time(
    start_context: StartContext, xml: Path, expected: list[Array]
) -> None:
    daemon, context = start_context(clock=Clock.PACED, inference_us=20_000)
    loaded = Loaded(context, xml)
    queue = context.create_command_queue()
    begin = time.monotonic_ns()
    for _ in range(5):
        assert same(loaded.infer(queue, _DATA), expected)
    fences = [execute(queue, loaded.commands) for _ in range(5)]
    assert all(fence.host_synchronize(LONG) for fence in fences)
    assert time.monotonic_ns() - begin >= 10 * 20 * _MS
    engine = daemon.engine()
    assert engine.device_clock_ns == 10 * 20 * _MS
    assert engine.busy_ns >= 10 * 20 * _MS


def test_sessions_share_the_modelled_device_by_its_tiles(
    start_context: StartContext, open_context: OpenContext, xml: Path
) -> None:
    """With half the tiles each, both run concurrently on the modelled clock; with all tiles, in sequence."""
    daemon, context = start_context(clock=Clock.DEVICE, inference_us=1000)
    contexts = [context, open_context(daemon)]
    clock = 0
    for tiles, expected_ms in (("3", 10), ("6", 20)):
        for each, queue in [(each, each.create_command_queue()) for each in contexts]:
            loaded = Loaded(each, xml, config={"NPU_TILES": tiles})
            loaded.feed(_DATA)
            for _ in range(10):
                run(queue, loaded.commands)
        clock, before = daemon.engine().device_clock_ns, clock
        assert clock - before == expected_ms * _MS


def test_a_cancelled_inference_of_a_paced_device_ends_at_once(start_context: StartContext, xml: Path) -> None:
    _, context = start_context(clock=Clock.PACED, inference_us=600_000_000)
    loaded, queue = Loaded(context, xml), context.create_command_queue()
    for _ in range(2):
        fence = execute(queue, loaded.commands)
        assert not fence.host_synchronize(300 * _MS)
        fence.cancel()
        failure(partial(fence.host_synchronize, LONG), ZeResult.ERROR_NOT_AVAILABLE)
    run(queue, fill(context, context.alloc_host(64), 1))


def test_a_dropped_doorbell_is_not_that_of_a_paced_inference(start_context: StartContext, xml: Path) -> None:
    _, context = start_context(clock=Clock.PACED, inference_us=2_000_000, tdr_ms=300)
    loaded = Loaded(context, xml)
    paced, other = context.create_command_queue(), context.create_command_queue()
    ends = execute(paced, loaded.commands)
    assert not ends.host_synchronize(300 * _MS)
    wait_until(lambda: other.describe().asleep, what="an engine that sleeps")
    faults.inject("drop-doorbell")
    assert "doorbell" in lost(execute(other, fill(context, context.alloc_host(64), 1))).info.found
    assert ends.host_synchronize(LONG)
    assert not paced.lost
