"""Handles of every kind, created and destroyed repeatedly: nothing grows on either side.

A short run in every suite; ten thousand cycles of each kind with `-m soak`.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import mmap
import os
import statistics
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from softnpu.driver import BuildLog, Context, Driver, Graph, GraphDesc, GraphExtension, GraphSource
from softnpu.driver.command_list_mutable import CommandListMutable, Mutation, MutationKind
from softnpu.driver.graph_properties import GraphFormat
from softnpu.driver.profiling import ProfilingPool
from tests.support.daemon import Daemon
from tests.support.leaks import base_descriptors_of, descriptors_of
from tests.support.models import write_scale
from tests.support.waiting import wait_until
from tests.support.work import LONG, barrier, recorded, run

_SOAK = 10_000
_BATCHES = 8
# Descriptors, mapped memory files, handles and objects are counted exactly. A heap moves by a page per batch
# even without a leak, and OpenVINO's settles only after some hundred loads.
_PAGE = 4096
_UNSETTLED = 64 << 10
_BYTES_PER_CYCLE = 16
_OBJECTS = 20


@dataclass
class Session:
    """A session for cycles, with everything they need besides the handle that they create."""

    daemon: Daemon
    driver: Driver
    context: Context
    digits: Path
    scale: Path
    graph: Graph
    kept: list[object] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.queue = self.context.create_command_queue()
        self.memory = self.context.alloc_host(4096)
        self.extension = GraphExtension(self.context.device)

    def compile(self, xml: Path) -> Graph:
        """Return a graph of a model; after the first time, the compiler finds it in its cache."""
        with GraphSource.from_ir(xml) as source:
            return self.context.create_graph(source)


def soaking(config: pytest.Config) -> bool:
    """Whether the long runs were requested."""
    return str(config.getoption("markexpr")) == "soak"


@pytest.fixture
def session(
    request: pytest.FixtureRequest, digits: Path, private_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Session]:
    """Long runs get a private daemon, whose heap has no holes that could hide growth."""
    daemon: Daemon = request.getfixturevalue("daemon" if soaking(request.config) else "shared_daemon")
    monkeypatch.setenv("ZE_INTEL_NPU_CACHE_DIR", str(private_dir / "cache"))
    with Driver.open(daemon.socket) as driver:
        context = driver.devices[0].create_context()
        with GraphSource.from_ir(digits) as source:
            graph = context.create_graph(source, {"PERF_COUNT": "YES"})
        graph.initialize()
        for index, argument in enumerate(graph.meta.arguments):
            graph.set_argument_value(index, context.alloc_host(argument.byte_size))
        yield Session(daemon, driver, context, digits, write_scale(private_dir, 2.0, count=16), graph)


def processes(session: Session) -> dict[str, int]:
    """Process ids. Compiler workers come and go."""
    engine = session.driver.status().engines[0].engine_pid
    return {"client": os.getpid(), "supervisor": session.driver.daemon_pid, "engine": engine}


def census(session: Session) -> dict[str, int]:
    """Exact counts: by process, by the daemon, in this heap."""
    gc.collect()
    session.queue.synchronize(LONG)  # a queue keeps the objects of a submission until its results are read
    status = session.driver.status()
    engine = status.engines[0]
    (mine,) = (entry for entry in status.sessions if entry.session == session.driver.session)
    counts = {
        "sessions": status.session_count,
        "contexts": engine.contexts,
        "allocations": mine.allocations,
        "bytes of device memory": engine.memory_used,
        "queues": engine.queues,
        "graphs": engine.graphs,
        "images": engine.images,
    }
    for name, pid in processes(session).items():
        counts[f"descriptors of the {name}"] = descriptors_of(pid)
        counts[f"memory files mapped by the {name}"] = Path(f"/proc/{pid}/maps").read_text().count("/memfd:")
    counts["descriptors of the supervisor"] = base_descriptors_of(status.pid)
    counts["Python objects of the client"] = len(gc.get_objects())
    return counts


def growth(before: dict[str, int], now: dict[str, int]) -> list[str]:
    """Return what has grown, by name."""
    allowed = {"Python objects of the client": _OBJECTS}
    return [
        f"{now[name] - count:+} {name}"
        for name, count in before.items()
        if now[name] > count + allowed.get(name, 0)
    ]


def heap(pid: int) -> int:
    """Bytes of anonymous memory."""
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return int(text.partition("\nAnonymous:")[2].split()[0]) * 1024


def leaks(session: Session, cycle: Callable[[Session], None], cycles: int, settle_s: float = 10.0) -> str:
    """Run `cycle` until caches are warm, then `cycles` times under observation; return what has grown."""
    batch = max(1, cycles // _BATCHES)
    for _ in range(2 * batch):
        cycle(session)
    pids, before = processes(session), census(session)
    sizes = {name: [heap(pid)] for name, pid in pids.items()}
    for _ in range(_BATCHES):
        for _ in range(batch):
            cycle(session)
        gc.collect()
        for name, pid in pids.items():
            sizes[name].append(heap(pid))
    with contextlib.suppress(AssertionError):
        # the engine unloads an image shortly after acknowledging the destruction of its last graph
        wait_until(lambda: not growth(before, census(session)), settle_s)
    allowed = (_PAGE if batch >= 10 else _UNSETTLED) / batch + _BYTES_PER_CYCLE
    found = growth(before, census(session))
    for name, values in sizes.items():
        # the median of the batches: a heap that grows once, by some MiB, is not a leak
        slope = statistics.median(after - now for now, after in itertools.pairwise(values)) / batch
        if slope > allowed:
            found.append(f"{slope:.0f} bytes a cycle in the {name}")
    return "; ".join(found)


# ------------------------------------------------------------ the cycles


def signals(session: Session) -> None:
    with session.queue.create_fence() as fence, barrier(session.context) as commands:
        session.queue.execute_command_lists([commands], fence)
        assert fence.host_synchronize(LONG)
    with session.context.create_event_pool(100) as pool:
        event = pool.create_event(99)  # destroyed with its pool
        run(session.queue, recorded(session.context, lambda c: c.append_signal_event(event)))


def lists(session: Session) -> None:
    with session.context.create_command_list() as commands:
        commands.append_memory_fill(session.memory, b"\x05", 64)
        commands.close()
        run(session.queue, commands)
        commands.reset()
        commands.append_barrier()
        commands.close()
    with session.context.create_command_list_immediate() as immediate:
        immediate.append_memory_fill(session.memory, b"\x05", 64)
        assert immediate.host_synchronize(LONG)


def allocations(session: Session) -> None:
    context = session.context
    for allocate in (context.alloc_host, context.alloc_device, context.alloc_shared):
        with allocate(5000, alignment=4096) as memory:
            memory.view()[-1] = 1
    with context.alloc_host(5000, export=True) as memory:
        fd = context.export_memory(memory)
        with context.import_memory(fd) as imported:
            memory.view()[0] = 7
            assert imported.view()[0] == 7
        os.close(fd)


def sessions(session: Session) -> None:
    """Let owners destroy: queue and memory, their context, the session."""
    with Driver.open(session.daemon.socket) as driver:
        context = driver.devices[0].create_context()
        queue, memory = context.create_command_queue(), context.alloc_host(64)
        run(queue, recorded(context, lambda c: c.append_memory_fill(memory, b"\2", 64)))


def profiling(session: Session) -> None:
    with (
        ProfilingPool(session.graph, 4) as pool,
        pool.create_query(3) as query,
        session.context.alloc_host(40) as output,
        session.context.create_command_list(mutable=True) as commands,
    ):
        assert isinstance(commands, CommandListMutable)
        number = commands.get_next_command_id()
        commands.append_graph_execute(session.graph, query)
        commands.close()
        commands.update_mutable_commands([Mutation(MutationKind.GRAPH_ARGUMENT, number, 1, output)])
        run(session.queue, commands)
        assert query.layers()
        assert output.view(np.float32).sum() > 0.9


def graphs(session: Session) -> None:
    session.compile(session.digits).destroy()
    log = BuildLog()
    native = GraphDesc(GraphFormat.NATIVE, session.graph.get_native_binary2())
    with session.extension.create3(session.context, native, log) as graph:
        assert len(graph.get_native_binary2()) == len(session.graph.get_native_binary2())
    log.destroy()
    with session.compile(session.scale) as graph:
        graph.initialize()  # the engine loads the model and unloads it: no other graph has this one


def query_networks(session: Session) -> None:
    compiler = session.extension.device_get_graph_properties().compiler_version
    xml, weights = session.digits.read_bytes(), session.digits.with_suffix(".bin").read_bytes()
    head = struct.pack("<HHIQ", *compiler, 2, len(xml))
    desc = GraphDesc(GraphFormat.NGRAPH_LITE, head + xml + struct.pack("<Q", len(weights)) + weights)
    with session.extension.query_network_create(session.context, desc) as query:
        assert query.get_supported_layers().startswith("<")


CYCLES: dict[Callable[[Session], None], int] = {
    signals: 160, lists: 80, allocations: 80, sessions: 24, profiling: 24, graphs: 8, query_networks: 8,
}  # fmt: skip
"""Cycles by kind, and how many of them a short run can afford."""


@pytest.mark.parametrize("cycle", CYCLES, ids=lambda cycle: cycle.__name__)
def test_nothing_grows(session: Session, cycle: Callable[[Session], None]) -> None:
    assert not leaks(session, cycle, CYCLES[cycle])


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("cycle", CYCLES, ids=lambda cycle: cycle.__name__)
def test_nothing_grows_in_ten_thousand_cycles(
    session: Session, cycle: Callable[[Session], None], pytestconfig: pytest.Config
) -> None:
    if not soaking(pytestconfig):
        pytest.skip("a long run: -m soak")
    assert not leaks(session, cycle, _SOAK)


# ------------------------------------------------------------ the check itself


def keeps_much(session: Session) -> None:
    """Leak device memory, a descriptor, and bytes."""
    # whole pages: heap bytes may fit into holes left by an earlier test of this process
    pages = mmap.mmap(-1, 16384, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    pages.write(bytes(range(256)) * 64)
    session.kept += [session.context.alloc_host(64), open("/dev/null", "rb"), pages]  # noqa: SIM115


def test_the_check_detects_leaks(session: Session) -> None:
    found = leaks(session, keeps_much, 80, settle_s=0.0)
    for told in ("+80 allocations", "+80 descriptors of the client", "bytes a cycle in the client"):
        assert told in found
    for kept in session.kept:
        getattr(kept, "close", lambda: None)()
