"""`softnpu top --farm`: the nodes of a cluster, their devices, and their lessees."""

from __future__ import annotations

from typing import Any, Final

from rich.text import Text

from softnpu.tools.farm.monitor import ClusterMonitor
from softnpu.tools.farm.states import ALIVE, DEAD, ClusterState
from softnpu.tools.farm.views import ClusterView
from softnpu.tools.shared.console import format_count
from softnpu.tools.top.table_app import TableApp
from softnpu.tools.top.tables import Column, Listing, number_column, percent, rate_text, text_column

_MOST_PROBLEMS: Final = 6
_KEYS: Final = """\
F3 F4 / \\   filter: show what contains a text; Esc shows all
F6 >        choose the column to sort by; once more: the other way round
Space p     pause, and go on
Tab 1 2     nodes, leases
F1 h ?      this
F10 q       quit

FREE is what Ray may still assign, LEASED what workers have taken, both
in devices; USED are devices with a session. INF/S is of the last interval.
STATE: alive, waiting (its first answer), silent, no daemon, dead.
"""


def _amount(title: str, field: str) -> Column:
    return Column(
        title,
        lambda row: "-" if getattr(row, field) is None else f"{getattr(row, field):g}",
        lambda row: -1.0 if getattr(row, field) is None else getattr(row, field),
        falling=True,
    )


def _rate(row: Any) -> str:
    return ("-" if row.inferences_s is None else rate_text(row.inferences_s)).rjust(5)


def _devices(row: Any) -> str:
    return ", ".join(map(str, row.devices))


def _programs(row: Any) -> str:
    return ", ".join(row.programs) or "-"


_LISTINGS: Final = (
    Listing(
        "Nodes",
        lambda view: view.platforms,
        lambda row: f"{row.node} {row.platform}",
        (
            text_column("NODE", "node"),
            text_column("STATE", "state", 7),
            text_column("PLATFORM", "platform"),
            number_column("DEVICES", "devices"),
            _amount("FREE", "free"),
            _amount("LEASED", "leased"),
            number_column("USED", "used"),
            number_column("SESSIONS", "sessions"),
            Column("INF/S", _rate, lambda row: row.inferences_s or 0.0, falling=True),
            number_column("ERRORS", "errors"),
            number_column("RESETS", "restarts"),
            Column("LEASED BY", _programs, _programs),
        ),
        0,
    ),
    Listing(
        "Leases",
        lambda view: view.leases,
        lambda row: f"{row.node} {row.pid} {row.platform} {row.devices}",
        (
            text_column("NODE", "node"),
            number_column("PID", "pid"),
            text_column("PLATFORM", "platform"),
            Column("DEVICES", _devices, _devices),
            number_column("OF EACH%", "share", percent),
            number_column("SESSIONS", "sessions"),
            text_column("PROGRAM", "program"),
        ),
        0,
    ),
)


class FarmApp(TableApp):
    """`softnpu top` on a Ray cluster, which may come and go. Raise `ToolError` without Ray."""

    listings = _LISTINGS
    keys = _KEYS
    view: ClusterView | None

    def __init__(self, address: str, delay_s: float, theme: str = "ansi") -> None:
        super().__init__(delay_s, theme)
        self._monitor = ClusterMonitor(address)

    def ask(self) -> ClusterView | Exception | None:
        """Ask the process connected to Ray."""
        found = self._monitor.poll()
        return ClusterView.of(found, self.view) if isinstance(found, ClusterState) else found

    def summary(self) -> str:
        """Return the cluster and its nodes."""
        assert self.view is not None
        nodes = self.view.state.nodes
        dead = sum(node.state == DEAD for node in nodes)
        parts = [f"cluster {self._monitor.address}", format_count(len(nodes) - dead, "node")]
        if dead:
            parts.append(f"{dead} dead")
        if self.view.state.others:
            parts.append(f"{self.view.state.others} without devices")
        return ", ".join(parts)

    def lines(self) -> Text:
        """Return the sum of the living nodes, and the problems of others."""
        assert self.view is not None
        living = [row for row in self.view.platforms if row.state == ALIVE]
        rate = sum(row.inferences_s or 0.0 for row in living)
        text = Text(no_wrap=True, overflow="ellipsis")
        text.append(f"devices {sum(row.devices for row in living)}")
        text.append(f"  leased {sum(row.leased or 0.0 for row in living):g}")
        text.append(f"  sessions {sum(row.sessions for row in living)}")
        text.append(f"  {rate_text(rate)} inf/s")
        wrong = [node for node in self.view.state.nodes if node.problem]
        for node in wrong[-_MOST_PROBLEMS:]:
            text.append(f"\n{node.title} {node.state}: {node.problem}", "bold red")
        return text

    def close(self) -> None:
        """End the connection."""
        self._monitor.close()
