"""Events and their pools (facts 7.3)."""

from __future__ import annotations

import pytest

from softnpu.emulator.interface.result import ZeResult
from tests.conformance.api.enumerations import INFINITE
from tests.conformance.api.structures import EventDesc, EventPoolDesc
from tests.conformance.rig import BRIEF, DEADLINE, Rig, ok

pytestmark = pytest.mark.quick

STALE = (ZeResult.ERROR_INVALID_NULL_HANDLE, ZeResult.ERROR_INVALID_ARGUMENT)


def test_new_event_is_not_ready(rig: Rig) -> None:
    assert rig.api.ze_event_query_status(rig.event()) == ZeResult.NOT_READY


def test_host_signal_acts_at_once(rig: Rig) -> None:
    event = rig.event()
    ok(rig.api.ze_event_host_signal(event))
    ok(rig.api.ze_event_query_status(event))
    ok(rig.api.ze_event_host_synchronize(event, 0))


def test_host_reset_acts_at_once(rig: Rig) -> None:
    event = rig.event()
    ok(rig.api.ze_event_host_signal(event))
    ok(rig.api.ze_event_host_reset(event))
    assert rig.api.ze_event_query_status(event) == ZeResult.NOT_READY


def test_signalling_twice_is_like_signalling_once(rig: Rig) -> None:
    event = rig.event()
    ok(rig.api.ze_event_host_signal(event))
    ok(rig.api.ze_event_host_signal(event))
    ok(rig.api.ze_event_query_status(event))
    ok(rig.api.ze_event_host_reset(event))
    assert rig.api.ze_event_query_status(event) == ZeResult.NOT_READY


def test_event_stays_signalled_until_it_is_reset(rig: Rig) -> None:
    event = rig.event()
    ok(rig.api.ze_event_host_signal(event))
    for _ in range(3):
        ok(rig.api.ze_event_query_status(event))
        ok(rig.api.ze_event_host_synchronize(event, BRIEF))


def test_event_stays_signalled_after_a_command_waited_for_it(rig: Rig) -> None:
    event, command_list = rig.event(), rig.command_list()
    ok(rig.api.ze_command_list_append_wait_on_events(command_list, 1, [event]))
    ok(rig.api.ze_event_host_signal(event))
    rig.run(command_list)
    ok(rig.api.ze_event_query_status(event))


def test_device_signals_an_event(rig: Rig) -> None:
    event, command_list = rig.event(), rig.command_list()
    ok(rig.api.ze_command_list_append_signal_event(command_list, event))
    rig.run(command_list)
    ok(rig.api.ze_event_query_status(event))


def test_device_resets_an_event(rig: Rig) -> None:
    event, command_list = rig.event(), rig.command_list()
    ok(rig.api.ze_event_host_signal(event))
    ok(rig.api.ze_command_list_append_event_reset(command_list, event))
    rig.run(command_list)
    assert rig.api.ze_event_query_status(event) == ZeResult.NOT_READY


def test_device_waits_for_a_host_signal(rig: Rig) -> None:
    gate, target, queue = rig.event(), rig.host(8), rig.queue()
    rig.submit(queue, rig.gated_copy(gate, target, rig.data(b"released"), 8))
    assert rig.api.ze_command_queue_synchronize(queue, BRIEF) == ZeResult.NOT_READY
    assert rig.api.read(target, 8) == bytes(8)
    ok(rig.api.ze_event_host_signal(gate))
    rig.finish(queue)
    assert rig.api.read(target, 8) == b"released"


def test_device_waits_for_all_events(rig: Rig) -> None:
    first, second, target, queue = rig.event(), rig.event(), rig.host(8), rig.queue()
    command_list = rig.command_list()
    ok(rig.api.ze_command_list_append_wait_on_events(command_list, 2, [first, second]))
    ok(rig.api.ze_command_list_append_memory_fill(command_list, target, b"\x01", 8))
    rig.close(command_list)
    rig.submit(queue, command_list)
    ok(rig.api.ze_event_host_signal(second))
    assert rig.api.ze_command_queue_synchronize(queue, BRIEF) == ZeResult.NOT_READY
    ok(rig.api.ze_event_host_signal(first))
    rig.finish(queue)
    assert rig.api.read(target, 8) == b"\x01" * 8


