"""An argument of the wrong type fails the call before any effect."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from softnpu.driver import CommandQueue, Context, CopyRegion, ZeResult
from tests.support.work import failure, fill, run

Call = Callable[[Any, Any], object]  # takes a context and an object of the wrong type

_REGION = CopyRegion(0, 0, 0, 4, 4)


def _waiting(context: Context) -> CommandQueue:
    """A queue that waits for an event."""
    queue, commands = context.create_command_queue(), context.create_command_list()
    commands.append_wait_on_events([context.create_event()])
    commands.close()
    queue.execute_command_lists([commands])
    return queue


_CALLS: dict[str, Call] = {
    "allocation": lambda c, wrong: c.alloc_host(wrong),
    "alignment": lambda c, wrong: c.alloc_device(64, wrong),
    "import": lambda c, wrong: c.import_memory(wrong),
    "kind of import": lambda c, wrong: c.import_memory(0, wrong),
    "free": lambda c, wrong: c.free(wrong),
    "priority": lambda c, wrong: c.create_command_queue(wrong),
    "slots": lambda c, wrong: c.create_command_queue(slots=wrong),
    "immediate priority": lambda c, wrong: c.create_command_list_immediate(wrong),
    "lists": lambda c, wrong: c.create_command_queue().execute_command_lists([wrong]),
    "fence": lambda c, wrong: c.create_command_queue().execute_command_lists(
        [c.create_command_list()], wrong
    ),
    "workload": lambda c, wrong: c.create_command_queue().set_workload_type(wrong),
    "time-out": lambda c, wrong: _waiting(c).synchronize(wrong),
    "event pool": lambda c, wrong: c.create_event_pool(wrong),
    "event": lambda c, wrong: c.create_event_pool(1).create_event(wrong),
    "signal": lambda c, wrong: c.create_command_list().append_signal_event(wrong),
    "waits": lambda c, wrong: c.create_command_list().append_barrier(None, [wrong]),
    "copy": lambda c, wrong: c.create_command_list().append_memory_copy(wrong, wrong, 4),
    "size of copy": lambda c, wrong: c.create_command_list().append_memory_copy(
        c.alloc_host(64), c.alloc_host(64), wrong
    ),
    "pitch": lambda c, wrong: c.create_command_list().append_memory_copy_region(
        c.alloc_host(64), _REGION, wrong, c.alloc_host(64), _REGION, 4
    ),
    "pattern": lambda c, wrong: c.create_command_list().append_memory_fill(c.alloc_host(64), wrong, 64),
    "size of fill": lambda c, wrong: c.create_command_list().append_memory_fill(
        c.alloc_host(64), b"1", wrong
    ),
    "graph": lambda c, wrong: c.create_command_list().append_graph_execute(wrong),
    "initialized graph": lambda c, wrong: c.create_command_list().append_graph_initialize(wrong),
    "metric query": lambda c, wrong: c.create_command_list().append_metric_query_begin(wrong),
    "metric group": lambda c, wrong: c.open_metric_streamer(wrong, 1_000_000),
    "source": lambda c, wrong: c.create_graph(wrong),
}


@pytest.mark.parametrize("name", _CALLS)
def test_a_wrong_type_is_an_error_of_the_call(context: Context, name: str) -> None:
    for wrong in (context.device, [1]):
        call = partial(_CALLS[name], context, wrong)
        assert failure(call, ZeResult.ERROR_INVALID_ARGUMENT).call
    memory = context.alloc_host(64)
    run(context.create_command_queue(), fill(context, memory, 7))
    assert memory.view().all()
