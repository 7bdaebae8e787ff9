"""A Ray cluster's emulated devices, queried from Ray and from each node's daemon.

An actor on each node asks its daemon; it ends with the connection to Ray. Any function here may wait for Ray
longer than a person would, or end the process: `monitor.py` runs it in its own.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from softnpu.emulator.interface import endpoint
from softnpu.emulator.interface.lease_messages import WHOLE_DEVICE
from softnpu.farm.resources import PREFIX
from softnpu.tools.farm.states import (
    ALIVE,
    DEAD,
    NO_DAEMON,
    SILENT,
    WAITING,
    ClusterState,
    DaemonState,
    LeaseState,
    NodeState,
    PlatformState,
)
from softnpu.tools.shared.failures import describe

if TYPE_CHECKING:
    from softnpu.driver import Driver
    from softnpu.emulator.interface.messages import StatusAnswer

_DAEMON_S: Final = 5.0
_SILENT_S: Final = 5.0
_AGAIN_S: Final = 5.0
_STARTS_S: Final = 60.0
"""Ray starts the first worker of a busy node within this time."""
_MOST_DEAD: Final = 16
_WORKER: Final = re.compile(r"ray::(?P<what>.+?)(\.\w+)?")
"""Matches an actor running a method, a waiting actor, or a task."""
_COLOUR: Final = re.compile(r"\x1b\[[0-9;]*m")


class DaemonWatcher:
    """A Ray actor that asks its node's daemon, and the next one when that ends."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._driver: Driver | None = None

    def look(self) -> DaemonState:
        """Return the daemon's current report."""
        from softnpu.driver import Driver, ZeError

        try:
            if self._driver is None:
                opened = Driver.open(
                    endpoint.default_socket(), autostart=False, role="monitor", answer_s=_DAEMON_S
                )
                self._driver = self._stack.enter_context(opened)
            sessions = [session for part in self._driver.activity() for session in part.sessions]
            return _daemon_state(self._driver.status(), [session.devices for session in sessions])
        except (ZeError, OSError) as failure:
            self._driver = None
            self._stack.close()
            info = failure.info if isinstance(failure, ZeError) else None
            return DaemonState(problem=f"{info.object}: {info.found}" if info else describe(failure))


@dataclass
class _Question:
    """A pending question to a node. `answer`: its last one. `end`: why the actor has ended."""

    actor: Any
    reference: Any
    since: float
    answer: DaemonState | None = None
    end: str = ""


class ClusterWatcher:
    """Polls the cluster that this process is connected to."""

    def __init__(self) -> None:
        self._questions: dict[str, _Question] = {}
        self._seen: dict[str, NodeState] = {}

    def look(self, within_s: float) -> ClusterState:
        """Return all nodes with devices, by name; those without an answer within `within_s` say so."""
        import ray

        listed = ray.nodes()
        living = {node["NodeID"]: node for node in listed if node["Alive"]}
        offering = {key: node for key, node in living.items() if _offered(node["Resources"])}
        for key in self._questions.keys() - offering.keys():
            del self._questions[key]
        for key in offering:
            self._ask(key)
        asked = [question.reference for question in self._questions.values() if not question.end]
        if asked:
            ray.wait(asked, num_returns=len(asked), timeout=within_s)
        free = _free_by_node()
        for key, node in offering.items():
            self._seen[key] = self._living(key, node, free.get(key))
        for node in listed:
            last = self._seen.get(node["NodeID"])
            if last is not None and last.state != DEAD and not node["Alive"]:
                self._note_death(node, last)
        died = sum(node["NodeID"] not in self._seen for node in listed if not node["Alive"])
        nodes = sorted(self._seen.values(), key=lambda node: (node.name, node.node_id))
        return ClusterState(nodes=tuple(nodes), others=len(living) - len(offering), died=died)

    def _ask(self, key: str) -> None:
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        question = self._questions.get(key)
        if question is not None and not (question.end and time.monotonic() > question.since + _AGAIN_S):
            return
        actor = (
            ray.remote(DaemonWatcher)
            .options(num_cpus=0, scheduling_strategy=NodeAffinitySchedulingStrategy(key, soft=False))
            .remote()
        )
        self._questions[key] = _Question(actor, actor.look.remote(), time.monotonic())

    def _living(self, key: str, node: Mapping[str, Any], free: Mapping[str, float] | None) -> NodeState:
        state, problem = self._collect(key)
        before = self._seen.get(key)
        answer = self._questions[key].answer
        # a silent node keeps its last report; with a daemon its leases and sessions have ended
        known = answer or (before if state != NO_DAEMON else None)
        reported = {one.platform: one for one in known.platforms} if known is not None else {}
        platforms = []
        for platform, count in sorted(_offered(node["Resources"]).items()):
            last = reported.get(platform, PlatformState(platform=platform, devices=int(count)))
            left = None if free is None else free.get(platform, 0.0)
            platforms.append(msgspec.structs.replace(last, devices=int(count), free=left))
        return NodeState(
            name=node["NodeManagerHostname"],
            node_id=key,
            state=state,
            platforms=tuple(platforms),
            leases=answer.leases if answer else (),
            daemon_pid=answer.pid if answer else 0,
            uptime_s=answer.uptime_s if answer else 0.0,
            problem=problem,
        )

    def _collect(self, key: str) -> tuple[str, str]:
        """Collect answers and ask again; return the node's state, and why it is not alive."""
        import ray

        question = self._questions[key]
        if question.end:
            return SILENT, question.end
        waited = time.monotonic() - question.since
        try:
            answer: DaemonState = ray.get(question.reference, timeout=0)
        except ray.exceptions.GetTimeoutError:
            if question.answer is None and waited < _STARTS_S:
                return WAITING, ""
            if waited < _SILENT_S:
                return ALIVE, ""
            if waited > _STARTS_S:
                ray.kill(question.actor)  # its end is collected next
            return SILENT, f"no answer for {waited:.0f} s"
        except ray.exceptions.RayError as failure:
            question.end, question.since = f"who asks there has ended: {_reason(failure)}", time.monotonic()
            return SILENT, question.end
        question.reference, question.since = question.actor.look.remote(), time.monotonic()
        if answer.problem:
            question.answer = None
            return NO_DAEMON, answer.problem
        question.answer = answer
        return ALIVE, ""

    def _note_death(self, node: Mapping[str, Any], last: NodeState) -> None:
        key = node["NodeID"]
        del self._seen[key]  # to follow those that died before
        reason = _reason(node.get("DeathReasonMessage") or "") or "Ray does not hear from it any more"
        without = tuple(
            msgspec.structs.replace(one, free=None, leased=None, used=0, sessions=0) for one in last.platforms
        )
        self._seen[key] = msgspec.structs.replace(
            last, state=DEAD, platforms=without, leases=(), problem=reason
        )
        dead = [each for each, state in self._seen.items() if state.state == DEAD]
        for each in dead[:-_MOST_DEAD]:
            del self._seen[each]


