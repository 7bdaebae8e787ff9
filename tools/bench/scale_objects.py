"""`bench scale`: the objects of a session, created, used and destroyed by the hundred."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from softnpu.driver import CommandList, CommandQueue, Context, Driver, Event, Fence, Graph, GraphSource
from softnpu.driver.cache_options import ENV_CACHE_DIR
from softnpu.emulator.supervisor.limits import ResourceLimits
from softnpu.tools.bench.load import variable
from softnpu.tools.bench.rounds import median
from softnpu.tools.bench.scale_point import Point
from softnpu.tools.bench.submission import wait
from softnpu.tools.demo.digits import model_path
from softnpu.tools.shared.private_daemon import private_session

_OBJECTS: Final = 500
"""In all rounds of a size."""
_LEAST_ROUNDS, _MOST_ROUNDS = 3, 50
_LIMITS: Final = ResourceLimits(session_contexts=2000, session_queues=2000, session_graphs=2000)
_CONFIG: Final = {"INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY"}


def measure_queues(sizes: Sequence[int]) -> Iterator[Point]:
    """Yield the cost of a queue: each has work at the same time as all others."""
    with private_session(limits=_LIMITS) as driver:
        context = driver.devices[0].create_context()
        commands = _barrier(context)

        def use(queues: Sequence[CommandQueue]) -> None:
            for queue in queues:
                queue.execute_command_lists([commands])
            for queue in queues:
                queue.synchronize()

        yield from _measure(sizes, context.create_command_queue, use)


def measure_fences(sizes: Sequence[int]) -> Iterator[Point]:
    """Yield the cost of a fence, with which an empty command is submitted and waited for."""
    with private_session() as driver:
        context = driver.devices[0].create_context()
        commands, queue = _barrier(context), context.create_command_queue()

        def use(fences: Sequence[Fence]) -> None:
            for fence in fences:
                queue.execute_command_lists([commands], fence)
            for fence in fences:
                wait(fence, "fence")

        yield from _measure(sizes, queue.create_fence, use)


def measure_events(sizes: Sequence[int]) -> Iterator[Point]:
    """Yield the cost of an event, in a pool of its own, that the device signals and the host waits for."""
    with private_session() as driver:
        context = driver.devices[0].create_context()
        queue = context.create_command_queue()

        def use(events: Sequence[Event]) -> None:
            commands = context.create_command_list()
            for event in events:
                commands.append_signal_event(event)
            commands.close()
            queue.execute_command_lists([commands])
            for event in events:
                event.host_synchronize()
            queue.synchronize()

        yield from _measure(sizes, context.create_event, use)


def measure_lists(sizes: Sequence[int]) -> Iterator[Point]:
    """Yield the cost of a list with an empty command, executed by one queue."""
    with private_session() as driver:
        context = driver.devices[0].create_context()
        queue = context.create_command_queue()

        def use(lists: Sequence[CommandList]) -> None:
            for each in lists:
                queue.execute_command_lists([each])
            queue.synchronize()

        yield from _measure(sizes, lambda: _barrier(context), use)


def measure_contexts(sizes: Sequence[int]) -> Iterator[Point]:
    """Yield the cost of a context with a queue, which runs an empty command while all others do."""
    with private_session(limits=_LIMITS) as driver:
        _keep(driver)

        def use(contexts: Sequence[Context]) -> None:
            submitted = [(context.create_command_queue(), _barrier(context)) for context in contexts]
            for queue, commands in submitted:
                queue.execute_command_lists([commands])
            for queue, _ in submitted:
                queue.synchronize()

        yield from _measure(sizes, driver.devices[0].create_context, use)


def measure_graphs(sizes: Sequence[int]) -> Iterator[Point]:
    """Yield the cost of a graph, of one cached model that stays on the device: created and initialised."""
    with (
        tempfile.TemporaryDirectory(prefix="softnpu-bench-") as folder,
        variable(ENV_CACHE_DIR, folder),
        private_session(limits=_LIMITS) as driver,
    ):
        context = driver.devices[0].create_context()

        def create() -> Graph:
            with GraphSource.from_ir(Path(model_path())) as source:
                return context.create_graph(source, _CONFIG)

        def use(graphs: Sequence[Graph]) -> None:
            for graph in graphs:
                graph.initialize()

        kept = create()
        kept.initialize()
        yield from _measure(sizes, create, use)


def _barrier(context: Context) -> CommandList:
    commands = context.create_command_list()
    commands.append_barrier()
    commands.close()
    return commands


def _keep(driver: Driver) -> None:
    """Keep the device in use: the last context that ends would end more than itself."""
    driver.devices[0].create_context().create_command_queue()


def _measure(
    sizes: Sequence[int], create: Callable[[], Any], use: Callable[[Sequence[Any]], object]
) -> Iterator[Point]:
    """Yield the cost of each of so many objects that exist at the same time; medians of some rounds."""
    clock = time.perf_counter
    for size in sizes:
        times: dict[str, list[float]] = {"created": [], "used": [], "destroyed": []}
        for number in range(1 + min(_MOST_ROUNDS, max(_LEAST_ROUNDS, _OBJECTS // size))):
            begun = clock()
            objects = [create() for _ in range(size)]
            created = clock()
            use(objects)
            used = clock()
            for each in objects:
                each.destroy()
            destroyed = clock()
            if number:  # the first round pays for memory that is kept
                times["created"].append(created - begun)
                times["used"].append(used - created)
                times["destroyed"].append(destroyed - used)
            del each
        for cost, seconds in times.items():
            yield Point(cost, size, median(seconds) / size * 1e6, "us")
