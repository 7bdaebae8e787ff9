"""Handles: destroyed once, loud afterwards, given back when forgotten; memory lives as long as it is used."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from pathlib import Path
from threading import Timer

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as ops

from softnpu.driver import Context, Driver, GraphSource, ZeResult
from softnpu.driver.handle import Handle
from tests.conftest import RunPython
from tests.support.daemon import Daemon
from tests.support.leaks import descriptors_of
from tests.support.waiting import wait_until
from tests.support.work import LONG, SECOND, Loaded, barrier, check_works, execute, failure, recorded, run

_NULL = ZeResult.ERROR_INVALID_NULL_HANDLE


def _calls(context: Context, digits: Path) -> dict[str, tuple[Handle, list[Callable[[], object]]]]:
    """Of every class one handle, and calls that use it."""
    queue, event, memory = context.create_command_queue(), context.create_event(), context.alloc_host(64)
    fence, commands = queue.create_fence(), barrier(context)
    with GraphSource.from_ir(digits) as source:
        graph = context.create_graph(source)
    spare = context.create_command_queue()
    return {
        "CommandQueue": (
            queue,
            [
                lambda: queue.execute_command_lists([commands]),
                queue.synchronize,
                queue.create_fence,
                lambda: queue.set_workload_type(True),
            ],
        ),
        "Event": (event, [event.host_signal, event.host_reset, event.query_status, event.host_synchronize]),
        "Allocation": (
            memory,
            [memory.view, lambda: context.create_command_list().append_memory_fill(memory, b"x", 1)],
        ),
        "Fence": (
            fence,
            [
                fence.query_status,
                fence.host_synchronize,
                fence.reset,
                lambda: queue.execute_command_lists([commands], fence),
            ],
        ),
        "CommandList": (
            commands,
            [
                commands.append_barrier,
                commands.close,
                commands.reset,
                lambda: spare.execute_command_lists([commands]),
            ],
        ),
        "Graph": (
            graph,
            [
                graph.initialize,
                lambda: graph.set_argument_value(0, memory),
                lambda: context.create_command_list().append_graph_execute(graph),
            ],
        ),
    }


_KINDS = ["CommandQueue", "Event", "Allocation", "Fence", "CommandList", "Graph"]


@pytest.mark.parametrize("kind", _KINDS)
def test_use_after_destroy_is_loud_by_name(context: Context, digits: Path, kind: str) -> None:
    handle, calls = _calls(context, digits)[kind]

    handle.destroy()
    handle.destroy()

    assert handle.destroyed
    for call in calls:
        assert kind in failure(call, _NULL).info.object


@pytest.mark.parametrize("kind", _KINDS)
def test_use_after_the_context_is_destroyed_is_loud_by_name(
    context: Context, digits: Path, kind: str
) -> None:
    handle, calls = _calls(context, digits)[kind]
    other = context.device.create_context()

    context.destroy()

    for call in calls:
        failure(call, _NULL)
    handle.destroy()
    check_works(other)


def test_nothing_of_a_dead_context_touches_a_descriptor_that_took_its_place(
    context: Context, tmp_path: Path
) -> None:
    # the doorbell's number is free again: an event that rang it would write into this file
    event, queue, commands = context.create_event(), context.create_command_queue(), barrier(context)
    context.destroy()
    files = [open(tmp_path / f"{number}", "w+b") for number in range(20)]  # noqa: SIM115
    failure(event.host_signal, _NULL)
    failure(lambda: queue.execute_command_lists([commands]), _NULL)
    for file in files:
        assert os.fstat(file.fileno()).st_size == 0
        file.close()


def test_a_destroyed_driver_ends_everything(daemon: Daemon) -> None:
    before = descriptors_of(os.getpid())
    driver = Driver.open(daemon.socket)
    context = driver.devices[0].create_context()
    queue, memory = context.create_command_queue(), context.alloc_host(64)
    view = memory.view()

    driver.destroy()

    for call in (queue.synchronize, context.query_memory, driver.status, memory.view):
        failure(call, _NULL)
    view[:] = 1
    wait_until(lambda: daemon.memory_used() == 0)
    del context, queue, memory, view, call
    gc.collect()
    assert descriptors_of(os.getpid()) == before


def test_handles_are_context_managers(context: Context) -> None:
    with context.create_command_queue() as queue, queue.create_fence() as fence:
        assert not fence.query_status()
    assert queue.destroyed
    assert fence.destroyed


def test_objects_that_are_forgotten_are_given_back(driver: Driver, digits: Path) -> None:
    device = driver.devices[0]

    def make() -> None:
        context = device.create_context()
        for _ in range(3):
            loaded = Loaded(context, digits)
            run(context.create_command_queue(), loaded.commands)
            context.create_event()
            context.alloc_host(1 << 20)

    make()
    gc.collect()

    def clean() -> bool:
        engine = device.get_status()
        held = (engine.contexts, engine.queues, engine.graphs, engine.images, engine.memory_used)
        return held == (0, 0, 0, 0, 0)

    wait_until(clean)


def test_a_forgotten_queue_finishes_nothing_and_frees_nothing_too_early(context: Context) -> None:
    gate = context.create_event()
    queue = context.create_command_queue()
    memory = context.alloc_host(1 << 20)
    commands = context.create_command_list()
    commands.append_wait_on_events([gate])
    commands.append_memory_fill(memory, b"\1", 1 << 20)
    commands.close()
    queue.execute_command_lists([commands])
    del queue, memory, commands
    gc.collect()
    gate.host_signal()
    other = context.alloc_host(1 << 20)
    check_works(context)
    assert not other.view().any()


def test_a_queue_may_be_forgotten_inside_of_a_request(context: Context) -> None:
    """Python may collect it there; it is destroyed later, and the daemon has its ring until then."""
    queue = context.create_command_queue()
    with context.connection.section():
        del queue
        gc.collect()
        context.create_event()
    check_works(context)


def test_nothing_is_written_any_more_when_a_queue_was_destroyed(context: Context, private_dir: Path) -> None:
    """Not even by the layer that runs."""
    matrix = ops.parameter([2048, 2048], ov.Type.f32, name="matrix")
    ov.save_model(
        ov.Model([ops.matmul(matrix, matrix, False, False)], [matrix], "square"), private_dir / "m.xml"
    )
    loaded = Loaded(context, private_dir / "m.xml")
    given, result = (memory.view(np.float32) for memory in loaded.memory)
    given[:] = 1
    other = context.create_command_queue()
    run(other, loaded.commands)
    for _ in range(3):
        queue, begun = context.create_command_queue(), context.create_event()
        queue.execute_command_lists(
            [recorded(context, lambda c, begun=begun: c.append_signal_event(begun)), loaded.commands]
        )
        assert begun.host_synchronize(LONG)
        queue.destroy()
        result[:] = 7
        run(other, barrier(context))
        assert np.all(result == 7)


def test_an_event_is_waited_for_though_the_list_that_signals_it_was_forgotten(context: Context) -> None:
    gate, done, queue = context.create_event(), context.create_event(), context.create_command_queue()
    execute(queue, recorded(context, lambda c: c.append_barrier(done, [gate])))
    gc.collect()
    assert not done.host_synchronize(SECOND // 50)
    Timer(0.1, gate.host_signal).start()
    assert done.host_synchronize(LONG)


def test_no_event_takes_the_place_of_a_forgotten_one_that_is_in_flight(context: Context) -> None:
    queue, pool = context.create_command_queue(), context.create_event_pool(2)
    gate, forgotten = pool.create_event(0), pool.create_event(1)
    commands = context.create_command_list()
    commands.append_barrier(forgotten, [gate])
    commands.close()
    fence = execute(queue, commands)
    del forgotten, commands
    gc.collect()
    failure(lambda: pool.create_event(1), ZeResult.ERROR_INVALID_ARGUMENT)
    gate.host_signal()
    assert fence.host_synchronize(LONG)
    queue.synchronize()  # lets go of what has ended
    del fence
    gc.collect()
    assert not pool.create_event(1).query_status()


def test_memory_lives_as_long_as_a_view(context: Context) -> None:
    memory = context.alloc_host(4096)
    view = memory.view(np.float32)
    part = view[10:20]
    before = context.query_memory()[1]
    part[:] = 1.5

    memory.destroy()
    del view, memory

    others = [context.alloc_host(4096) for _ in range(50)]
    for other in others:
        other.view()[:] = 0xFF
    assert np.all(part == np.float32(1.5)), "nobody was given its place"
    del part, others, other
    gc.collect()
    assert context.query_memory()[1] == before - 4096


def test_memory_lives_as_long_as_a_submission_uses_it(context: Context) -> None:
    queue, gate = context.create_command_queue(), context.create_event()
    target, source = context.alloc_host(4096), context.alloc_host(4096)
    source.view()[:] = 9
    commands = context.create_command_list()
    commands.append_wait_on_events([gate])
    commands.append_memory_copy(target, source, 4096)
    commands.close()
    fence = execute(queue, commands)
    commands.destroy()
    source.destroy()
    del source, commands
    gc.collect()
    crowd = [context.alloc_host(4096) for _ in range(20)]
    for entry in crowd:
        entry.view()[:] = 1

    gate.host_signal()

    assert fence.host_synchronize(LONG)
    assert np.all(target.view() == 9)


@pytest.mark.parametrize(
    ("dtype", "shape", "offset"),
    [
        (np.uint8, (4097,), 0),
        (np.float32, (1024,), 4),
        (np.float32, (-1,), 0),
        (np.uint8, None, 4097),
        (np.uint8, None, -1),
    ],
)
def test_a_view_outside_the_memory_is_refused(
    context: Context, dtype: type, shape: tuple[int] | None, offset: int
) -> None:
    memory = context.alloc_host(4096)
    failure(lambda: memory.view(dtype, shape, offset), ZeResult.ERROR_INVALID_SIZE)


def test_fences_and_events_are_used_again(context: Context) -> None:
    queue, commands = context.create_command_queue(), barrier(context)
    run(queue, commands)
    _, before = context.query_memory()
    for _ in range(500):
        fence = execute(queue, commands)
        assert fence.host_synchronize(LONG)
        del fence
    gc.collect()
    assert context.query_memory()[1] <= before + 8192


_FORK = """
    driver = Driver.open(Path(given["socket"]))
    context = driver.devices[0].create_context()
    queue, event, memory = context.create_command_queue(), context.create_event(), context.alloc_host(64)
    commands = context.create_command_list()
    commands.append_memory_fill(memory, b"\\x05", 64)
    commands.close()
    fence = queue.create_fence()
    queue.execute_command_lists([commands], fence)
    assert fence.host_synchronize(10**10)
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        results = []
        calls = {
            "status": driver.status,
            "context": driver.devices[0].create_context,
            "alloc": lambda: context.alloc_host(64),
            "queue": context.create_command_queue,
            "execute": lambda: queue.execute_command_lists([commands], fence),
            "synchronize": queue.synchronize,
            "fence": fence.host_synchronize,
            "event": event.host_signal,
            "view": memory.view,
        }
        for name, call in calls.items():
            try:
                call()
                results.append([name, 0, ""])
            except ZeError as error:
                results.append([name, error.result, str(error)])
        for handle in (memory, fence, event, commands, queue, context, driver):
            handle.destroy()
        import gc
        del handle, memory, fence, event, commands, queue, context, driver, calls, call
        gc.collect()
        with Driver.open(Path(given["socket"])) as own:
            results.append(["own", own.daemon_pid, ""])
        os.write(write_end, json.dumps(results).encode())
        os._exit(0)
    os.close(write_end)
    results = json.loads(open(read_end, "rb").read())
    os.waitpid(child, 0)
    for _ in range(50):
        queue.execute_command_lists([commands], fence)
        assert fence.host_synchronize(10**10)
    assert not event.query_status()
    assert np.all(memory.view() == 5)
    say([results, context.query_memory()[1] >= 64, child])
"""


def test_a_forked_child_is_refused_and_its_parent_is_not_disturbed(
    daemon: Daemon, run_python: RunPython
) -> None:
    results, alive, child = run_python(_FORK, socket=str(daemon.socket))

    assert alive
    *refused, own = results
    assert own == ["own", daemon.pid, ""], "a driver that it opens itself works"
    for name, result, text in refused:
        assert result == ZeResult.ERROR_UNINITIALIZED, (name, text)
        assert f"child {child}" in text