@contextlib.contextmanager
def connected(address: str) -> Iterator[None]:
    """Yield with a connection to the cluster. Raise Ray's errors, or wait for minutes."""
    import ray

    ray.init(address, log_to_driver=False, logging_level="ERROR")
    try:
        yield
    finally:
        ray.shutdown()


def _daemon_state(answer: StatusAnswer, sessions: list[tuple[int, ...]]) -> DaemonState:
    leased = [0] * len(answer.engines)
    for lease in answer.leases:
        for index in lease.devices:
            leased[index] += lease.share
    by_platform: dict[str, list[Any]] = {}
    for engine in answer.engines:
        by_platform.setdefault(engine.device.platform, []).append(engine)
    platforms = []
    for platform, engines in by_platform.items():
        ours = {engine.device.index for engine in engines}
        platforms.append(
            PlatformState(
                platform=platform,
                devices=len(engines),
                leased=sum(leased[index] for index in ours) / WHOLE_DEVICE,
                used=len(ours & {index for devices in sessions for index in devices}),
                sessions=sum(not ours.isdisjoint(devices) for devices in sessions),
                inferences=sum(engine.inferences for engine in engines),
                errors=sum(engine.faults for engine in engines),
                restarts=sum(engine.restarts for engine in engines),
            )
        )
    leases = tuple(
        LeaseState(
            pid=lease.pid,
            program=_program(lease.pid) or lease.client,
            platform=answer.engines[lease.devices[0]].device.platform,
            devices=lease.devices,
            share=lease.share / WHOLE_DEVICE,
            sessions=lease.sessions,
        )
        for lease in answer.leases
    )
    return DaemonState(pid=answer.pid, uptime_s=answer.uptime_s, platforms=tuple(platforms), leases=leases)


def _program(pid: int) -> str:
    """Return the actor or task of a Ray worker from its title; empty for other processes."""
    try:
        title = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0].decode(errors="replace").strip()
    except OSError:
        return ""
    match = _WORKER.fullmatch(title)
    return match["what"] if match is not None else ""


def _offered(resources: Mapping[str, float]) -> dict[str, float]:
    return {
        name.removeprefix(PREFIX): amount
        for name, amount in resources.items()
        if name.startswith(PREFIX) and "_group_" not in name
    }


def _free_by_node() -> dict[str, dict[str, float]]:
    from ray._private.state import available_resources_per_node

    return {node: _offered(resources) for node, resources in available_resources_per_node().items()}


def _reason(text: object) -> str:
    """Return the last line of Ray's message, without colours."""
    lines = _COLOUR.sub("", str(text)).strip().splitlines() or [""]
    return lines[-1].strip()[:200]
