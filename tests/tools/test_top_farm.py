"""`softnpu top --farm` and `status --farm` without Ray: the display of samples, and of a silent process."""

from __future__ import annotations

import asyncio
import importlib.util
import sys
import time
from pathlib import Path

import msgspec
import pytest
from textual.widgets import DataTable, Static

from softnpu.tools.farm import monitor
from softnpu.tools.farm.monitor import ClusterMonitor, look_once
from softnpu.tools.farm.states import ALIVE, DEAD, NO_DAEMON, SILENT, ClusterState, NodeState, PlatformState
from softnpu.tools.farm.views import ClusterView
from softnpu.tools.shared.failures import ToolError
from softnpu.tools.top.farm_app import FarmApp
from tests.support.cli import softnpu
from tests.support.waiting import DEADLINE_S, wait_gone

_ANSWERS = """
import sys, time
for number, _ in enumerate(sys.stdin):
    answers = open(sys.argv[1]).read().splitlines()
    if number == len(answers):
        break
    if answers[number] == "silence":
        time.sleep(600)
    print(answers[number], flush=True)
"""


def _node(inferences: int = 0, uptime_s: float = 1.0, state: str = ALIVE, **fields: object) -> NodeState:
    platform = PlatformState(platform="4000", devices=2, free=1.0, leased=1.0, inferences=inferences)
    node = NodeState(
        name="host", node_id="a" * 56, state=state, platforms=(platform,), daemon_pid=7, uptime_s=uptime_s
    )
    return msgspec.structs.replace(node, **fields)


def _cluster(*nodes: NodeState) -> ClusterState:
    return ClusterState(nodes=nodes)


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch, private_dir: Path) -> Path:
    """A file with the answers of the process that asks Ray, one per line; after the last one it ends."""
    path = private_dir / "answers"
    monkeypatch.setattr(monitor, "_PYTHON", (sys.executable, "-c", _ANSWERS, str(path)))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name)
    return path


def _write(path: Path, *answers: object) -> None:
    lines = [each if each == "silence" else msgspec.json.encode(each).decode() for each in answers]
    path.write_text("\n".join(map(str, lines)))


def test_rates_span_two_answers_of_one_daemon() -> None:
    first = ClusterView.of(_cluster(_node(10, 1.0)), None)
    second = ClusterView.of(_cluster(_node(30, 3.0)), first)
    unanswered = ClusterView.of(_cluster(_node(30, 3.0)), second)
    next_daemon = ClusterView.of(_cluster(_node(5, 4.0, daemon_pid=8)), unanswered)
    silent = ClusterView.of(_cluster(_node(90, 9.0, state=SILENT)), unanswered)
    rates = [
        view.platforms[0].inferences_s for view in (first, second, unanswered, next_daemon, silent)
    ]  # fmt: skip
    assert rates == [None, 10.0, 10.0, None, None]


def test_without_ray_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(ToolError, match=r"ray: not installed.*pip install 'softnpu\[ray,tools\]'"):
        FarmApp("auto", 1.0)
    with pytest.raises(ToolError, match="not installed"):
        look_once("auto")


def test_options_of_a_daemon_and_of_a_cluster_do_not_mix(private_dir: Path) -> None:
    for command in ("status", "top"):
        assert "--farm and --socket" in softnpu(command, "--farm", "--socket", private_dir / "s").err
        assert "--address without --farm" in softnpu(command, "--address", "h:1").err
    assert "top --farm" in softnpu("status", "--farm", "--watch").err
    assert softnpu("top", "--farm").complaint.endswith("Use 'softnpu status --farm'")


@pytest.mark.farm
def test_an_address_without_a_listener_is_reported_at_once() -> None:
    pytest.importorskip("ray")
    begun = time.monotonic()
    told = softnpu("farm", "status", "--address", "127.0.0.1:1").complaint
    assert told.startswith("cluster 127.0.0.1:1: [Errno 111] Connection refused; expected a running cluster")
    assert softnpu("status", "--farm", "--address", "127.0.0.1:1").complaint == told
    assert time.monotonic() - begun < DEADLINE_S, "Ray would try for minutes"


def test_a_hanging_or_ended_process_is_reported_and_replaced(
    answers: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(monitor, "_SILENT_S", 0.2)
    monkeypatch.setattr(monitor, "_HUNG_S", 1.0)
    monkeypatch.setattr(monitor, "_AGAIN_S", 0.1)
    _write(answers, _cluster(_node()), "silence")
    asked = ClusterMonitor("auto")
    try:
        assert isinstance(asked.poll(DEADLINE_S), ClusterState)
        process = asked._asker._process.pid  # type: ignore[union-attr]
        assert asked.poll(0.0) is None
        told = [str(asked.poll(0.3)) for _ in range(4)]
        assert "no answer for" in told[0]
        assert "no answer within 1 s" in told[-1]
        wait_gone(process)
        _write(answers, _cluster(_node()))
        while not isinstance(asked.poll(DEADLINE_S), ClusterState):
            pass
        assert "the connection to it ended" in str(asked.poll(DEADLINE_S))
    finally:
        asked.close()
    assert asked.poll() is None


def test_the_screen_shows_nodes_and_updates_without_answers(
    answers: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(monitor, "_SILENT_S", 0.2)
    dead = _node(state=DEAD, node_id="b" * 56, problem="the machine is gone")
    lost = _node(state=NO_DAEMON, node_id="c" * 56, problem="a socket that nobody serves")
    _write(answers, _cluster(_node(10, 1.0)), _cluster(_node(30, 2.0), dead, lost), "silence")
    app = FarmApp("auto", 0.2)

    def text(name: str) -> str:
        return str(app.query_one(f"#{name}", Static).render())

    def rows() -> list[list[str]]:
        table = app.query_one(DataTable)
        return [[str(cell).strip() for cell in table.get_row_at(row)] for row in range(table.row_count)]

    async def steps() -> None:
        async with app.run_test(size=(120, 24)) as pilot:
            while "no answer for" not in text("head"):
                await pilot.pause(0.02)
            assert "2 nodes, 1 dead" in text("head")
            assert [row[:5] for row in rows()] == [
                ["host aaaaaaaa", "alive", "4000", "2", "1"],
                ["host bbbbbbbb", "dead", "4000", "2", "1"],
                ["host cccccccc", "no daemon", "4000", "2", "1"],
            ]
            assert [row[8] for row in rows()] == ["20.0", "-", "-"]
            assert "host bbbbbbbb dead: the machine is gone" in text("devices")
            await pilot.press("slash", *"cccc", "enter")
            assert len(rows()) == 1
            await pilot.press("escape", "2", "f1", "escape", "q")

    asyncio.run(asyncio.wait_for(steps(), 4 * DEADLINE_S))
    assert app.return_code == 0
