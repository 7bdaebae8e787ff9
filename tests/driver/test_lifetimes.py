"""Handles and interrupted calls: errors after destruction, and release on collection or interruption."""

from __future__ import annotations

import gc
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from threading import Timer

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as ops

from softnpu.driver import CommandList, Context, Driver, GraphSource, ZeError, ZeResult
from softnpu.driver import memory as memory_module
from softnpu.driver.handle import Handle
from softnpu.emulator.interface.channel import Channel, Packet
from tests.conftest import RunPython, StartDaemon
from tests.support.daemon import Daemon
from tests.support.models import write_chain
from tests.support.waiting import wait_until
from tests.support.work import (
    LONG,
    SECOND,
    Loaded,
    barrier,
    check_works,
    execute,
    failure,
    fill,
    recorded,
    run,
)

_NULL = ZeResult.ERROR_INVALID_NULL_HANDLE


def test_use_after_the_context_is_destroyed_names_the_handle(context: Context, digits: Path) -> None:
    queue, event, memory = context.create_command_queue(), context.create_event(), context.alloc_host(64)
    commands, fence = barrier(context), queue.create_fence()
    with GraphSource.from_ir(digits) as source:
        graph = context.create_graph(source)
    other = context.device.create_context()
    calls: dict[Handle, Callable[[], object]] = {
        queue: lambda: queue.execute_command_lists([commands]),
        event: event.host_signal,
        memory: memory.view,
        fence: fence.host_synchronize,
        commands: commands.reset,
        graph: graph.initialize,
    }

    context.destroy()

    for handle, call in calls.items():
        assert type(handle).__name__ in failure(call, _NULL).info.object
        handle.destroy()
        assert handle.destroyed
    check_works(other)


def test_objects_of_a_dead_context_do_not_touch_a_reused_descriptor(context: Context, tmp_path: Path) -> None:
    # the doorbell's number is free again: ringing it would write into this file
    event, queue, commands = context.create_event(), context.create_command_queue(), barrier(context)
    context.destroy()
    files = [open(tmp_path / f"{number}", "w+b") for number in range(20)]  # noqa: SIM115
    failure(event.host_signal, _NULL)
    failure(lambda: queue.execute_command_lists([commands]), _NULL)
    for file in files:
        assert os.fstat(file.fileno()).st_size == 0
        file.close()


def test_forgotten_objects_are_released(driver: Driver, digits: Path) -> None:
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


def test_a_buffer_is_the_memory_of_its_allocation_and_keeps_it(context: Context) -> None:
    memory = context.alloc_host(100)
    bytes_, array = memory.buffer(), memory.view()
    assert (bytes_.nbytes, bytes_.format, bytes_.readonly) == (100, "B", False)
    bytes_[3:7] = b"from"
    array[7:11] = list(b"both")
    assert bytes(bytes_[3:11]) == bytes(array[3:11]) == b"fromboth"
    part = bytes_[7:11]
    address = memory.address
    del memory, bytes_, array
    gc.collect()
    others = [context.alloc_host(100) for _ in range(8)]
    assert address not in [other.address for other in others]
    assert bytes(part) == b"both"


def test_a_forgotten_queue_neither_finishes_work_nor_frees_memory_early(context: Context) -> None:
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


def test_a_queue_may_be_collected_inside_a_request(context: Context) -> None:
    """Python may collect it there; it is destroyed later, and the daemon keeps its ring until then."""
    queue = context.create_command_queue()
    with context._connection.deferred_section():
        del queue
        gc.collect()
        context.create_event()
    check_works(context)


def test_nothing_is_written_after_a_queue_was_destroyed(context: Context, private_dir: Path) -> None:
    """Not even by the layer that is running."""
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
            [recorded(context, partial(CommandList.append_signal_event, event=begun)), loaded.commands]
        )
        assert begun.host_synchronize(LONG)
        queue.destroy()
        result[:] = 7
        run(other, barrier(context))
        assert np.all(result == 7)


