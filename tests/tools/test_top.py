"""`softnpu top`, driven without a terminal: its view of a real daemon, and its keys."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from textual.pilot import Pilot
from textual.widgets import DataTable, Label, Static

from softnpu.driver import Lease
from softnpu.tools.shared.monitor.views import DeviceView
from softnpu.tools.top.app import TopApp, device_line
from softnpu.tools.top.history import History
from softnpu.tools.top.screens import HelpScreen, SessionScreen, SortScreen
from tests.conftest import OpenContext, StartDaemon, StartPython
from tests.support.cli import softnpu
from tests.support.waiting import DEADLINE_S
from tests.support.work import Loaded

_SIZE = (70, 24)
_CLIENT = """
driver = Driver.open(given["socket"])
context = driver.devices[0].create_context()
memory = context.alloc_host(given["size"])
say("here")
hear()
"""


def _run(app: TopApp, steps: Callable[[Pilot[None]], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        async with app.run_test(size=_SIZE) as pilot:
            await steps(pilot)

    asyncio.run(asyncio.wait_for(run(), 4 * DEADLINE_S))


async def _until(pilot: Pilot[None], holds: Callable[[], object]) -> None:
    """Wait until something holds; `_run` has the deadline."""
    while not holds():
        await pilot.pause(0.02)


def _shown(app: TopApp, name: str = "") -> str:
    """Return the text of one line of the screen, or of the whole table."""
    if name:
        return str(app.query_one(f"#{name}", Static).render())
    table = app.query_one(DataTable)
    return "\n".join(" ".join(map(str, table.get_row_at(row))) for row in range(table.row_count))


def test_devices_sessions_and_models_and_the_keys_of_htop(
    start_daemon: StartDaemon, open_context: OpenContext, start_python: StartPython, digits: Path
) -> None:
    daemon = start_daemon(devices=("4000", "3720"))
    model = Loaded(open_context(daemon), digits)
    model.infer(model.context.create_command_queue())
    client = start_python(_CLIENT, socket=str(daemon.socket), size=5 << 20)
    client.hear()
    app = TopApp(daemon.socket, 0.2)

    async def steps(pilot: Pilot[None]) -> None:
        await _until(pilot, lambda: app.view is not None)
        assert f"daemon {daemon.pid}" in _shown(app, "head")
        assert "2 sessions" in _shown(app, "head"), "it has none of its own"
        lines = _shown(app, "devices").splitlines()
        assert [line.split()[0] for line in lines[::2]] == ["NPU.0", "NPU.1"]
        assert all(line.endswith("  the last 60 s") for line in lines[1::2])
        assert max(len(line.rstrip()) for line in (*lines, _shown(app, "keys"))) <= _SIZE[0]
        await _until(pilot, lambda: "▁" in _shown(app, "devices"))
        assert "mem 5." in _shown(app, "devices")
        assert len(_shown(app).splitlines()) == 2

        await pilot.press("slash", *"5.0 mib", "enter")
        assert _shown(app).split()[0] == str(client.pid)
        await pilot.press("escape")
        assert len(_shown(app).splitlines()) == 2

        await pilot.press("f6")
        assert isinstance(app.screen, SortScreen)
        await pilot.press("home", "down", "down", "down", "down", "enter")  # MEM: the largest first
        await _until(pilot, lambda: _shown(app).startswith(str(client.pid)))
        await pilot.press("f6", "enter")  # the same column: reversed
        await _until(pilot, lambda: not _shown(app).startswith(str(client.pid)))
        await pilot.press("f6", "enter")
        await _until(pilot, lambda: _shown(app).startswith(str(client.pid)))

        await pilot.press("home", "enter")
        assert isinstance(app.screen, SessionScreen)
        facts = str(app.screen.query_one("#facts", Static).render())
        assert f"{client.pid}, user " in facts
        assert "5.0 MiB" in facts
        assert re.search(r"the last [\d.]+ m?s:", str(app.screen.query_one("#span", Label).render()))
        await pilot.press("escape", "question_mark")
        assert isinstance(app.screen, HelpScreen)
        await pilot.press("escape", "tab")
        assert "digits" in _shown(app)
        await pilot.press("1", "space")
        assert "PAUSED" in _shown(app, "head")
        client.tell()
        client.finish()
        assert len(_shown(app).splitlines()) == 2
        await pilot.press("p")
        await _until(pilot, lambda: len(_shown(app).splitlines()) == 1)
        await pilot.press("f10")

    _run(app, steps)
    assert app.return_code == 0
    assert daemon.status().session_count == 1


def test_a_minute_of_a_device_is_a_line_of_thirty_columns() -> None:
    history = History()
    assert history.line() == " " * 30
    for second in range(100, 104):
        history.add(second, 1.0, (second - 100) / 3)
    assert history.line() == " " * 28 + "▃█"
    history.add(113, 10.0, 0.5)  # a slow answer fills its time
    assert history.line() == " " * 23 + "▃█▅▅▅▅▅"
    history.add(173, 1.0, 0.0)
    assert history.line() == " " * 29 + "▁"


def test_a_busy_device_fits_seventy_columns() -> None:
    device = DeviceView(
        "NPU.0", "4000", "ready", 1.0, 6.0, 6, (1 << 30) - 1, 1 << 34, 1000, 12345.0, 0.0, 0, 1000
    )
    assert device_line(device, 70).plain == (
        "NPU.0 [||100.0%]  tiles 6.0/6  mem 1024.0 MiB  queue 1000  12345 inf/s"
    )
    assert device_line(device, 120).plain.startswith("NPU.0 [||||||||||100.0%]  tiles")


def test_leases_are_listed_in_a_table(start_daemon: StartDaemon) -> None:
    daemon = start_daemon(devices=("4000", "3720"), leased_only=True)
    app = TopApp(daemon.socket, 0.2)

    async def steps(pilot: Pilot[None]) -> None:
        with Lease.take(daemon.socket, platform="3720"):
            await _until(pilot, lambda: "Leases 1" in _shown(app, "tabs"))
            await pilot.press("4")
            assert _shown(app).split()[:4] == [str(os.getpid()), "NPU.1", "100.0", "0"]
        await _until(pilot, lambda: "Leases 0" in _shown(app, "tabs"))

    _run(app, steps)


@pytest.mark.parametrize("theme", ["ansi", "dark", "light"])
def test_it_survives_the_end_of_the_daemon_and_shows_the_next(start_daemon: StartDaemon, theme: str) -> None:
    first = start_daemon()
    app = TopApp(first.socket, 0.2, theme)

    async def steps(pilot: Pilot[None]) -> None:
        await _until(pilot, lambda: f"daemon {first.pid}" in _shown(app, "head"))
        first.stop()
        await _until(pilot, lambda: "expected a running daemon" in app.problem)
        assert app.problem in _shown(app, "head")
        second = start_daemon()
        await _until(pilot, lambda: f"daemon {second.pid}" in _shown(app, "head"))
        assert app.problem == ""
        await pilot.press("ctrl+c")

    _run(app, steps)
    assert app.return_code == 130


def test_without_a_terminal_it_names_the_alternative(private_dir: Path) -> None:
    assert softnpu("top", "--socket", private_dir / "npu.sock").complaint == (
        "softnpu top: no terminal; expected one to show a screen on. Use 'softnpu status --watch'"
    )
