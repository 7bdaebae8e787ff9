"""A client of `bench scale`: a forked process with a session, a small model and one request.

It reports when it is ready, then answers each requested number of inferences with one byte at their end.
"""

from __future__ import annotations

import socket
import sys
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from softnpu.driver import CommandQueue, Context, Driver, GraphSource
from softnpu.tools.bench.requests import DeviceRequest
from softnpu.tools.shared import failures
from softnpu.tools.shared.fork_server import ChildFunction

DONE: Final = b"done"
_MESSAGE: Final = 4096
_CONFIG: Final = {"INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY"}


class ClientStart(msgspec.Struct, frozen=True):
    """The daemon's socket, and an IR whose inputs are f32 and static."""

    socket: str
    model: str


def client_function() -> ChildFunction:
    """Return the function that the fork server runs in every client."""
    return _run


def _run(request: bytes, connection: socket.socket) -> int:
    start = msgspec.json.decode(request, type=ClientStart)
    try:
        with Driver.open(Path(start.socket), autostart=False) as driver:
            context = driver.devices[0].create_context()
            prepared = prepare(context, context.create_command_queue(), Path(start.model))
            prepared.run()
            connection.send(DONE)
            while number := connection.recv(_MESSAGE):
                for _ in range(int(number)):
                    prepared.run()
                connection.send(DONE)
    except failures.expected() as error:
        connection.send(failures.describe(error).encode()[:_MESSAGE])
        print(failures.describe(error), file=sys.stderr)
        return 1
    return 0


def prepare(context: Context, queue: CommandQueue, model: Path) -> DeviceRequest:
    """Return a request whose inputs are ones."""
    with GraphSource.from_ir(model) as source:
        graph = context.create_graph(source, _CONFIG)
    graph.initialize()
    inputs = [np.ones(argument.shape, np.float32) for argument in graph.meta.arguments if argument.input]
    return DeviceRequest(context, queue, graph, inputs)