def test_an_event_can_be_awaited_after_its_signalling_list_was_forgotten(context: Context) -> None:
    gate, done, queue = context.create_event(), context.create_event(), context.create_command_queue()
    execute(queue, recorded(context, lambda c: c.append_barrier(done, [gate])))
    gc.collect()
    assert not done.host_synchronize(SECOND // 50)
    Timer(0.1, gate.host_signal).start()
    assert done.host_synchronize(LONG)


def test_the_slot_of_a_forgotten_event_in_flight_is_not_reused(context: Context) -> None:
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
    queue.synchronize()  # releases what has ended
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


def test_a_closed_driver_ends_even_if_a_forked_child_has_its_socket(
    daemon: Daemon, run_python: RunPython
) -> None:
    """A worker of `multiprocessing` inherits all descriptors of the program that started it."""
    left = run_python(
        """
        from tests.conformance.holdings import Holdings
        from tests.support.waiting import wait_until
        place = Path(given["socket"])
        with Holdings(place) as holdings:
            driver = Driver.open(place)
            context = driver.devices[0].create_context()
            read_end, write_end = os.pipe()
            child = os.fork()
            if child == 0:
                os.close(write_end)
                os.read(read_end, 1)
                os._exit(0)
            assert holdings.count().contexts == 1
            driver.destroy()
            wait_until(lambda: holdings.count().contexts == 0, what="the session to end")
            assert os.waitpid(child, os.WNOHANG) == (0, 0)
            os.write(write_end, b"x")
            os.waitpid(child, 0)
        say(True)
        """,
        socket=str(daemon.socket),
    )
    assert left


def test_a_forked_child_that_closes_a_driver_does_not_close_its_parents(
    daemon: Daemon, run_python: RunPython
) -> None:
    alive = run_python(
        """
        driver = Driver.open(Path(given["socket"]))
        context = driver.devices[0].create_context()
        child = os.fork()
        if child == 0:
            driver._connection.close()
            os._exit(0)
        os.waitpid(child, 0)
        say(context.alloc_host(64).size)
        """,
        socket=str(daemon.socket),
    )
    assert alive == 64


def test_a_list_on_successive_queues_keeps_none_of_them_alive(context: Context) -> None:
    memory = context.alloc_host(64)
    commands = fill(context, memory, 5)

    def cycle() -> None:
        # a ring in its own segment
        queue = context.create_command_queue(slots=4096)
        run(queue, commands)
        queue.destroy()

    def mappings() -> int:
        return Path("/proc/self/maps").read_text().count("softnpu-memory")

    for _ in range(3):
        cycle()
    before = len(os.listdir("/proc/self/fd")), mappings()
    for _ in range(10):
        cycle()
    gc.collect()
    assert (len(os.listdir("/proc/self/fd")), mappings()) == before


class Interruption(Exception):
    """The exception raised by a signal handler of a program."""


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """The daemon handles no request inside."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def interrupted(daemon: Daemon, call: Callable[[], object]) -> None:
    """`call` is interrupted while it waits for the daemon, which answers later."""

    def interrupt(*_: object) -> None:
        raise Interruption

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with stopped(daemon.pid):
            signal.setitimer(signal.ITIMER_REAL, 0.05)
            with pytest.raises(Interruption):
                call()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_memory_allocated_by_an_interrupted_call_is_released(daemon: Daemon, context: Context) -> None:
    used = daemon.memory_used()
    interrupted(daemon, lambda: context.alloc_host(1000))

    # it lies in the same segment, whose descriptor came only with the lost answer
    later = context.alloc_host(2000)
    later.view()[:] = 7

    check_works(context)
    later.destroy()
    del later
    context.release_memory()
    wait_until(lambda: daemon.memory_used() <= used + 64 * 64, what="all but signals given back")


def test_an_interrupted_compilation_ends(daemon: Daemon, context: Context, digits: Path) -> None:
    with GraphSource.from_ir(digits) as source:
        interrupted(daemon, lambda: context.create_graph(source))
        check_works(context)
        wait_until(lambda: sum(each.graphs for each in daemon.status().sessions) == 0)
        context.create_graph(source).initialize()


def test_descriptors_of_late_answers_are_closed(daemon: Daemon, context: Context) -> None:
    check_works(context)
    context.release_memory()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        interrupted(daemon, lambda: context.alloc_host(1 << 20))
    context.alloc_host(64).destroy()
    context.release_memory()
    assert len(os.listdir("/proc/self/fd")) == before


def test_the_end_of_the_context_releases_objects_of_late_answers(daemon: Daemon, driver: Driver) -> None:
    context = driver.devices[0].create_context()
    interrupted(daemon, lambda: context.alloc_host(1 << 20))
    driver.status()  # reads the late answer
    context.destroy()
    wait_until(lambda: daemon.memory_used() == 0)
    check_works(driver.devices[0].create_context())


def test_a_lost_answer_ends_the_session_with_a_clear_error(
    start_daemon: StartDaemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon = start_daemon()
    with Driver.open(daemon.socket) as driver:
        context = driver.devices[0].create_context()

        def interrupted_reading(_channel: Channel) -> Packet:
            raise Interruption

        with monkeypatch.context() as patch:
            patch.setattr(Channel, "receive", interrupted_reading)
            with pytest.raises(Interruption):
                context.alloc_host(64)
        error = failure(lambda: context.alloc_host(64), ZeResult.ERROR_DEVICE_LOST)
        assert "interrupted" in error.info.found
        assert "open a new driver" in error.info.hint


def test_an_unknown_segment_is_not_a_key_error(
    daemon: Daemon, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    class NotAlways:
        """Interrupts between receiving the answer and recording it."""

        def __call__(self, *_: object) -> None:
            raise Interruption

    with monkeypatch.context() as patch:
        patch.setattr(memory_module, "SharedMapping", NotAlways())
        with pytest.raises(Interruption):
            context.alloc_host(64)
    with pytest.raises(ZeError, match="interruption"):
        context.alloc_host(64)
    assert daemon.alive


def test_a_queue_is_destroyed_during_an_inference_longer_than_the_answer_timeout(
    daemon: Daemon, private_dir: Path
) -> None:
    with Driver.open(daemon.socket) as usual:
        context = usual.devices[0].create_context()
        loaded, queue = Loaded(context, write_chain(private_dir, 1536, 60)), context.create_command_queue()
        begun = time.monotonic()
        run(queue, loaded.commands)
        takes_s = time.monotonic() - begun
    with Driver.open(daemon.socket, answer_s=takes_s / 4) as driver:
        context = driver.devices[0].create_context()
        loaded, queue = Loaded(context, private_dir / "chain.xml"), context.create_command_queue()
        event = context.create_event()
        commands = recorded(
            context, lambda c: c.append_signal_event(event), lambda c: c.append_graph_execute(loaded.graph)
        )
        queue.execute_command_lists([commands])
        assert event.host_synchronize(LONG)
        queue.destroy()
        check_works(context)
