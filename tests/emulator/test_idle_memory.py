"""Reclaimed memory is restored, whatever happens to the engine meanwhile."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import numpy as np
import openvino as ov
import openvino.opset13 as op

from softnpu.driver import Context, GraphSource
from softnpu.emulator.interface import commands as cmd
from softnpu.emulator.interface import messages as msg
from softnpu.emulator.interface.commands import MemoryAt
from tests.conftest import StartDaemon
from tests.support.daemon import Daemon
from tests.support.models import write_chain, write_scale
from tests.support.waiting import wait_until
from tests.support.wire import OpenWire, WireContext, WireModel
from tests.support.work import inference, run

_SIZE = 2048


def _own_memory(pid: int) -> int:
    """Return a process's private bytes."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith("Private_"))


def test_a_released_graph_computes_the_same_after_the_death_of_the_engine(
    daemon: Daemon, context: Context, tmp_path: Path
) -> None:
    with GraphSource.from_ir(write_scale(tmp_path, 3.0)) as source:
        graph = context.create_graph(source)
    arguments = [context.alloc_host(argument.byte_size) for argument in graph.meta.arguments]
    for index, memory in enumerate(arguments):
        graph.set_argument_value(index, memory)
    given, made = (memory.view(np.float32) for memory in (arguments[0], arguments[-1]))
    given[:] = np.arange(given.size)
    queue, commands = context.create_command_queue(), inference(context, graph)
    run(queue, commands)
    expected = made.copy()
    for kill in (False, True, False):
        made[:] = 0
        run(queue, commands)
        np.testing.assert_array_equal(made, expected)
        assert context.query_graph_memory() > 0
        context.release_memory()
        assert context.query_graph_memory() == 0
        if kill:
            restarts = daemon.engine().restarts
            os.kill(daemon.engine().engine_pid, signal.SIGKILL)
            wait_until(lambda before=restarts: daemon.engine().restarts > before)  # type: ignore[misc]


def test_a_large_graph_leaves_the_engine(daemon: Daemon, context: Context, tmp_path: Path) -> None:
    weights = np.random.default_rng(3).random((_SIZE, _SIZE), np.float32)
    x = op.parameter([1, _SIZE], np.float32)
    result = op.relu(op.matmul(x, op.constant(weights), False, False))
    ov.save_model(ov.Model([result], [x], "large"), tmp_path / "large.xml", compress_to_fp16=False)
    with GraphSource.from_ir(tmp_path / "large.xml") as source:
        graph = context.create_graph(source)
    for index, argument in enumerate(graph.meta.arguments):
        graph.set_argument_value(index, context.alloc_host(argument.byte_size))
    queue, commands = context.create_command_queue(), inference(context, graph)
    pid = daemon.engine().engine_pid
    for _ in range(2):
        run(queue, commands)
        loaded = _own_memory(pid)
        context.release_memory()
        wait_until(lambda before=loaded: _own_memory(pid) < before - weights.nbytes // 2)  # type: ignore[misc]


def test_a_submission_ends_whose_graph_is_destroyed_before_its_image_is_loaded_again(
    start_daemon: StartDaemon, open_wire: OpenWire, tmp_path: Path
) -> None:
    daemon = start_daemon(failpoints="engine.load=sleep(3000):1:2")
    context = WireContext(open_wire(daemon))
    memory = [MemoryAt(context.alloc(4096).handle, 0) for _ in range(2)]
    queues, graphs = [context.queue(), context.queue()], []
    buffers = [context.alloc(4096, "control") for _ in queues]
    for buffer, size in zip(buffers, (4, 5), strict=True):
        (tmp_path / str(size)).mkdir()
        with WireModel(write_chain(tmp_path / str(size), 16, size)) as model:
            graphs.append(model.create(context))
        context.wire.ask(msg.GraphInitialize(graph=graphs[-1]), msg.GraphInitialized)
        buffer.write(_execute(graphs[-1], memory))
    context.wire.ask(msg.ContextRelease(context=context.handle), msg.Ok)
    for waiting, (queue, buffer) in enumerate(zip(queues, buffers, strict=True), 1):
        queue.submit(buffer, len(_execute(graphs[0], memory)))
        wait_until(lambda expected=waiting: daemon.engine().queued == expected)  # type: ignore[misc]
    context.wire.ask(msg.GraphDestroy(graph=graphs[1]), msg.Ok)
    assert queues[0].wait(1) == 0
    queues[1].wait(1)


def _execute(graph: int, memory: list[MemoryAt]) -> bytes:
    """Commands of one inference."""
    return cmd.encode_buffer([cmd.encode_command(cmd.GraphExecute(graph, 0, tuple(memory)))])
