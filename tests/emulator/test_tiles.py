"""Tiles are accounted: a graph compiled for some of them occupies so many while it runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from softnpu.driver import Context, GraphSource
from tests.support.daemon import Daemon
from tests.support.work import barrier, recorded, run

pytestmark = pytest.mark.quick


@pytest.fixture
def daemon(shared_daemon: Daemon) -> Daemon:
    return shared_daemon


@pytest.mark.parametrize(("asked", "occupied"), [("2", 2), ("6", 6), (None, 6)])
def test_a_graph_occupies_the_tiles_it_was_compiled_for(
    daemon: Daemon, context: Context, digits: Path, asked: str | None, occupied: int
) -> None:
    assert daemon.engine().device.tiles == 6
    with GraphSource.from_ir(digits) as source:
        graph = context.create_graph(source, config={"NPU_TILES": asked} if asked else {})
    graph.initialize()
    for index, argument in enumerate(graph.meta.arguments):
        graph.set_argument_value(index, context.alloc_host(argument.byte_size))
    queue = context.create_command_queue()
    commands = recorded(context, *[lambda c: c.append_graph_execute(graph)] * 50)
    run(queue, commands)  # checks the commands: time of the device, and of no tile
    before = daemon.engine()
    run(queue, commands)
    after = daemon.engine()
    assert after.inferences == before.inferences + 50
    busy_ns = after.busy_ns - before.busy_ns
    assert busy_ns > 0
    assert after.tile_busy_ns - before.tile_busy_ns == pytest.approx(occupied * busy_ns, rel=0.01)


def test_work_without_inferences_occupies_none(daemon: Daemon, context: Context) -> None:
    before = daemon.engine()
    run(context.create_command_queue(), barrier(context))
    assert daemon.engine().submissions == before.submissions + 1
    assert daemon.engine().tile_busy_ns == before.tile_busy_ns
