"""A screen with tables and the keys of htop: it polls in a thread, and shows the answers."""

from __future__ import annotations

from typing import Any, ClassVar, Final

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import DataTable, Input, Static

from softnpu.emulator.common.printable import printable
from softnpu.tools.shared.failures import describe
from softnpu.tools.shared.groups import INTERRUPTED
from softnpu.tools.top.screens import HelpScreen, SortScreen
from softnpu.tools.top.tables import Listing, matches

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


class TableApp(App[None]):
    """The common part of all `softnpu top` screens; `listings` are the tables that Tab cycles through."""

    listings: ClassVar[tuple[Listing, ...]]
    keys: ClassVar[str]
    """The text of the help."""
    opens: ClassVar[bool] = False
    """Whether Enter opens a row."""
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

    def __init__(self, delay_s: float, theme: str) -> None:
        super().__init__()
        self.theme = _THEMES[theme]
        self.view: Any = None
        self.problem = ""
        """Why there is no view, or no newer one."""
        self.paused = False
        self.filter = ""
        self._delay_s = delay_s
        self._polling = False
        self._listing = 0
        self._sorted = [(listing.sort, False) for listing in self.listings]

    # ------------------------------------------------------------ specific to each kind of screen

    def ask(self) -> Any:
        """Wait for the next view, in a thread: the view, an exception, or None for nothing new."""
        raise NotImplementedError

    def take(self, view: Any) -> None:
        """Store a view."""
        self.view = view

    def summary(self) -> str:
        """Return the first line."""
        raise NotImplementedError

    def lines(self) -> Text:
        """Return the lines above the tables."""
        raise NotImplementedError

    def close(self) -> None:
        """End the connection."""
        raise NotImplementedError

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
            if name == "Open" and not self.opens:
                continue
            keys.append(key, "bold").append(f" {name} ", "reverse")
        yield Static(keys, id="keys")

    def on_mount(self) -> None:
        """Begin to look."""
        self.query_one("#filter").display = False
        self.query_one(DataTable).focus()
        self.set_interval(self._delay_s, self._look)
        self._look()
        self._draw()

    def _look(self) -> None:
        """Query the daemon in a thread: one that hangs must not hang the screen."""
        if not self._polling and not self.paused:
            self._polling = True
            self.run_worker(self._poll, thread=True)

    def _poll(self) -> None:
        answer = self.ask()
        if self.is_running:
            self.call_from_thread(self._take, answer)

    def _take(self, answer: Any) -> None:
        self._polling = False
        if self.paused or answer is None:
            return
        if isinstance(answer, Exception):
            self.problem = describe(answer)
        else:
            self.problem = ""
            self.take(answer)
        self._draw()

    def _draw(self) -> None:
        self.query_one("#head", Static).update(self._head())
        self.query_one("#devices", Static).update(self.lines() if self.view is not None else Text())
        self.query_one("#tabs", Static).update(self._tabs())
        self._fill()

    def _head(self) -> Text:
        text = Text("softnpu top", "bold", no_wrap=True, overflow="ellipsis")
        if self.view is not None:
            text.append(f"  {self.summary()}", "not bold")
        if self.paused:
            text.append("  PAUSED", "bold reverse")
        if self.problem:
            text.append(f"  {self.problem}", "bold red")
        return text

    def _tabs(self) -> Text:
        text = Text(no_wrap=True, overflow="ellipsis")
        for index, listing in enumerate(self.listings):
            count = "" if self.view is None else f" {len(listing.rows(self.view))}"
            style = "reverse bold" if index == self._listing else ""
            text.append(f" {index + 1} {listing.name}{count} ", style).append(" ")
        if self.filter:
            text.append(f" filter: {self.filter}", "bold")
        return text

    def _fill(self) -> None:
        """Refill the table; the cursor stays on its row."""
        table = self.query_one(DataTable)
        listing = self.listings[self._listing]
        chosen, turned = self._sorted[self._listing]
        at = self.row_key()
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
                Text(printable(column.text(row)), justify="right" if column.right else "left")
                for column in listing.columns
            )
            table.add_row(*cells, key=listing.key(row))
        keys = [listing.key(row) for row in rows]
        if at in keys:
            table.move_cursor(row=keys.index(at), animate=False, scroll=False)
        table.scroll_to(scroll.x, scroll.y, animate=False)

    def row_key(self) -> str | None:
        """Return the row under the cursor, by the key of its listing."""
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
        self.push_screen(HelpScreen(self.keys))

    def action_pause(self) -> None:
        """Pause or resume; questions asked before the pause are not shown any more."""
        self.paused = not self.paused
        self._draw()
        self._look()

    def action_next(self, step: int) -> None:
        """Go on to the next table."""
        self.action_open((self._listing + step) % len(self.listings))

    def action_open(self, listing: int) -> None:
        """Show this table."""
        if len(self.screen_stack) == 1 and listing < len(self.listings):
            self._listing = listing
            self._draw()

    def action_sort(self) -> None:
        """Choose the column to sort by."""
        titles = [column.title for column in self.listings[self._listing].columns]

        def sort(column: int | None) -> None:
            if column is not None:
                chosen, turned = self._sorted[self._listing]
                self._sorted[self._listing] = (column, not turned if column == chosen else False)
                self._draw()

        self.push_screen(SortScreen(titles, self._sorted[self._listing][0]), sort)

    def action_filter(self) -> None:
        """Ask for a text that rows must contain."""
        entry = self.query_one("#filter", Input)
        entry.value = self.filter
        entry.display = True
        entry.focus()

    def action_clear(self) -> None:
        """Show all rows again."""
        self._end_filter("")

    def on_input_changed(self, event: Input.Changed) -> None:
        """Filter while the text is being typed."""
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

    def on_unmount(self) -> None:
        """End the connection."""
        self.close()
