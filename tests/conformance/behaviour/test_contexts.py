"""Contexts own what is created in them and know nothing of each other (facts 1.3)."""

from __future__ import annotations

import pytest

from softnpu.emulator.interface.result import ZeResult
from tests.conformance.api.structures import ContextDesc
from tests.conformance.holdings import Holdings
from tests.conformance.rig import Rig, ok

pytestmark = pytest.mark.quick

STALE = (ZeResult.ERROR_INVALID_NULL_HANDLE, ZeResult.ERROR_INVALID_ARGUMENT)


def test_context_status_is_success(rig: Rig) -> None:
    ok(rig.api.ze_context_get_status(rig.context))


def test_many_contexts_live_at_once(rig: Rig) -> None:
    contexts = [rig.new_context() for _ in range(32)]
    pointers = [rig.host(4096, context) for context in contexts]
    assert len(set(pointers)) == len(contexts)


def test_destroying_a_context_gives_back_what_was_created_in_it(rig: Rig, holdings: Holdings) -> None:
    before = holdings.count()
    context = rig.new_context()
    queue = rig.queue(context)
    rig.fence(queue)
    rig.command_list(context)
    rig.pool(4, context)
    rig.host(4096, context)
    assert holdings.count() != before
    ok(rig.api.ze_context_destroy(context))
    assert holdings.count() == before


def test_memory_of_another_context_is_unknown(rig: Rig) -> None:
    other = rig.new_context()
    foreign = rig.host(64, other)
    assert rig.api.ze_mem_get_alloc_properties(rig.context, foreign).result == ZeResult.ERROR_NOT_AVAILABLE


def test_copy_between_contexts_is_refused_when_appended(rig: Rig) -> None:
    other = rig.new_context()
    foreign, own = rig.host(64, other), rig.host(64)
    command_list = rig.command_list()
    for target, source in ((foreign, own), (own, foreign)):
        result = rig.api.ze_command_list_append_memory_copy(command_list, target, source, 64)
        assert result == ZeResult.ERROR_UNINITIALIZED


def test_contexts_work_side_by_side(rig: Rig) -> None:
    other = rig.new_context()
    queues = [rig.queue(), rig.queue(other)]
    memories = [rig.host(64), rig.host(64, other)]
    for context, queue, memory in zip((rig.context, other), queues, memories, strict=True):
        command_list = rig.command_list(context)
        ok(rig.api.ze_command_list_append_memory_fill(command_list, memory, b"\x07", 64))
        rig.close(command_list)
        rig.submit(queue, command_list)
    for queue, memory in zip(queues, memories, strict=True):
        rig.finish(queue)
        assert rig.api.read(memory, 64) == b"\x07" * 64


def test_context_creation_checks_its_arguments(rig: Rig) -> None:
    api = rig.api
    assert api.ze_context_create(None, ContextDesc()).result == ZeResult.ERROR_INVALID_NULL_HANDLE
    assert api.ze_context_create(rig.driver, None).result == ZeResult.ERROR_INVALID_NULL_POINTER
    created = api.ze_context_create(rig.driver, ContextDesc(), out=False)
    assert created.result == ZeResult.ERROR_INVALID_NULL_POINTER


def test_destroyed_context_is_refused(rig: Rig) -> None:
    context = rig.new_context()
    ok(rig.api.ze_context_destroy(context))
    assert rig.api.ze_context_get_status(context) in STALE
    assert rig.api.ze_context_destroy(context) in STALE
