"""Graphs: the CPU device's numbers bit by bit, shared when equal, refused when wrong."""

from __future__ import annotations

import threading
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from softnpu.driver import CommandQueue, Context, Driver, GraphSource, ZeResult
from softnpu.emulator.interface import messages as msg
from tests.conftest import StartPython
from tests.support.daemon import Daemon
from tests.support.models import Array, on_cpu, write_chain, write_scale
from tests.support.waiting import wait_until
from tests.support.work import LONG, Loaded, barrier, check_works, execute, failure, recorded, run, same


@pytest.fixture(scope="session")
def images() -> Array:
    """Sixteen inputs of the digits network."""
    return np.random.default_rng(5).random((16, 1, 1, 8, 8), dtype=np.float32) * 16


def test_the_numbers_are_those_of_the_cpu_device(
    context: Context, queue: CommandQueue, digits: Path, images: Array
) -> None:
    loaded = Loaded(context, digits)
    for image in images:
        assert same(loaded.infer(queue, image), on_cpu(digits, image))


@pytest.mark.parametrize("size", [8, 96])
def test_larger_models_too(context: Context, queue: CommandQueue, private_dir: Path, size: int) -> None:
    xml = write_chain(private_dir, size, 12)
    matrix = np.random.default_rng(size).random((size, size), dtype=np.float32)
    assert same(Loaded(context, xml).infer(queue, matrix), on_cpu(xml, matrix))


def test_the_meta_data_describes_the_arguments(context: Context, digits: Path) -> None:
    meta = Loaded(context, digits).graph.meta
    image, probabilities = meta.arguments
    assert (image.name, image.input, image.shape, image.byte_size) == ("image", True, (1, 1, 8, 8), 256)
    assert (probabilities.input, probabilities.shape, probabilities.byte_size) == (False, (1, 10), 40)
    assert meta.precision == "f32"


_CLIENT = """
    image = np.frombuffer(bytes.fromhex(given["image"]), np.float32)
    with Driver.open(Path(given["socket"])) as driver:
        context = driver.devices[0].create_context()
        with GraphSource.from_ir(Path(given["xml"])) as source:
            graph = context.create_graph(source)
        graph.initialize()
        data, result = (context.alloc_host(argument.byte_size) for argument in graph.meta.arguments)
        graph.set_argument_value(0, data)
        graph.set_argument_value(1, result)
        commands = context.create_command_list()
        commands.append_graph_execute(graph)
        commands.close()
        queue = context.create_command_queue()
        say("ready"); hear()
        outputs = set()
        for turn in range(100):
            data.view(np.float32)[:] = image
            fence = queue.create_fence()
            queue.execute_command_lists([commands], fence)
            assert fence.host_synchronize(20 * 10**9)
            outputs.add(bytes(result.view()).hex())
        say(sorted(outputs)); hear()
"""


def test_four_processes_at_once_get_the_same_numbers_from_one_image(
    daemon: Daemon, start_python: StartPython, digits: Path, images: Array
) -> None:
    clients = [
        start_python(_CLIENT, socket=str(daemon.socket), xml=str(digits), image=image.tobytes().hex())
        for image in images[:4]
    ]
    for client in clients:
        assert client.hear() == "ready"
    engine = daemon.engine()
    assert (engine.graphs, engine.images) == (4, 1), "one copy, however many processes"
    for client in clients:
        client.tell()
    for client, image in zip(clients, images, strict=False):
        assert client.hear() == [on_cpu(digits, image)[0].tobytes().hex()]
    assert daemon.engine().staged_bytes == engine.staged_bytes
    for client in clients:
        client.tell()
        client.finish()
    wait_until(lambda: daemon.engine().images == 0, what="the last user is gone")


def test_four_threads_at_once_get_the_same_numbers(context: Context, digits: Path, images: Array) -> None:
    wrong: list[int] = []
    expected = [on_cpu(digits, image) for image in images[:4]]

    def work(number: int) -> None:
        loaded, queue = Loaded(context, digits), context.create_command_queue()
        for _ in range(50):
            if not same(loaded.infer(queue, images[number]), expected[number]):
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert wrong == []
    assert not any(thread.is_alive() for thread in threads)


