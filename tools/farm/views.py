"""A person's view of two samples of a cluster: a row for each platform of a node, a row for each lease."""

from __future__ import annotations

from dataclasses import dataclass

from softnpu.emulator.common.printable import printable
from softnpu.tools.farm.states import ALIVE, ClusterState, NodeState, PlatformState


@dataclass(frozen=True)
class PlatformRow:
    """The devices of a platform on a node. `inferences_s`: None without two samples of the same daemon."""

    node: str
    state: str
    platform: str
    devices: int
    used: int
    free: float | None
    leased: float | None
    sessions: int
    inferences_s: float | None
    errors: int
    restarts: int
    programs: tuple[str, ...]


@dataclass(frozen=True)
class LeaseRow:
    """A lease and its node."""

    node: str
    pid: int
    platform: str
    devices: tuple[int, ...]
    share: float
    sessions: int
    program: str


@dataclass(frozen=True)
class ClusterView:
    """All data that a monitor shows of a cluster."""

    state: ClusterState
    platforms: tuple[PlatformRow, ...]
    leases: tuple[LeaseRow, ...]

    @classmethod
    def of(cls, now: ClusterState, before: ClusterView | None) -> ClusterView:
        """Build with rates since each node's last answer."""
        old = {} if before is None else {node.node_id: node for node in before.state.nodes}
        rows = () if before is None else before.platforms
        rates = {(row.node, row.platform): row.inferences_s for row in rows}
        return cls(
            state=now,
            platforms=tuple(
                _platform(node, each, old.get(node.node_id), rates.get((node.title, each.platform)))
                for node in now.nodes
                for each in node.platforms
            ),
            leases=tuple(
                LeaseRow(
                    node.title,
                    lease.pid,
                    lease.platform,
                    lease.devices,
                    lease.share,
                    lease.sessions,
                    printable(lease.program),
                )
                for node in now.nodes
                for lease in node.leases
            ),
        )


def _platform(
    node: NodeState, now: PlatformState, before: NodeState | None, last: float | None
) -> PlatformRow:
    return PlatformRow(
        node=node.title,
        state=node.state,
        platform=now.platform,
        devices=now.devices,
        used=now.used,
        free=now.free,
        leased=now.leased,
        sessions=now.sessions,
        inferences_s=_rate(node, now, before, last) if node.state == ALIVE else None,
        errors=now.errors,
        restarts=now.restarts,
        programs=tuple(
            f"{printable(lease.program)} {lease.pid}"
            for lease in node.leases
            if lease.platform == now.platform
        ),
    )


def _rate(node: NodeState, now: PlatformState, before: NodeState | None, last: float | None) -> float | None:
    if before is None or before.daemon_pid != node.daemon_pid or not node.daemon_pid:
        return None
    if node.uptime_s <= before.uptime_s:
        return last  # the node has not answered since
    for each in before.platforms:
        if each.platform == now.platform:
            return (now.inferences - each.inferences) / (node.uptime_s - before.uptime_s)
    return None
