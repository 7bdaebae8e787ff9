"""Handles of every kind, created and destroyed again and again: nothing grows on either side.

Some hundred cycles in every run; ten thousand with `-m soak`, which also prints the figures.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import mmap
import os
import statistics
import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from softnpu.driver import (
    Allocation,
    BuildLog,
    CommandQueue,
    Context,
    Driver,
    Graph,
    GraphDesc,
    GraphExtension,
    GraphSource,
)
from softnpu.driver.command_list_mutable import CommandListMutable, Mutation, MutationKind
from softnpu.driver.graph_properties import GraphFormat
from softnpu.driver.profiling import ProfilingPool
from tests.support.daemon import Daemon
from tests.support.leaks import base_descriptors_of, descriptors_of
from tests.support.models import write_scale
from tests.support.waiting import wait_until
from tests.support.work import LONG, barrier, recorded, run

_SOAK = 10_000
_BATCHES = 16
# Descriptors, mapped memory files, handles and objects are counted exactly. A heap moves by a page in a batch
# when nothing leaks: over 10,000 cycles this sees 23 bytes a cycle that stay, over 1,600 it sees 57.
_PAGE = 4096
# The heap of OpenVINO settles after some hundred loads; a short run has no time for so many.
_FEW = 64 << 10
_BYTES_PER_CYCLE = 16
_OBJECTS = 20


@dataclass
class Place:
    """A session in which cycles run, with what they need besides the handle that they make."""

    daemon: Daemon
    driver: Driver
    context: Context
    queue: CommandQueue
    memory: Allocation
    digits: Path
    scale: Path
    graph: Graph
    kept: list[object] = field(default_factory=list)
    """Where a cycle that is meant to leak leaves things."""

    def compile(self, xml: Path) -> Graph:
        """A graph of a model; from the second time on the compiler finds it in its cache."""
        with GraphSource.from_ir(xml) as source:
            return self.context.create_graph(source)


def soaking(config: pytest.Config) -> bool:
    """Whether the long runs were asked for."""
    return str(config.getoption("markexpr")) == "soak"


@pytest.fixture
def place(
    request: pytest.FixtureRequest, digits: Path, private_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Place]:
    """A session; in long runs with a daemon of its own, whose heap has no holes that could hide growth."""
    daemon: Daemon = request.getfixturevalue("daemon" if soaking(request.config) else "shared_daemon")
    monkeypatch.setenv("ZE_INTEL_NPU_CACHE_DIR", str(private_dir / "cache"))
    with Driver.open(daemon.socket) as driver:
        context = driver.devices[0].create_context()
        with GraphSource.from_ir(digits) as source:
            graph = context.create_graph(source, {"PERF_COUNT": "YES"})
        graph.initialize()
        for index, argument in enumerate(graph.meta.arguments):
            graph.set_argument_value(index, context.alloc_host(argument.byte_size))
        yield Place(
            daemon=daemon,
            driver=driver,
            context=context,
            queue=context.create_command_queue(),
            memory=context.alloc_host(4096),
            digits=digits,
            scale=write_scale(private_dir, 2.0, count=16),
            graph=graph,
        )


# ------------------------------------------------------------ what grows


@dataclass(frozen=True)
class Census:
    """What there is at a moment, counted exactly: by process, in the daemon's books, in this heap."""

    counts: dict[str, int]
    objects: int

    def more_than(self, before: Census) -> list[str]:
        """What has grown since."""
        grown = [
            f"{count - before.counts[name]:+} {name}"
            for name, count in self.counts.items()
            if count > before.counts[name]
        ]
        if self.objects > before.objects + _OBJECTS:
            grown.append(f"{self.objects - before.objects:+} Python objects of the client")
        return grown


def processes(place: Place) -> dict[str, int]:
    """Process ids of client, supervisor and engine. Compiler workers come and go."""
    engine = place.driver.status().engines[0].engine_pid
    return {"client": os.getpid(), "supervisor": place.driver.daemon_pid, "engine": engine}


def census(place: Place) -> Census:
    gc.collect()
    place.queue.synchronize(LONG)  # a queue keeps what a submission used until it is looked at again
    status = place.driver.status()
    engine = status.engines[0]
    (mine,) = (entry for entry in status.sessions if entry.session == place.driver.session)
    counts = {
        "sessions": status.session_count,
        "contexts": engine.contexts,
        "allocations": mine.allocations,
        "bytes of device memory": engine.memory_used,
        "queues": engine.queues,
        "graphs": engine.graphs,
        "images": engine.images,
    }
    for name, pid in processes(place).items():
        counts[f"descriptors of the {name}"] = descriptors_of(pid)
        counts[f"memory files mapped by the {name}"] = Path(f"/proc/{pid}/maps").read_text().count("/memfd:")
    counts["descriptors of the supervisor"] = base_descriptors_of(status.pid)
    return Census(counts, len(gc.get_objects()))