def test_graphs_of_equal_content_share_an_image_and_others_do_not(
    daemon: Daemon, context: Context, digits: Path, private_dir: Path
) -> None:
    equal = [Loaded(context, digits) for _ in range(4)]
    assert daemon.engine().images == 1
    assert [loaded.graph.shared for loaded in equal] == [False, True, True, True]
    other = Loaded(context, write_scale(private_dir, 2.0))
    assert daemon.engine().images == 2
    for loaded in equal:
        loaded.commands.destroy()
        loaded.graph.destroy()
    assert (daemon.engine().graphs, daemon.engine().images) == (1, 1)
    other.graph.destroy()
    assert daemon.engine().images == 1  # a command list executes it
    other.commands.destroy()
    assert daemon.engine().images == 0


def test_the_same_ir_with_other_weights_is_another_image(
    context: Context, queue: CommandQueue, private_dir: Path
) -> None:
    (private_dir / "a").mkdir()
    (private_dir / "b").mkdir()
    first, second = write_scale(private_dir / "a", 2.0), write_scale(private_dir / "b", 3.0)
    assert first.read_bytes() == second.read_bytes()
    data = np.ones(4096, np.float32)
    for xml in (first, second, first):
        assert same(Loaded(context, xml).infer(queue, data), on_cpu(xml, data))


def test_a_list_keeps_the_arguments_that_it_was_recorded_with(
    context: Context, queue: CommandQueue, digits: Path, images: Array
) -> None:
    loaded = Loaded(context, digits)
    other = context.alloc_host(256)
    loaded.graph.set_argument_value(0, other)
    second = recorded(context, lambda c: c.append_graph_execute(loaded.graph))
    loaded.feed(images[0])
    other.view(np.float32)[:] = images[1].ravel()

    run(queue, loaded.commands)
    assert same(loaded.outputs, on_cpu(digits, images[0]))
    run(queue, second)
    assert same(loaded.outputs, on_cpu(digits, images[1]))


def test_arguments_may_lie_anywhere_in_memory(
    context: Context, queue: CommandQueue, digits: Path, images: Array
) -> None:
    loaded = Loaded(context, digits)
    memory = context.alloc_host(4096)
    data, result = memory.view(np.float32, (64,), 12), memory.view(np.float32, (10,), 1000)
    data[:] = images[2].ravel()
    loaded.graph.set_argument_value(0, data)
    loaded.graph.set_argument_value(1, memory.address + 1000)
    run(queue, recorded(context, lambda c: c.append_graph_execute(loaded.graph)))
    assert result.tobytes() == on_cpu(digits, images[2])[0].tobytes()


def test_an_argument_that_cannot_be_is_refused_by_name(context: Context, digits: Path) -> None:
    graph = Loaded(context, digits).graph
    small, other = context.alloc_host(255), context.alloc_host(256)
    for index in (-1, 2, 99):
        failure(partial(graph.set_argument_value, index, other), ZeResult.ERROR_INVALID_ARGUMENT)
    error = failure(lambda: graph.set_argument_value(0, small), ZeResult.ERROR_INVALID_ARGUMENT)
    assert "'image'" in error.info.object
    assert "255 bytes" in error.info.found
    failure(lambda: graph.set_argument_value(0, np.zeros(256, np.uint8)), ZeResult.ERROR_INVALID_ARGUMENT)


def test_an_argument_that_is_missing_is_refused_by_name(context: Context, digits: Path) -> None:
    with GraphSource.from_ir(digits) as source:
        graph = context.create_graph(source)
    graph.initialize()
    graph.set_argument_value(0, context.alloc_host(256))
    commands = context.create_command_list()
    error = failure(lambda: commands.append_graph_execute(graph), ZeResult.ERROR_UNINITIALIZED)
    assert "'probabilities'" in error.info.object


def test_memory_of_an_argument_that_is_freed_fails_the_submission_only(
    context: Context, queue: CommandQueue, digits: Path, images: Array
) -> None:
    loaded = Loaded(context, digits)
    handle = loaded.memory[0].block.handle
    context.connection.request("zeMemFree", msg.MemFree(memory=(handle,)), msg.Ok)
    fence = execute(queue, loaded.commands)
    error = failure(lambda: fence.host_synchronize(LONG), ZeResult.ERROR_INVALID_ARGUMENT)
    assert f"{handle:#018x}" in str(error)
    check_works(context)
    assert images.size


