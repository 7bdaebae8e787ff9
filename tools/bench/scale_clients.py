"""`bench scale`: clients, each a process with its own session that runs the demo's small model."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Final

import msgspec

from softnpu.driver.cache_options import ENV_CACHE_DIR
from softnpu.tools.bench.load import wait_for_rest
from softnpu.tools.bench.memory import total
from softnpu.tools.bench.rounds import median
from softnpu.tools.bench.scale_client import DONE, ClientStart
from softnpu.tools.bench.scale_point import Point
from softnpu.tools.demo.digits import model_path
from softnpu.tools.shared.failures import ToolError
from softnpu.tools.shared.fork_server import Child, ForkServer
from softnpu.tools.shared.private_daemon import private_daemon

_FUNCTION: Final = "softnpu.tools.bench.scale_client:client_function"
_DEADLINE_S: Final = 120.0
_INFERENCES: Final = 10240
_TURNS: Final = 5
_MESSAGE: Final = 4096


def measure(sizes: Sequence[int]) -> Iterator[Point]:
    """Yield start, inference and memory per client for each number of clients of one daemon."""
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="softnpu-bench-"))
        daemon = stack.enter_context(private_daemon())
        server = ForkServer(_FUNCTION, environment={ENV_CACHE_DIR: folder})
        stack.callback(server.close)
        clients = _Clients(server, ClientStart(str(daemon.socket), str(model_path())))
        keeper = clients.start(1)  # compiles the model, and keeps it loaded
        wait_for_rest(daemon)
        empty = total(daemon.pid, [server.pid])
        for size in sizes:
            begin = time.perf_counter()
            children = clients.start(size)
            yield Point("start to first result", size, (time.perf_counter() - begin) / size * 1e3, "ms")
            count = max(1, _INFERENCES // size)
            turns = [clients.infer(children, count) for _ in range(_TURNS)]
            yield Point("inference", size, median(turns) / (size * count) * 1e6, "us")
            grown = total(daemon.pid, [server.pid, *(child.pid for child in children)]) - empty
            yield Point("memory", size, grown / size / (1 << 20), "MiB")
            clients.end(children)
        clients.end(keeper)


class _Clients:
    """Starts many clients at once."""

    def __init__(self, server: ForkServer, start: ClientStart) -> None:
        self._server = server
        self._request = msgspec.json.encode(start)

    def start(self, count: int) -> list[Child]:
        """Start this many clients, up to their first result."""
        children = [self._server.start(self._request) for _ in range(count)]
        self._hear(children)
        return children

    def infer(self, children: Sequence[Child], count: int) -> float:
        """Return seconds until all have run `count` inferences concurrently."""
        begin = time.perf_counter()
        for child in children:
            child.connection.send(b"%d" % count)
        self._hear(children)
        return time.perf_counter() - begin

    def end(self, children: Sequence[Child]) -> None:
        """Wait until they have ended."""
        for child in children:
            child.close()
        for child in children:
            self._server.wait(child)

    def _hear(self, children: Sequence[Child]) -> None:
        for child in children:
            child.connection.settimeout(_DEADLINE_S)
            try:
                words = child.connection.recv(_MESSAGE)
            except TimeoutError:
                words = f"silent for {_DEADLINE_S:g} s".encode()
            if words != DONE:
                found = words.decode(errors="replace") or "it died"
                raise ToolError(f"client {child.pid}", found=found, expected="inferences that end")
