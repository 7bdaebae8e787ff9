"""The application: asks the daemon in a thread, shows the answer in tables, and takes the keys of htop."""

from __future__ import annotations

from collections import deque
from pathlib import Path
from typing import Any, ClassVar, Final

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import DataTable, Input, Static

from softnpu.tools.console import format_bytes, format_count, format_time
from softnpu.tools.failures import describe
from softnpu.tools.groups import INTERRUPTED
from softnpu.tools.monitor.programs import Programs
from softnpu.tools.monitor.sample import Monitor, Sample
from softnpu.tools.monitor.views import DeviceView, View
from softnpu.tools.top.screens import HelpScreen, SessionScreen, SortScreen
from softnpu.tools.top.tables import LISTINGS, matches

_HISTORY: Final = 60
_BAR: Final = 16
_THEMES: Final = {"dark": "textual-dark", "light": "textual-light", "ansi": "ansi-dark"}
_HINTS: Final = (
    ("F1", "Help"),
    ("F4", "Filter"),
    ("F6", "Sort"),
    ("Space", "Pause"),
    ("Tab", "Next"),
    ("Enter", "Open"),
    ("F10", "Quit"),
)


class TopApp(App[None]):
    """`softnpu top` on the daemon at a socket, which may come and go."""

    TITLE = "softnpu top"
    CSS_PATH = "top.tcss"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("f10,q", "quit"),
        Binding("ctrl+c", "interrupt", priority=True),
        Binding("f1,h,question_mark", "help"),
        Binding("f3,f4,slash,backslash", "filter"),
        Binding("f6,greater_than_sign", "sort"),
        Binding("space,p", "pause"),
        Binding("tab", "next(1)", priority=True),
        Binding("shift+tab", "next(-1)", priority=True),
        Binding("1", "open(0)"),
        Binding("2", "open(1)"),
        Binding("3", "open(2)"),
        Binding("4", "open(3)"),
        Binding("escape", "clear"),
    ]

    def __init__(self, path: Path, delay_s: float, theme: str = "ansi") -> None:
        super().__init__()
        self.theme = _THEMES[theme]
        self.view: View | None = None
        self.problem = ""
        """Why there is no view, or none that is newer."""
        self.paused = False
        self.filter = ""
        self._monitor = Monitor(path)
        self._programs = Programs()
        self._delay_s = delay_s
        self._before: Sample | None = None
        self._polling = False
        self._listing = 0
        self._sorted = [(listing.sort, False) for listing in LISTINGS]
        self._history: dict[int, deque[float]] = {}

    # ------------------------------------------------------------ the screen

    def compose(self) -> ComposeResult:
        """Build the screen: devices, the tables' names, one table, the keys."""
        yield Static(id="head", markup=False)
        yield Static(id="devices", markup=False)
        yield Static(id="tabs", markup=False)
        yield DataTable(cursor_type="row", zebra_stripes=False)
        yield Input(placeholder="filter", id="filter", compact=True)
        keys = Text()
        for key, name in _HINTS:
            keys.append(key, "bold").append(f" {name}  ", "reverse")
        yield Static(keys, id="keys")

    def on_mount(self) -> None:
        """Begin to look."""
        self.query_one("#filter").display = False
        self.query_one(DataTable).focus()
        self.set_interval(self._delay_s, self._look)
        self._look()
        self._draw()

    def _look(self) -> None:
        """Ask the daemon in a thread: one that hangs must not hang the screen."""
        if not self._polling and not self.paused:
            self._polling = True
            self.run_worker(self._poll, thread=True)

    def _poll(self) -> None:
        sample = self._monitor.poll()
        view = View.of(sample, self._before, self._programs) if isinstance(sample, Sample) else None
        if self.is_running:
            self.call_from_thread(self._take, sample, view)

    def _take(self, sample: Sample | Exception, view: View | None) -> None:
        self._polling = False
        if self.paused:
            return
        if isinstance(sample, Exception):
            self.problem = describe(sample)
        else:
            self.problem = ""
            self._before, self.view = sample, view
            self._remember()
        self._draw()

    def _remember(self) -> None:
        assert self.view is not None
        kept = {}
        for session in self.view.sessions:
            history = self._history.get(session.session, deque(maxlen=_HISTORY))
            history.append(session.share)
            kept[session.session] = history
        self._history = kept

    def _draw(self) -> None:
        self.query_one("#head", Static).update(self._head())
        view = self.view
        devices = Text("\n").join(_device_line(device) for device in view.devices) if view else Text()
        self.query_one("#devices", Static).update(devices)
        self.query_one("#tabs", Static).update(self._tabs())
        self._fill()
        screen = self.screen
        if isinstance(screen, SessionScreen) and view is not None:
            number = screen.session.session
            matching = [each for each in view.sessions if each.session == number]
            session = matching[0] if matching else screen.session
            screen.show(session, self._history.get(number, ()), ended=not matching)

    def _head(self) -> Text:
        text = Text("softnpu top", "bold", no_wrap=True, overflow="ellipsis")
        if self.view is not None:
            state = self.view.sample.status
            text.append(f"  daemon {state.pid}, up {format_time(state.uptime_s)}", "not bold")
            text.append(f", {format_count(state.session_count, 'session')}", "not bold")
        if self.paused:
            text.append("  PAUSED", "bold reverse")
        if self.problem:
            text.append(f"  {self.problem}", "bold red")
        return text

    def _tabs(self) -> Text:
        text = Text(no_wrap=True, overflow="ellipsis")
        for index, listing in enumerate(LISTINGS):
            count = "" if self.view is None else f" {len(listing.rows(self.view))}"
            style = "reverse bold" if index == self._listing else ""
            text.append(f" {index + 1} {listing.name}{count} ", style).append(" ")
        if self.filter:
            text.append(f" filter: {self.filter}", "bold")
        return text

    def _fill(self) -> None:
        """Fill the table anew; the cursor stays on its row."""
        table = self.query_one(DataTable)
        listing = LISTINGS[self._listing]
        chosen, turned = self._sorted[self._listing]
        at = self._row_key()
        scroll = table.scroll_offset
        table.clear(columns=True)
        for number, column in enumerate(listing.columns):
            mark = ("▲" if turned == column.falling else "▼") if number == chosen else ""
            table.add_column(Text(f"{column.title}{mark}", justify="right" if column.right else "left"))
        rows = [] if self.view is None else list(listing.rows(self.view))
        rows = [row for row in rows if matches(listing, row, self.filter)]
        order = listing.columns[chosen]
        rows.sort(key=listing.key)
        rows.sort(key=order.order, reverse=order.falling != turned)
        for row in rows:
            cells = (
                Text(column.text(row), justify="right" if column.right else "left")
                for column in listing.columns
            )
            table.add_row(*cells, key=listing.key(row))
        keys = [listing.key(row) for row in rows]
        if at in keys:
            table.move_cursor(row=keys.index(at), animate=False, scroll=False)
        table.scroll_to(scroll.x, scroll.y, animate=False)

    def _row_key(self) -> str | None:
        table = self.query_one(DataTable)
        if not table.row_count:
            return None
        return table.coordinate_to_cell_key(table.cursor_coordinate).row_key.value

    # ------------------------------------------------------------ keys

    def action_interrupt(self) -> None:
        """End as every command does after Ctrl-C."""
        self.exit(return_code=INTERRUPTED)

    def action_help(self) -> None:
        """Show the keys."""
        self.push_screen(HelpScreen())

    def action_pause(self) -> None:
        """Stop or go on; what was asked before the stop is not shown any more."""
        self.paused = not self.paused
        self._draw()
        self._look()

    def action_next(self, step: int) -> None:
        """Go on to the next table."""
        self.action_open((self._listing + step) % len(LISTINGS))

    def action_open(self, listing: int) -> None:
        """Show this table."""
        if len(self.screen_stack) == 1:
            self._listing = listing
            self._draw()

    def action_sort(self) -> None:
        """Choose the column to sort by."""
        titles = [column.title for column in LISTINGS[self._listing].columns]

        def sort(column: int | None) -> None:
            if column is not None:
                chosen, turned = self._sorted[self._listing]
                self._sorted[self._listing] = (column, not turned if column == chosen else False)
                self._draw()

        self.push_screen(SortScreen(titles, self._sorted[self._listing][0]), sort)

    def action_filter(self) -> None:
        """Ask for a text that rows have to contain."""
        entry = self.query_one("#filter", Input)
        entry.value = self.filter
        entry.display = True
        entry.focus()

    def action_clear(self) -> None:
        """Show all rows again."""
        self._end_filter("")

    def on_input_changed(self, event: Input.Changed) -> None:
        """Filter while the text is being written."""
        if self.query_one("#filter").display:
            self.filter = event.value
            self._draw()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Keep the filter."""
        self._end_filter(event.value)

    def _end_filter(self, text: str) -> None:
        self.filter = text
        self.query_one("#filter").display = False
        self.query_one(DataTable).focus()
        self._draw()

    def on_data_table_row_selected(self, _: Any) -> None:
        """Open the session under the cursor."""
        key = self._row_key()
        if self.view is None or self._listing or key is None:
            return
        for reported, shown in zip(self.view.sample.sessions, self.view.sessions, strict=True):
            if str(shown.session) == key:
                command = self._programs.command(reported)
                self.push_screen(SessionScreen(shown, command, self._history.get(shown.session, ())))

    def on_unmount(self) -> None:
        """End the connection."""
        self._monitor.close()


def _device_line(device: DeviceView) -> Text:
    filled = round(_BAR * device.utilisation)
    colour = "red" if device.utilisation > 0.9 else "yellow" if device.utilisation > 0.6 else "green"
    text = Text(f"{device.name:6}", "bold", no_wrap=True, overflow="ellipsis")
    text.append("[", "not bold").append("|" * filled, colour).append(" " * (_BAR - filled))
    text.append(f"{100 * device.utilisation:5.1f}%]", "not bold")
    facts = (
        f"tiles {device.tiles_used:.1f}/{device.tiles}",
        f"mem {format_bytes(device.memory_used)}",
        f"queue {device.queued}",
        f"{device.inferences_s:.0f} inf/s",
    )
    text.append("".join(f"  {fact}" for fact in facts), "not bold")
    if device.restarts:
        text.append(f"  {format_count(device.restarts, 'restart')}", "bold yellow")
    if device.state != "ready":
        text.append(f"  {device.state}", "bold red")
    return text
