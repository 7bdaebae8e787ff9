"""`softnpu top` on one daemon: its devices, sessions, models, compilations and leases."""

from __future__ import annotations

from collections import deque
from pathlib import Path
from typing import Any, Final

from rich.text import Text

from softnpu.tools.shared.console import format_bytes, format_count, format_time
from softnpu.tools.shared.monitor.programs import Programs
from softnpu.tools.shared.monitor.sample import Monitor, Sample
from softnpu.tools.shared.monitor.views import DeviceView, View
from softnpu.tools.top.history import SPAN_S, History
from softnpu.tools.top.screens import KEYS, SessionScreen
from softnpu.tools.top.table_app import TableApp
from softnpu.tools.top.tables import LISTINGS

_LONGEST_BAR: Final = 10
_SHORTEST_BAR: Final = 2


class TopApp(TableApp):
    """`softnpu top` on the daemon at a socket, which may come and go."""

    listings = LISTINGS
    keys = KEYS
    opens = True
    view: View | None

    def __init__(self, path: Path, delay_s: float, theme: str = "ansi") -> None:
        super().__init__(delay_s, theme)
        self._monitor = Monitor(path)
        self._programs = Programs()
        self._before: Sample | None = None
        self._history: dict[int, deque[float]] = {}
        self._devices: dict[str, History] = {}

    def ask(self) -> View | Exception:
        """Ask the daemon."""
        sample = self._monitor.poll()
        return View.of(sample, self._before, self._programs) if isinstance(sample, Sample) else sample

    def take(self, view: View) -> None:
        """Store the view, and the shares of the last minute."""
        if self._before is None or self._before.status.pid != view.sample.status.pid:
            # the first rates are those since the daemon's start: no history
            self._devices = {device.name: History() for device in view.devices}
        else:
            for device in view.devices:
                self._devices[device.name].add(view.sample.at, view.interval_s, device.utilisation)
        self._before, self.view = view.sample, view
        kept = {}
        for session in view.sessions:
            history = self._history.get(session.session, deque(maxlen=max(1, round(SPAN_S / self._delay_s))))
            history.append(session.share)
            kept[session.session] = history
        self._history = kept
        screen = self.screen
        if isinstance(screen, SessionScreen):
            number = screen.session.session
            found = [each for each in view.sessions if each.session == number]
            shown = found[0] if found else screen.session
            screen.show(shown, self._history.get(number, ()), ended=not found)

    def summary(self) -> str:
        """Return the daemon and its number of sessions."""
        assert self.view is not None
        state = self.view.sample.status
        sessions = format_count(state.session_count, "session")
        return f"daemon {state.pid}, up {format_time(state.uptime_s)}, {sessions}"

    def lines(self) -> Text:
        """Return the devices, each with its history below."""
        assert self.view is not None
        lines = []
        for device in self.view.devices:
            history = Text(f"{'':6}", no_wrap=True).append(self._devices[device.name].line(), "green")
            lines += [
                device_line(device, self.size.width),
                history.append(f"  the last {SPAN_S:.0f} s", "dim"),
            ]
        return Text("\n").join(lines)

    def close(self) -> None:
        """End the connection."""
        self._monitor.close()

    def on_data_table_row_selected(self, _: Any) -> None:
        """Open the session under the cursor."""
        key = self.row_key()
        if self.view is None or self._listing or key is None:
            return
        for told, shown in zip(self.view.sample.sessions, self.view.sessions, strict=True):
            if str(shown.session) == key:
                command = self._programs.command(told)
                history = self._history.get(shown.session, ())
                self.push_screen(SessionScreen(shown, command, history, self._delay_s))


def device_line(device: DeviceView, columns: int) -> Text:
    """Return the figures of a device; the bar is what becomes shorter where columns are few."""
    colour = "red" if device.utilisation > 0.9 else "yellow" if device.utilisation > 0.6 else "green"
    facts = Text(f"{100 * device.utilisation:5.1f}%]")
    for fact in (
        f"tiles {device.tiles_used:.1f}/{device.tiles}",
        f"mem {format_bytes(device.memory_used)}",
        f"queue {device.queued}",
        f"{device.inferences_s:.0f} inf/s",
    ):
        facts.append(f"  {fact}")
    if device.restarts:
        facts.append(f"  {format_count(device.restarts, 'restart')}", "bold yellow")
    if device.state != "ready":
        facts.append(f"  {device.state}", "bold red")
    text = Text(f"{device.name:6}[", no_wrap=True, overflow="ellipsis")
    text.stylize("bold", 0, len(device.name))
    bar = min(_LONGEST_BAR, max(_SHORTEST_BAR, columns - len(text) - len(facts)))
    filled = round(bar * device.utilisation)
    return text.append("|" * filled, colour).append(" " * (bar - filled)).append_text(facts)
