"""A cluster's reported state: its nodes, their devices, and their lessees."""

from __future__ import annotations

from typing import Final

import msgspec

ALIVE: Final = "alive"
WAITING: Final = "waiting"
"""The question is pending: Ray may still be starting the worker that asks."""
SILENT: Final = "silent"
NO_DAEMON: Final = "no daemon"
DEAD: Final = "dead"
CLUSTER: Final = "a Ray cluster that this machine is a node of"
"""The expected target of an address."""


class LeaseState(msgspec.Struct, frozen=True, kw_only=True):
    """A lease. `share`: of each of its devices, 0 to 1."""

    pid: int
    program: str
    platform: str
    devices: tuple[int, ...]
    share: float
    sessions: int


class PlatformState(msgspec.Struct, frozen=True, kw_only=True):
    """The devices of a platform on a node. `free`: those that Ray may still assign. None: unknown.

    `leased`: in devices, shares added up; `used`: devices with a session. Counters are the daemon's:
    `errors` are inferences and other commands that failed, `restarts` resets of a device.
    """

    platform: str
    devices: int
    free: float | None = None
    leased: float | None = None
    used: int = 0
    sessions: int = 0
    inferences: int = 0
    errors: int = 0
    restarts: int = 0


class DaemonState(msgspec.Struct, frozen=True, kw_only=True):
    """The report of a node's daemon. `problem`: why there is no report."""

    pid: int = 0
    uptime_s: float = 0.0
    platforms: tuple[PlatformState, ...] = ()
    leases: tuple[LeaseState, ...] = ()
    problem: str = ""


class NodeState(msgspec.Struct, frozen=True, kw_only=True):
    """A node with devices. `problem`: why it is not `alive`; such a node keeps its last report."""

    name: str
    node_id: str
    state: str
    platforms: tuple[PlatformState, ...]
    leases: tuple[LeaseState, ...] = ()
    daemon_pid: int = 0
    uptime_s: float = 0.0
    problem: str = ""

    @property
    def title(self) -> str:
        """Its name, and as much of its id as distinguishes it from others of this name."""
        return f"{self.name} {self.node_id[:8]}"


class ClusterState(msgspec.Struct, frozen=True, kw_only=True, tag="cluster"):
    """One look at a cluster. `others`: living nodes without devices; `died`: before the first look."""

    nodes: tuple[NodeState, ...]
    others: int = 0
    died: int = 0


class Failure(msgspec.Struct, frozen=True, kw_only=True, tag="failure"):
    """Why there is no connection to a cluster; the parts of a `ToolError`."""

    found: str
    expected: str
    hint: str = ""
