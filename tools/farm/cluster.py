"""What a Ray cluster has of emulated devices, asked from Ray and from the daemon of each node."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from softnpu.emulator.interface import endpoint
from softnpu.emulator.interface.lease_messages import WHOLE_DEVICE
from softnpu.farm.resources import PREFIX
from softnpu.tools.failures import ToolError

_ANSWER_S: Final = 120.0


@dataclass(frozen=True)
class PlatformState:
    """The devices of a platform on a node. None: the daemon, or Ray, has not said."""

    platform: str
    devices: int
    free: float | None = None
    leased: float | None = None
    inferences: int = 0
    restarts: int = 0


@dataclass(frozen=True)
class NodeState:
    """A node with devices. `problem`: why its daemon has not answered."""

    name: str
    node_id: str
    platforms: tuple[PlatformState, ...]
    problem: str = ""

    def document(self) -> dict[str, Any]:
        """As JSON has it."""
        return asdict(self)


@contextlib.contextmanager
def connected(address: str) -> Iterator[None]:
    """A connection to the cluster; `ToolError` without one."""
    try:
        import ray
    except ModuleNotFoundError as error:
        raise ToolError(
            "ray", found="not installed", expected="Ray", hint="install it: pip install 'softnpu[ray]'"
        ) from error
    try:
        ray.init(address, log_to_driver=False, logging_level="ERROR")
    except ConnectionError as error:
        raise ToolError(
            f"cluster {address}",
            found="no Ray runs there",
            expected="a running cluster",
            hint="start its first node with softnpu farm node --run",
        ) from error
    try:
        yield
    finally:
        ray.shutdown()


def nodes() -> list[NodeState]:
    """All nodes that live and offer devices, by name."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    alive = [node for node in ray.nodes() if node["Alive"] and _offered(node["Resources"])]
    ask = ray.remote(num_cpus=0, max_retries=0)(daemon_says)
    asked = [
        ask.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)).remote()
        for node in alive
    ]
    if asked:
        ray.wait(asked, num_returns=len(asked), timeout=_ANSWER_S)
    free = _free_by_node()
    states = []
    for node, reference in zip(alive, asked, strict=True):
        offered = _offered(node["Resources"])
        said: Mapping[str, PlatformState] = {}
        problem = ""
        try:
            said = ray.get(reference, timeout=0)
        except ray.exceptions.GetTimeoutError:
            problem = f"no answer within {_ANSWER_S:g} s"
            ray.cancel(reference, force=True)
        except Exception as failure:  # noqa: BLE001 - whatever is wrong with one node is shown beside it
            problem = str(failure).strip().splitlines()[-1][:200]
        left = free.get(node["NodeID"], {})
        platforms = tuple(
            _state(platform, count, left.get(platform, 0.0), said.get(platform))
            for platform, count in sorted(offered.items())
        )
        states.append(NodeState(node["NodeManagerHostname"], node["NodeID"], platforms, problem))
    return sorted(states, key=lambda node: (node.name, node.node_id))


def daemon_says() -> dict[str, PlatformState]:
    """By platform, what the daemon of this node says; a task of Ray's."""
    from softnpu.driver import Driver

    with Driver.open(endpoint.default_socket(), autostart=False, role="monitor") as driver:
        answer = driver.status()
    leased = [0] * len(answer.engines)
    for lease in answer.leases:
        for index in lease.devices:
            leased[index] += lease.share
    platforms: dict[str, PlatformState] = {}
    for platform in {engine.device.platform for engine in answer.engines}:
        engines = [engine for engine in answer.engines if engine.device.platform == platform]
        platforms[platform] = PlatformState(
            platform,
            len(engines),
            leased=sum(leased[engine.device.index] for engine in engines) / WHOLE_DEVICE,
            inferences=sum(engine.inferences for engine in engines),
            restarts=sum(engine.restarts for engine in engines),
        )
    return platforms


def _state(platform: str, count: float, free: float | None, said: PlatformState | None) -> PlatformState:
    if said is None:
        return PlatformState(platform, int(count), free)
    return PlatformState(platform, int(count), free, said.leased, said.inferences, said.restarts)


def _offered(resources: Mapping[str, float]) -> dict[str, float]:
    return {
        name.removeprefix(PREFIX): amount
        for name, amount in resources.items()
        if name.startswith(PREFIX) and "_group_" not in name
    }


def _free_by_node() -> dict[str, dict[str, float]]:
    from ray._private.state import available_resources_per_node

    return {node: _offered(resources) for node, resources in available_resources_per_node().items()}