def heap(pid: int) -> int:
    """Bytes of anonymous memory: what no file is behind."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Anonymous:"):
            return int(line.split()[1]) * 1024
    raise AssertionError(f"process {pid} has no memory")


@dataclass(frozen=True)
class Outcome:
    """What a run of cycles has cost: bytes a cycle by process, and what is left behind."""

    slopes: dict[str, float]
    growth: list[str]
    seconds: float

    def check(self, cycles: int) -> None:
        """Fails when anything has grown."""
        batch = cycles / _BATCHES
        allowed = (_PAGE if batch >= 10 else _FEW) / batch + _BYTES_PER_CYCLE
        grown = [
            f"{slope:.0f} bytes a cycle in the {name}"
            for name, slope in self.slopes.items()
            if slope > allowed
        ]
        found = self.growth + grown
        assert not found, "; ".join(found)


def repeat(place: Place, cycle: Callable[[Place], None], cycles: int, settle_s: float = 10.0) -> Outcome:
    """Runs `cycle` until caches are warm, and then `cycles` times under observation."""
    batch = max(1, cycles // _BATCHES)
    for _ in range(2 * batch):
        cycle(place)
    pids, before = processes(place), census(place)
    sizes = {name: [heap(pid)] for name, pid in pids.items()}
    start = time.monotonic()
    for _ in range(_BATCHES):
        for _ in range(batch):
            cycle(place)
        gc.collect()
        for name, pid in pids.items():
            sizes[name].append(heap(pid))
    seconds = time.monotonic() - start
    with contextlib.suppress(AssertionError):
        # the engine lets go of an image a moment after the answer to the destruction of its last graph
        wait_until(lambda: not census(place).more_than(before), settle_s)
    # the median of the batches: a heap that grows once, by a step of some MiB, is no leak
    slopes = {
        name: statistics.median(after - now for now, after in itertools.pairwise(values)) / batch
        for name, values in sizes.items()
    }
    return Outcome(slopes, census(place).more_than(before), seconds / (batch * _BATCHES))


# ------------------------------------------------------------ the cycles


def fences(place: Place) -> None:
    with place.queue.create_fence() as fence, barrier(place.context) as commands:
        place.queue.execute_command_lists([commands], fence)
        assert fence.host_synchronize(LONG)


def event_pools(place: Place) -> None:
    with place.context.create_event_pool(100) as pool:
        pool.create_event(99)  # ended with its pool


def events(place: Place) -> None:
    with place.context.create_event() as event:
        run(place.queue, recorded(place.context, lambda commands: commands.append_signal_event(event)))
        assert event.query_status()


def command_lists(place: Place) -> None:
    with place.context.create_command_list() as commands:
        for value in range(10):
            commands.append_memory_fill(place.memory, bytes([value]), 64)
        commands.close()
        run(place.queue, commands)
        commands.reset()
        commands.append_barrier()
        commands.close()


def mutable_lists(place: Place) -> None:
    with (
        ProfilingPool(place.graph, 1) as pool,
        pool.create_query(0) as query,
        place.context.alloc_host(40) as output,
        place.context.create_command_list(mutable=True) as commands,
    ):
        assert isinstance(commands, CommandListMutable)
        number = commands.get_next_command_id()
        commands.append_graph_execute(place.graph, query)
        commands.close()
        commands.update_mutable_commands([Mutation(MutationKind.GRAPH_ARGUMENT, number, 1, output)])
        run(place.queue, commands)
        assert output.view(np.float32).sum() > 0.9


def immediate_lists(place: Place) -> None:
    with place.context.create_command_list_immediate() as commands:
        commands.append_memory_fill(place.memory, b"\x05", 64)
        assert commands.host_synchronize(LONG)


def queues(place: Place) -> None:
    with place.context.create_command_queue() as queue, barrier(place.context) as commands:
        run(queue, commands)


def allocations(place: Place) -> None:
    for allocate in (place.context.alloc_host, place.context.alloc_device, place.context.alloc_shared):
        with allocate(5000, alignment=4096) as memory:
            memory.view()[-1] = 1


def exported_memory(place: Place) -> None:
    with place.context.alloc_host(5000, export=True) as memory:
        fd = place.context.export_memory(memory)
        try:
            with place.context.import_memory(fd) as imported:
                memory.view()[0] = 7
                assert imported.view()[0] == 7
        finally:
            os.close(fd)


def contexts(place: Place) -> None:
    with place.driver.devices[0].create_context() as context:
        queue, memory = context.create_command_queue(), context.alloc_host(64)
        run(queue, recorded(context, lambda commands: commands.append_memory_fill(memory, b"\1", 64)))


def compiled_graphs(place: Place) -> None:
    place.compile(place.digits).destroy()


def native_graphs(place: Place) -> None:
    log = BuildLog()
    native = GraphDesc(GraphFormat.NATIVE, place.graph.get_native_binary2())
    with GraphExtension(place.context.device).create3(place.context, native, log) as graph:
        assert len(graph.get_native_binary2()) == len(place.graph.get_native_binary2())
    log.destroy()


def query_networks(place: Place) -> None:
    extension = GraphExtension(place.context.device)
    major, minor = extension.device_get_graph_properties().compiler_version
    xml, weights = place.digits.read_bytes(), place.digits.with_suffix(".bin").read_bytes()
    sizes = (struct.pack("<Q", len(part)) for part in (xml, weights))
    desc = GraphDesc(
        GraphFormat.NGRAPH_LITE,
        b"".join((struct.pack("<HHI", major, minor, 2), next(sizes), xml, next(sizes), weights)),
    )
    with extension.query_network_create(place.context, desc) as query:
        assert query.get_supported_layers().startswith("<")


def initialised_graphs(place: Place) -> None:
    """The engine loads the model and lets it go again: nobody else has this one."""
    with place.compile(place.scale) as graph:
        graph.initialize()


def profiling(place: Place) -> None:
    with ProfilingPool(place.graph, 4) as pool, pool.create_query(3) as query:
        run(place.queue, recorded(place.context, lambda c: c.append_graph_execute(place.graph, query)))
        assert query.layers()


def drivers(place: Place) -> None:
    with Driver.open(place.daemon.socket) as driver:
        context = driver.devices[0].create_context()
        context.create_command_queue()
        context.alloc_host(4096)  # the daemon takes back what a session leaves


def forgotten(place: Place) -> None:
    """Objects that nobody destroys are given back when Python collects them."""
    queue, memory = place.context.create_command_queue(), place.context.alloc_host(64)
    run(queue, recorded(place.context, lambda commands: commands.append_memory_fill(memory, b"\2", 64)))


CYCLES: dict[Callable[[Place], None], int] = {
    cycle: cycles
    for cycles, kinds in (
        (1600, (fences, event_pools, command_lists)),
        (400, (events, allocations, exported_memory, immediate_lists, queues, forgotten)),
        (160, (contexts, drivers, mutable_lists, profiling)),
        (32, (compiled_graphs, native_graphs, query_networks, initialised_graphs)),
    )
    for cycle in kinds
}
"""Cycles by kind, and how many of them a short run has time for."""


@pytest.mark.parametrize("cycle", CYCLES, ids=lambda cycle: cycle.__name__)
def test_nothing_grows(place: Place, cycle: Callable[[Place], None]) -> None:
    repeat(place, cycle, CYCLES[cycle]).check(CYCLES[cycle])


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("cycle", CYCLES, ids=lambda cycle: cycle.__name__)
def test_nothing_grows_in_ten_thousand_cycles(
    place: Place,
    cycle: Callable[[Place], None],
    pytestconfig: pytest.Config,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if not soaking(pytestconfig):
        pytest.skip("a long run: -m soak")
    outcome = repeat(place, cycle, _SOAK)
    with capsys.disabled():
        sizes = ", ".join(f"{name} {slope:+.1f}" for name, slope in outcome.slopes.items())
        print(f"\n{cycle.__name__}: {outcome.seconds * 1e6:.0f} us each; bytes a cycle: {sizes}")
    outcome.check(_SOAK)


# ------------------------------------------------------------ the check itself


def keeps_memory(place: Place) -> None:
    place.kept.append(place.context.alloc_host(64))


def keeps_a_queue(place: Place) -> None:
    if len(place.kept) < 200:
        place.kept.append(place.context.create_command_queue(slots=2))


def keeps_a_descriptor(place: Place) -> None:
    place.kept.append(open("/dev/null", "rb"))  # noqa: SIM115


def keeps_a_mapping(place: Place) -> None:
    with place.context.alloc_host(1 << 20) as memory:
        place.kept.append(memory.block.mapping)


def keeps_an_object(place: Place) -> None:
    place.kept.append([place])


def keeps_bytes(place: Place) -> None:
    # pages of its own: bytes of the heap may fit into what an earlier test of this process has left free
    pages = mmap.mmap(-1, 16384, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    pages.write(bytes(range(256)) * 64)
    place.kept.append(pages)


@pytest.mark.parametrize(
    ("leak", "told"),
    [
        (keeps_memory, r"\+160 allocations; \+\d+ bytes of device memory"),
        (keeps_a_queue, "queues"),
        (keeps_a_descriptor, "descriptors of the client"),
        (keeps_a_mapping, "memory files mapped by the client"),
        (keeps_an_object, "Python objects"),
        (keeps_bytes, "bytes a cycle in the client"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_the_check_sees_what_stays(place: Place, leak: Callable[[Place], None], told: str) -> None:
    outcome = repeat(place, leak, 160, settle_s=0.1)
    place.kept.clear()
    with pytest.raises(AssertionError, match=told):
        outcome.check(160)
