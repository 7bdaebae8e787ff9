"""Objects of two drivers in one process: each refuses the other's, whose handles mean other objects in it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from softnpu.driver import CommandList, Context, GraphSource, ZeResult
from softnpu.driver.metrics import ENV_ENABLE
from tests.conftest import OpenContext
from tests.support.daemon import Daemon
from tests.support.models import write_scale
from tests.support.work import barrier, failure, fill, run

pytestmark = pytest.mark.quick


@pytest.fixture
def other(open_context: OpenContext, daemon: Daemon) -> Context:
    """A context of a second driver on the same daemon."""
    return open_context(daemon)


def _refused(context: Context, append: Callable[[CommandList], None], what: str) -> None:
    """Check that the append is refused and has recorded nothing."""
    with context.create_command_list() as commands:
        error = failure(lambda: append(commands), ZeResult.ERROR_INVALID_ARGUMENT)
        assert error.info.object == what
        assert "another driver" in error.info.found
        assert commands._commands == []


def test_a_list_refuses_the_others_event(context: Context, other: Context) -> None:
    event = other.create_event()
    memory = context.alloc_host(64)
    _refused(context, lambda c: c.append_signal_event(event), "event")
    _refused(context, lambda c: c.append_wait_on_events([event]), "event")
    _refused(context, lambda c: c.append_event_reset(event), "event")
    _refused(context, lambda c: c.append_memory_fill(memory, b"\1", 64, event), "event")
    _refused(context, lambda c: c.append_barrier(None, [event]), "event")
    assert not event.query_status()


def test_a_list_refuses_the_others_graph(context: Context, other: Context, tmp_path: Path) -> None:
    with GraphSource.from_ir(write_scale(tmp_path, 2.0)) as source, other.create_graph(source) as graph:
        _refused(context, lambda c: c.append_graph_initialize(graph), "graph")
        _refused(context, lambda c: c.append_graph_execute(graph), "graph")


def test_a_list_refuses_the_others_metric_query(
    context: Context, other: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ENV_ENABLE, "1")
    group = other.device.get_metric_groups()[0]
    other.activate_metric_groups([group])
    query = other.create_metric_query_pool(group, 1).create_query(0)
    _refused(context, lambda c: c.append_metric_query_begin(query), "metric query")
    _refused(context, lambda c: c.append_metric_query_end(query), "metric query")


def test_a_queue_refuses_the_others_list_before_anything_runs(context: Context, other: Context) -> None:
    memory = context.alloc_host(64)
    memory.view()[:] = 0
    queue = context.create_command_queue()
    error = failure(
        lambda: queue.execute_command_lists([fill(context, memory, 7), barrier(other)]),
        ZeResult.ERROR_INVALID_ARGUMENT,
    )
    assert error.info.object == "command list"
    run(queue, barrier(context))
    assert not memory.view().any()


def test_a_context_refuses_the_others_metric_groups(
    context: Context, other: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ENV_ENABLE, "1")
    group = other.device.get_metric_groups()[0]
    other.activate_metric_groups([group])
    for use in (
        lambda: context.activate_metric_groups([group]),
        lambda: context.create_metric_query_pool(group, 1),
        lambda: context.open_metric_streamer(group, 1_000_000),
    ):
        error = failure(use, ZeResult.ERROR_INVALID_ARGUMENT)
        assert error.info.object == "metric group NPU_Execution"
        assert "another driver" in error.info.found
    own = context.device.get_metric_groups()[0]
    context.activate_metric_groups([own])
    event = other.create_event()
    error = failure(
        lambda: context.open_metric_streamer(own, 1_000_000, 1, event), ZeResult.ERROR_INVALID_ARGUMENT
    )
    assert error.info.object == "event"
