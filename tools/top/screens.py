"""The screens above the tables: one session, the choice of a column, the keys."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from typing import Any, Final

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical, VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Label, OptionList, Sparkline, Static

from softnpu.emulator.common.printable import printable
from softnpu.tools.shared.console import format_bytes, format_time
from softnpu.tools.shared.monitor.views import SessionView
from softnpu.tools.top.tables import percent

_CLOSE: Final = Binding("escape,q,f10,enter", "dismiss", "Back", priority=True)
_STATES: Final = {
    "idle": "idle: it has nothing submitted",
    "running": "running: the device works for it",
    "turn": "turn: its submissions wait for those of others",
    "event": "event: a submission waits for an event to be signalled",
    "load": "load: a model is being loaded onto the device",
    "compile": "compile: the compiler works for it",
}
KEYS: Final = """\
F3 F4 / \\   filter: show what contains a text; Esc shows all
F6 >        choose the column to sort by; once more: the other way round
Space p     pause, and go on
Tab 1 to 4  sessions, models, compilations, leases
Enter       one session
F1 h ?      this
F10 q       quit

NPU% is the part of the device's time in the last interval, as a
process sees CPU% in htop: with two devices it may reach 200.
"""


class SessionScreen(ModalScreen[None]):
    """One session: all its data, and its share over the last minute."""

    BINDINGS = [_CLOSE]

    def __init__(
        self, session: SessionView, command: Sequence[str], history: Sequence[float], delay_s: float
    ) -> None:
        super().__init__()
        self.session = session
        self._command = command
        self._history = history
        self._delay_s = delay_s

    def compose(self) -> ComposeResult:
        """Build the window."""
        with Vertical(classes="window") as window:
            window.border_title = f"session {self.session.session}"
            window.border_subtitle = "Esc: back"
            with VerticalScroll():
                yield Static(id="facts")
            yield Label(id="span")
            yield Sparkline(self._history, id="history")

    def on_mount(self) -> None:
        """Fill it."""
        self.show(self.session, self._history, ended=False)

    def show(self, session: SessionView, history: Sequence[float], ended: bool) -> None:
        """Show newer figures, or that the session has ended."""
        facts: dict[str, object] = {
            "process": f"{session.pid}, user {session.user}",
            "program": session.program,
            "command": shlex.join(self._command) or "cannot be read",
            "state": "it has ended" if ended else _STATES.get(session.state, session.state),
            "device time": f"{format_time(session.busy_s)} in {format_time(session.age_s)}, "
            f"{percent(session.share)} % now",
            "inferences": f"{session.inferences}, {session.inferences_s:.1f} a second",
            "queued": session.queued,
            "memory": format_bytes(session.memory),
            "models": ", ".join(session.models) or "none",
        }
        text = Text()
        for name, value in facts.items():
            text.append(f"{name:12}", "bold").append(f"{printable(str(value))}\n")
        self.query_one("#facts", Static).update(text)
        span = format_time(len(history) * self._delay_s)
        self.query_one("#span", Label).update(f"its share of the device's time, the last {span}:")
        self.query_one("#history", Sparkline).data = [*history]


class SortScreen(ModalScreen[int]):
    """Chooses a column; its result is the column's number."""

    BINDINGS = [Binding("escape,q,f10", "dismiss", "Back", priority=True)]

    def __init__(self, titles: Sequence[str], chosen: int) -> None:
        super().__init__()
        self._titles = titles
        self._chosen = chosen

    def compose(self) -> ComposeResult:
        """Build the window."""
        with Vertical(classes="window narrow") as window:
            window.border_title = "sort by"
            yield OptionList(*self._titles)

    def on_mount(self) -> None:
        """Start at the current sort column."""
        options = self.query_one(OptionList)
        options.highlighted = self._chosen
        options.focus()

    def on_option_list_option_selected(self, event: Any) -> None:
        """Close with the choice."""
        self.dismiss(event.option_index)


class HelpScreen(ModalScreen[None]):
    """The keys."""

    BINDINGS = [_CLOSE, Binding("f1,h,question_mark", "dismiss", show=False)]

    def __init__(self, keys: str) -> None:
        super().__init__()
        self._keys = keys

    def compose(self) -> ComposeResult:
        """Build the window."""
        with Vertical(classes="window") as window:
            window.border_title = f"softnpu top, pid {os.getpid()}"
            window.border_subtitle = "Esc: back"
            yield Static(self._keys, markup=False)
