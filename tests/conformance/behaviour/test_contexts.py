"""Contexts own the objects created in them, and are independent."""

from __future__ import annotations

import pytest

from softnpu.emulator.interface.result import ZeResult
from tests.conformance.commands import copy, fill
from tests.conformance.holdings import Holdings
from tests.conformance.rig import Rig, ok

pytestmark = pytest.mark.quick


def test_many_contexts_live_at_once(rig: Rig) -> None:
    contexts = [rig.new_context() for _ in range(32)]
    for context in contexts:
        ok(rig.api.ze_context_get_status(context))
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
    foreign, own = rig.host(64, rig.new_context()), rig.host(64)
    found = rig.api.ze_mem_get_alloc_properties(rig.context, foreign)
    assert found.result == ZeResult.ERROR_NOT_AVAILABLE
    for sides in ((foreign, own), (own, foreign)):
        assert copy(*sides, 64)(rig.api, rig.command_list()) == ZeResult.ERROR_UNINITIALIZED


def test_contexts_work_side_by_side(rig: Rig) -> None:
    contexts = (rig.context, rig.new_context())
    queues = [rig.queue(context) for context in contexts]
    memories = [rig.host(64, context) for context in contexts]
    for context, queue, memory in zip(contexts, queues, memories, strict=True):
        rig.submit(queue, rig.recorded(fill(memory, b"\x07", 64), context=context))
    rig.finish(*queues)
    assert [rig.api.read(memory, 64) for memory in memories] == [b"\x07" * 64] * 2
