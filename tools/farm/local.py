"""A farm on one machine, for tests and benchmarks: nodes of `ray.cluster_utils`, each with its own daemon."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from softnpu.emulator.interface import endpoint
from softnpu.farm.resources import resources_of
from softnpu.tools.farm.node import Node
from softnpu.tools.shared.failures import ToolError

_OBJECT_STORE: Final = 100 * 10**6
_READY_S: Final = 300.0
_PATIENT: Final = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_agent_register_timeout_ms": "180000",
    "RAY_worker_register_timeout_seconds": "300",
}
"""Several nodes on a few busy cores start slowly; a raylet would give up on its agent, and end."""
_END_S: Final = 20.0
_LOOK_S: Final = 0.05


@dataclass
class LocalNode:
    """A Ray node on this machine, and the keeper of its daemon."""

    socket: Path
    ray_node: Any
    keeper: subprocess.Popen[bytes]

    @property
    def daemon_pid(self) -> int:
        """The daemon currently serving the socket; 0 if there is none."""
        record = endpoint.read_record(self.socket)
        return 0 if record is None else record.pid

    def wait_ready(self) -> None:
        """Wait until a daemon accepts connections, and has told its pid, which comes a little later."""
        end = time.monotonic() + _READY_S
        while not (endpoint.accepts(self.socket) and self.daemon_pid):
            if time.monotonic() > end or self.keeper.poll() is not None:
                log = endpoint.log_path(self.socket)
                raise ToolError(
                    f"daemon at {self.socket}",
                    found=log.read_text()[-500:] if log.exists() else "no log",
                    expected=f"one that takes connections within {_READY_S:g} s",
                )
            time.sleep(_LOOK_S)


class LocalFarm:
    """Ray's head without devices, and nodes that are added and killed. One at a time in a process.

    `on_head`: the head is a node too, `nodes[0]`, with these devices; this process lives on it.
    """

    def __init__(self, folder: Path, object_store: int = _OBJECT_STORE, on_head: Sequence[str] = ()) -> None:
        from ray.cluster_utils import Cluster

        self._folder = folder
        self._object_store = object_store
        self._numbers = iter(range(1000))
        self.nodes: list[LocalNode] = []
        self._cluster = Cluster()
        if on_head:
            self.add(on_head, num_cpus=len(on_head))
        else:
            self._cluster.add_node(num_cpus=1, object_store_memory=object_store, include_dashboard=False)

    @property
    def address(self) -> str:
        """HOST:PORT of the cluster."""
        return str(self._cluster.address)

    def add(self, platforms: Sequence[str] = ("4000",), num_cpus: int = 1) -> LocalNode:
        """Add a node with these devices; its daemon accepts connections."""
        socket = self._folder / f"n{next(self._numbers)}" / "npu.sock"
        node = Node(socket, tuple(platforms), "local")
        ray_node = self._cluster.add_node(
            num_cpus=num_cpus,
            resources=resources_of(node.platforms),
            object_store_memory=self._object_store,
            include_dashboard=False,
            env_vars=node.environment(),
        )
        (raylet,) = ray_node.all_processes["raylet"]
        settings = msgspec.json.encode(node.settings).decode()
        keeper = subprocess.Popen(
            [sys.executable, "-P", "-m", "softnpu.farm.keeper", settings, str(raylet.process.pid)],
            stdin=subprocess.DEVNULL,
        )
        made = LocalNode(socket, ray_node, keeper)
        self.nodes.append(made)
        made.wait_ready()
        return made

    def kill(self, node: LocalNode) -> None:
        """Kill a node without warning, as when a machine dies: raylet, workers and daemon."""
        self.nodes.remove(node)
        node.keeper.kill()  # the daemon dies with it
        node.keeper.wait()
        self._cluster.remove_node(node.ray_node, allow_graceful=False)

    def connect(self) -> None:
        """Connect this process to the cluster."""
        import ray

        ray.init(address=self._cluster.address, log_to_driver=True, logging_level="ERROR")

    def close(self) -> None:
        """End everything started here, and wait for it."""
        import ray

        ray.shutdown()
        self._cluster.shutdown()
        for node in self.nodes:
            try:
                node.keeper.wait(_END_S)
            except subprocess.TimeoutExpired:
                node.keeper.kill()
                node.keeper.wait()
        self.nodes.clear()


@contextlib.contextmanager
def local_farm(object_store: int = _OBJECT_STORE, on_head: Sequence[str] = ()) -> Iterator[LocalFarm]:
    """Yield a connected farm in a temporary folder, removed at the end."""
    # sockets have paths of at most 107 bytes, of which Ray needs about 90 behind its own folder
    folder = Path(tempfile.mkdtemp(prefix="farm-"))
    chosen = {"RAY_TMPDIR": str(folder), **_PATIENT}
    before = {name: os.environ.get(name) for name in chosen}
    os.environ.update(chosen)
    (folder / "ray").mkdir()
    farm = None
    try:
        farm = LocalFarm(folder, object_store, on_head)
        farm.connect()
        yield farm
    finally:
        if farm is not None:
            farm.close()
        for name, value in before.items():
            os.environ.pop(name, None)
            os.environ.update({} if value is None else {name: value})
        shutil.rmtree(folder, ignore_errors=True)
