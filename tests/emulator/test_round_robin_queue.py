"""Image loads take turns, so that one session's many loads delay nobody."""

from __future__ import annotations

import threading
from pathlib import Path

from softnpu.emulator.engine.round_robin_queue import RoundRobinQueue
from softnpu.emulator.interface import messages as msg
from tests.support.daemon import Daemon
from tests.support.models import write_chain
from tests.support.wire import OpenWire, WireContext, WireModel

_MANY = 12


def test_sessions_take_turns_and_each_keeps_its_order() -> None:
    queue: RoundRobinQueue[str] = RoundRobinQueue()
    for item in ("a1", "a2", "a3", "b1", "c1", "b2"):
        queue.put(ord(item[0]), item)
    assert [queue.get(0) for _ in range(7)] == ["a1", "b1", "c1", "a2", "b2", "a3", None]
    assert queue.empty()


def test_an_item_wakes_who_waits_for_one() -> None:
    queue: RoundRobinQueue[int] = RoundRobinQueue()
    taken: list[int | None] = []
    thread = threading.Thread(target=lambda: taken.append(queue.get(None)))
    thread.start()
    queue.put(0, 1)
    thread.join()
    assert taken == [1]


def test_many_loads_of_one_session_keep_nobody_else_waiting(
    daemon: Daemon, open_wire: OpenWire, private_dir: Path
) -> None:
    hog, other = WireContext(open_wire(daemon)), WireContext(open_wire(daemon))
    with WireModel(write_chain(private_dir, 8, 2, "other")) as model:
        mine = model.create(other, "other")
    graphs = []
    for number in range(_MANY):
        with WireModel(write_chain(private_dir, 16 + number, 20, f"hog{number}")) as model:
            graphs.append(model.create(hog, f"hog{number}"))
    for graph in graphs:
        hog.wire.send(msg.GraphInitialize(graph=graph))
    other.wire.ask(msg.GraphInitialize(graph=mine), msg.GraphInitialized)
    loaded = 0
    while hog.wire.channel.wait_readable(0):
        loaded += isinstance(hog.wire.receive()[1], msg.GraphInitialized)
    assert loaded < _MANY - 1, "it waited for all of them"
    while loaded < _MANY:
        loaded += isinstance(hog.wire.receive()[1], msg.GraphInitialized)