def test_an_unaligned_argument_is_refused(context: Context, queue: CommandQueue, digits: Path) -> None:
    loaded = Loaded(context, digits)
    memory = context.alloc_host(4096)

    def bind_and_run() -> None:
        loaded.graph.set_argument_value(0, memory.address + 2)
        fence = execute(queue, recorded(context, lambda c: c.append_graph_execute(loaded.graph)))
        fence.host_synchronize(LONG)

    failure(bind_and_run, ZeResult.ERROR_UNSUPPORTED_ALIGNMENT)
    check_works(context)


def test_a_graph_that_is_not_initialised_fails_its_execution(
    context: Context, queue: CommandQueue, digits: Path
) -> None:
    with GraphSource.from_ir(digits) as source:
        graph = context.create_graph(source)
    for index, argument in enumerate(graph.meta.arguments):
        graph.set_argument_value(index, context.alloc_host(argument.byte_size))
    fence = execute(queue, recorded(context, lambda c: c.append_graph_execute(graph)))
    error = failure(lambda: fence.host_synchronize(LONG), ZeResult.ERROR_UNINITIALIZED)
    assert "graph" in error.info.object


def test_a_graph_destroyed_while_it_is_queued_is_still_executed(
    daemon: Daemon, context: Context, queue: CommandQueue, digits: Path, images: Array
) -> None:
    loaded, gate = Loaded(context, digits), context.create_event()
    loaded.feed(images[0])
    queue.execute_command_lists([recorded(context, lambda c: c.append_wait_on_events([gate]))])
    fence = execute(queue, loaded.commands)
    loaded.graph.destroy()
    gate.host_signal()
    assert fence.host_synchronize(LONG)
    assert same(loaded.outputs, on_cpu(digits, images[0]))
    loaded.commands.destroy()
    run(queue, barrier(context))
    assert daemon.engine().images == 0


def test_a_graph_destroyed_while_it_computes_ends_in_order(
    context: Context, queue: CommandQueue, private_dir: Path
) -> None:
    xml = write_chain(private_dir, 256, 20)
    matrix = np.random.default_rng(1).random((256, 256), dtype=np.float32)
    loaded = Loaded(context, xml, times=30)
    begun = context.create_event()
    start = recorded(context, lambda c: c.append_signal_event(begun))
    loaded.feed(matrix)
    fence = execute(queue, start, loaded.commands)
    assert begun.host_synchronize(LONG)
    loaded.graph.destroy()
    assert fence.host_synchronize(LONG)
    assert same(loaded.outputs, on_cpu(xml, matrix))
    run(queue, barrier(context))


def test_a_model_that_cannot_be_compiled_is_told_why(context: Context) -> None:
    with GraphSource.from_xml("broken", b"<net>not a model</net>") as source:
        error = failure(lambda: context.create_graph(source), ZeResult.ERROR_UNSUPPORTED_FEATURE)
    assert "broken" in error.info.object


@pytest.mark.parametrize(
    ("config", "result", "word"),
    [
        ({"NO_SUCH_PROPERTY": "1"}, ZeResult.ERROR_UNSUPPORTED_FEATURE, "NO_SUCH_PROPERTY"),
        ({"INFERENCE_PRECISION_HINT": "f99"}, ZeResult.ERROR_INVALID_ARGUMENT, "f99"),
        ({"NPU_PLATFORM": "3721"}, ZeResult.ERROR_INVALID_ARGUMENT, "3721"),
    ],
)
def test_a_bad_property_is_refused_by_name(
    context: Context, digits: Path, config: dict[str, str], result: ZeResult, word: str
) -> None:
    with GraphSource.from_ir(digits) as source:
        error = failure(lambda: context.create_graph(source, config), result)
    assert word in str(error)


def test_a_missing_file_is_told(private_dir: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nothing"):
        GraphSource.from_ir(private_dir / "nothing.xml")


def test_compiling_in_many_sessions_at_once(daemon: Daemon, digits: Path, images: Array) -> None:
    expected, results = on_cpu(digits, images[0]), []

    def work() -> None:
        with Driver.open(daemon.socket) as driver:
            context = driver.devices[0].create_context()
            loaded = Loaded(context, digits)
            results.append(same(loaded.infer(context.create_command_queue(), images[0]), expected))

    threads = [threading.Thread(target=work) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert results == [True] * 6
