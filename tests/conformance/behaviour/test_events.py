"""Events and their pools: signals and resets by host and commands."""

from __future__ import annotations

import pytest

from softnpu.emulator.interface.result import ZeResult
from tests.conformance.api.enumerations import INFINITE
from tests.conformance.api.structures import EventDesc, EventPoolDesc
from tests.conformance.commands import after, copy, fill, reset, signal, wait
from tests.conformance.rig import BRIEF, DEADLINE, Rig, ok

pytestmark = pytest.mark.quick


def test_host_reset_acts_at_once(rig: Rig) -> None:
    event = rig.event()
    assert rig.api.ze_event_query_status(event) == ZeResult.NOT_READY
    for times in (1, 2):  # signalling is idempotent
        for _ in range(times):
            rig.signal(event)
        ok(rig.api.ze_event_query_status(event))
        ok(rig.api.ze_event_host_synchronize(event, 0))
        ok(rig.api.ze_event_host_reset(event))
        assert rig.api.ze_event_query_status(event) == ZeResult.NOT_READY


def test_event_stays_signalled_until_it_is_reset(rig: Rig) -> None:
    event = rig.event()
    rig.signal(event)
    for _ in range(3):
        ok(rig.api.ze_event_query_status(event))
        ok(rig.api.ze_event_host_synchronize(event, BRIEF))
    rig.execute(wait(event))
    ok(rig.api.ze_event_query_status(event))


def test_device_signals_and_resets_an_event(rig: Rig) -> None:
    event = rig.event()
    rig.execute(signal(event))
    ok(rig.api.ze_event_query_status(event))
    rig.execute(reset(event))
    assert rig.api.ze_event_query_status(event) == ZeResult.NOT_READY


def test_device_waits_for_a_host_signal(rig: Rig) -> None:
    gate, target, queue = rig.event(), rig.host(8), rig.queue()
    rig.submit(queue, rig.gated_copy(gate, target, rig.data(b"released"), 8))
    rig.settle()
    assert rig.api.ze_command_queue_synchronize(queue, 0) == ZeResult.NOT_READY
    assert rig.api.read(target, 8) == bytes(8)
    rig.signal(gate)
    rig.finish(queue)
    assert rig.api.read(target, 8) == b"released"


def test_device_waits_for_all_events(rig: Rig) -> None:
    first, second, target, queue = rig.event(), rig.event(), rig.host(8), rig.queue()
    rig.submit(queue, rig.recorded(wait(first, second), fill(target, b"\x01", 8)))
    rig.signal(second)
    rig.settle()
    assert rig.api.ze_command_queue_synchronize(queue, 0) == ZeResult.NOT_READY
    rig.signal(first)
    rig.finish(queue)
    assert rig.api.read(target, 8) == b"\x01" * 8


def test_event_orders_two_queues(rig: Rig) -> None:
    event, gate = rig.event(), rig.event()
    source, between, target = rig.data(b"passed on"), rig.host(9), rig.host(9)
    consumer, producer = rig.queue(), rig.queue()
    rig.submit(consumer, rig.gated_copy(event, target, between, 9))
    rig.submit(producer, rig.recorded(wait(gate), copy(between, source, 9), signal(event)))
    rig.signal(gate)
    rig.finish(consumer, producer)
    assert rig.api.read(target, 9) == b"passed on"


def test_running_a_list_again_does_not_reset_its_event(rig: Rig) -> None:
    event, gate, queue = rig.event(), rig.event(), rig.queue()
    command_list = rig.recorded(wait(gate), signal(event))
    rig.signal(gate)
    rig.submit(queue, command_list)
    rig.finish(queue)
    ok(rig.api.ze_event_host_reset(gate))
    rig.submit(queue, command_list)
    ok(rig.api.ze_event_query_status(event))
    rig.signal(gate)
    rig.finish(queue)


def test_wait_without_work_that_signals_returns_at_once(rig: Rig) -> None:
    event = rig.event()
    ok(rig.api.ze_command_list_reset(rig.recorded(signal(event))))
    assert rig.api.ze_event_host_synchronize(event, DEADLINE) == ZeResult.NOT_READY
    assert rig.api.ze_event_host_synchronize(event, INFINITE) == ZeResult.NOT_READY


@pytest.mark.parametrize("how", ["signal", "event of a command"])
def test_wait_lasts_until_the_work_that_signals_has_ended(rig: Rig, how: str) -> None:
    event, gate, queue = rig.event(), rig.event(), rig.queue()
    if how == "signal":
        rig.submit(queue, rig.recorded(wait(gate), signal(event)))
    else:
        rig.submit(queue, rig.recorded(fill(rig.host(8), b"\x01", 8, *after(gate, signal=event))))
    assert rig.api.ze_event_host_synchronize(event, BRIEF) == ZeResult.NOT_READY
    rig.signal(gate)
    ok(rig.api.ze_event_host_synchronize(event, DEADLINE))
    rig.finish(queue)


@pytest.mark.parametrize("gone", ["destroyed", "reset", "recorded again"])
def test_wait_lasts_as_long_if_the_list_is_gone_meanwhile(rig: Rig, gone: str) -> None:
    event, gate, queue = rig.event(), rig.event(), rig.queue()
    target, other = rig.host(8), rig.host(8)
    command_list = rig.recorded(wait(gate), fill(target, b"\x07", 8, event))
    rig.submit(queue, command_list)
    if gone == "destroyed":
        ok(rig.api.ze_command_list_destroy(command_list))
    else:
        ok(rig.api.ze_command_list_reset(command_list))
    if gone == "recorded again":
        rig.append(command_list, wait(gate), fill(other, b"\x08", 8))
        rig.close(command_list)
        rig.submit(queue, command_list)
    assert rig.api.ze_event_host_synchronize(event, BRIEF) == ZeResult.NOT_READY
    rig.signal(gate)
    ok(rig.api.ze_event_host_synchronize(event, DEADLINE))
    rig.finish(queue)
    assert rig.api.read(target, 8) == b"\x07" * 8
    assert rig.api.read(other, 8) == (b"\x08" if gone == "recorded again" else b"\x00") * 8


def test_event_works_at_every_index_of_a_pool(rig: Rig) -> None:
    pool = rig.pool(100)
    events = [rig.api.ze_event_create(pool, EventDesc(index)).get() for index in range(100)]
    for event in events[::2]:
        rig.signal(event)
    found = [rig.api.ze_event_query_status(event) for event in events]
    assert found == [ZeResult.SUCCESS, ZeResult.NOT_READY] * 50


def test_used_index_is_an_invalid_argument(rig: Rig) -> None:
    pool, invalid = rig.pool(2), ZeResult.ERROR_INVALID_ARGUMENT
    event = rig.api.ze_event_create(pool, EventDesc(1)).get()
    for index in (1, 2, 3, 2**32 - 1):  # the others are out of range
        assert rig.api.ze_event_create(pool, EventDesc(index)).result == invalid
    rig.signal(event)
    ok(rig.api.ze_event_destroy(event))
    again = rig.api.ze_event_create(pool, EventDesc(1)).get()
    assert rig.api.ze_event_query_status(again) == ZeResult.NOT_READY  # it starts fresh


def test_pool_creation_checks_its_arguments(rig: Rig) -> None:
    create, desc = rig.api.ze_event_pool_create, EventPoolDesc(1)
    assert create(rig.context, desc, 1, [rig.device]).get()
    assert create(rig.context, EventPoolDesc(0), 0, None).result == ZeResult.ERROR_INVALID_SIZE
    assert create(rig.context, desc, 1, None).result == ZeResult.ERROR_INVALID_SIZE