def test_event_orders_two_queues(rig: Rig) -> None:
    event, gate = rig.event(), rig.event()
    source, between, target = rig.data(b"passed on"), rig.host(9), rig.host(9)
    consumer, producer = rig.queue(), rig.queue()
    reading = rig.gated_copy(event, target, between, 9)
    writing = rig.command_list()
    ok(rig.api.ze_command_list_append_wait_on_events(writing, 1, [gate]))
    ok(rig.api.ze_command_list_append_memory_copy(writing, between, source, 9))
    ok(rig.api.ze_command_list_append_signal_event(writing, event))
    rig.close(writing)
    rig.submit(consumer, reading)
    rig.submit(producer, writing)
    ok(rig.api.ze_event_host_signal(gate))
    rig.finish(consumer)
    rig.finish(producer)
    assert rig.api.read(target, 9) == b"passed on"


def test_running_a_list_again_does_not_reset_its_event(rig: Rig) -> None:
    event, gate, queue, command_list = rig.event(), rig.event(), rig.queue(), rig.command_list()
    ok(rig.api.ze_command_list_append_wait_on_events(command_list, 1, [gate]))
    ok(rig.api.ze_command_list_append_signal_event(command_list, event))
    rig.close(command_list)
    ok(rig.api.ze_event_host_signal(gate))
    rig.submit(queue, command_list)
    rig.finish(queue)
    ok(rig.api.ze_event_host_reset(gate))
    rig.submit(queue, command_list)
    ok(rig.api.ze_event_query_status(event))
    ok(rig.api.ze_event_host_signal(gate))
    rig.finish(queue)


def test_wait_without_work_that_signals_returns_at_once(rig: Rig) -> None:
    event = rig.event()
    assert rig.api.ze_event_host_synchronize(event, DEADLINE) == ZeResult.NOT_READY
    assert rig.api.ze_event_host_synchronize(event, INFINITE) == ZeResult.NOT_READY


def test_wait_lasts_until_the_work_that_signals_has_ended(rig: Rig) -> None:
    event, gate, queue, command_list = rig.event(), rig.event(), rig.queue(), rig.command_list()
    ok(rig.api.ze_command_list_append_wait_on_events(command_list, 1, [gate]))
    ok(rig.api.ze_command_list_append_signal_event(command_list, event))
    rig.close(command_list)
    rig.submit(queue, command_list)
    assert rig.api.ze_event_host_synchronize(event, BRIEF) == ZeResult.NOT_READY
    ok(rig.api.ze_event_host_signal(gate))
    ok(rig.api.ze_event_host_synchronize(event, DEADLINE))
    rig.finish(queue)


def test_wait_for_the_signal_of_a_command_lasts_as_long(rig: Rig) -> None:
    event, gate, queue, command_list = rig.event(), rig.event(), rig.queue(), rig.command_list()
    ok(rig.api.ze_command_list_append_memory_fill(command_list, rig.host(8), b"\x01", 8, event, 1, [gate]))
    rig.close(command_list)
    rig.submit(queue, command_list)
    assert rig.api.ze_event_host_synchronize(event, BRIEF) == ZeResult.NOT_READY
    ok(rig.api.ze_event_host_signal(gate))
    ok(rig.api.ze_event_host_synchronize(event, DEADLINE))
    rig.finish(queue)


@pytest.mark.parametrize("gone", ["destroyed", "reset", "recorded again"])
def test_wait_lasts_as_long_if_the_list_is_gone_meanwhile(rig: Rig, gone: str) -> None:
    event, gate, queue, command_list = rig.event(), rig.event(), rig.queue(), rig.command_list()
    target, other = rig.host(8), rig.host(8)
    ok(rig.api.ze_command_list_append_wait_on_events(command_list, 1, [gate]))
    ok(rig.api.ze_command_list_append_memory_fill(command_list, target, b"\x07", 8, event))
    rig.close(command_list)
    rig.submit(queue, command_list)
    if gone == "destroyed":
        ok(rig.api.ze_command_list_destroy(command_list))
    else:
        ok(rig.api.ze_command_list_reset(command_list))
    if gone == "recorded again":
        ok(rig.api.ze_command_list_append_wait_on_events(command_list, 1, [gate]))
        ok(rig.api.ze_command_list_append_memory_fill(command_list, other, b"\x08", 8))
        rig.close(command_list)
        rig.submit(queue, command_list)
    assert rig.api.ze_event_host_synchronize(event, BRIEF) == ZeResult.NOT_READY
    ok(rig.api.ze_event_host_signal(gate))
    ok(rig.api.ze_event_host_synchronize(event, DEADLINE))
    rig.finish(queue)
    assert rig.api.read(target, 8) == b"\x07" * 8
    assert rig.api.read(other, 8) == (b"\x08" if gone == "recorded again" else b"\x00") * 8


def test_wait_for_the_event_of_a_reset_list_returns_at_once(rig: Rig) -> None:
    event, command_list = rig.event(), rig.command_list()
    ok(rig.api.ze_command_list_append_signal_event(command_list, event))
    rig.close(command_list)
    ok(rig.api.ze_command_list_reset(command_list))
    assert rig.api.ze_event_host_synchronize(event, DEADLINE) == ZeResult.NOT_READY


def test_event_works_at_every_index_of_a_pool(rig: Rig) -> None:
    pool = rig.pool(100)
    events = [rig.api.ze_event_create(pool, EventDesc(index)).get() for index in range(100)]
    for event in events[::2]:
        ok(rig.api.ze_event_host_signal(event))
    found = [rig.api.ze_event_query_status(event) for event in events]
    assert found == [ZeResult.SUCCESS, ZeResult.NOT_READY] * 50


def test_used_index_is_an_invalid_argument(rig: Rig) -> None:
    pool = rig.pool(2)
    rig.api.ze_event_create(pool, EventDesc(1)).get()
    assert rig.api.ze_event_create(pool, EventDesc(1)).result == ZeResult.ERROR_INVALID_ARGUMENT


@pytest.mark.parametrize("index", [2, 3, 2**32 - 1])
def test_index_out_of_range_is_an_invalid_argument(rig: Rig, index: int) -> None:
    assert rig.api.ze_event_create(rig.pool(2), EventDesc(index)).result == ZeResult.ERROR_INVALID_ARGUMENT


def test_event_at_a_used_index_starts_fresh(rig: Rig) -> None:
    pool = rig.pool(1)
    event = rig.api.ze_event_create(pool, EventDesc(0)).get()
    ok(rig.api.ze_event_host_signal(event))
    ok(rig.api.ze_event_destroy(event))
    again = rig.api.ze_event_create(pool, EventDesc(0)).get()
    assert rig.api.ze_event_query_status(again) == ZeResult.NOT_READY


def test_pool_creation_checks_its_arguments(rig: Rig) -> None:
    create, desc = rig.api.ze_event_pool_create, EventPoolDesc(1)
    assert create(rig.context, desc, 1, [rig.device]).get()
    assert create(rig.context, EventPoolDesc(0), 0, None).result == ZeResult.ERROR_INVALID_SIZE
    assert create(rig.context, desc, 1, None).result == ZeResult.ERROR_INVALID_SIZE
    assert create(None, desc, 0, None).result == ZeResult.ERROR_INVALID_NULL_HANDLE
    assert create(rig.context, None, 0, None).result == ZeResult.ERROR_INVALID_NULL_POINTER
    assert create(rig.context, desc, 0, None, out=False).result == ZeResult.ERROR_INVALID_NULL_POINTER


def test_event_creation_checks_its_arguments(rig: Rig) -> None:
    pool = rig.pool(1)
    assert rig.api.ze_event_create(None, EventDesc(0)).result == ZeResult.ERROR_INVALID_NULL_HANDLE
    assert rig.api.ze_event_create(pool, None).result == ZeResult.ERROR_INVALID_NULL_POINTER
    made = rig.api.ze_event_create(pool, EventDesc(0), out=False)
    assert made.result == ZeResult.ERROR_INVALID_NULL_POINTER


def test_null_event_is_refused(rig: Rig) -> None:
    api, null, command_list = rig.api, ZeResult.ERROR_INVALID_NULL_HANDLE, rig.command_list()
    assert api.ze_event_destroy(None) == null
    assert api.ze_event_host_signal(None) == null
    assert api.ze_event_host_reset(None) == null
    assert api.ze_event_query_status(None) == null
    assert api.ze_event_host_synchronize(None, 0) == null
    assert api.ze_event_pool_destroy(None) == null
    assert api.ze_command_list_append_signal_event(command_list, None) == null
    assert api.ze_command_list_append_event_reset(command_list, None) == null


def test_destroyed_event_is_refused(rig: Rig) -> None:
    event = rig.event()
    ok(rig.api.ze_event_destroy(event))
    assert rig.api.ze_event_query_status(event) in STALE
    assert rig.api.ze_event_host_signal(event) in STALE
    assert rig.api.ze_event_destroy(event) in STALE
