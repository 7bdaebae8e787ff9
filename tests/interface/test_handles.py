"""Handles: their bits, and that a stale handle never works again."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from softnpu.emulator.interface import handles
from softnpu.emulator.interface.handles import HandleKind, HandleTable
from softnpu.emulator.interface.result import Refused, ZeResult

pytestmark = pytest.mark.quick

_LIMIT = 5


def _refusal(table: HandleTable[str], handle: int) -> ZeResult:
    with pytest.raises(Refused) as caught:
        table.get(handle)
    with pytest.raises(Refused):
        table.pop(handle)
    return ZeResult(caught.value.info.result)


def test_a_handle_is_kind_generation_slot() -> None:
    table: HandleTable[str] = HandleTable(HandleKind.GRAPH, 10)
    assert [f"{table.add(name):#018x}" for name in "abc"] == [
        "0x0400000100000000", "0x0400000100000001", "0x0400000100000002",
    ]  # fmt: skip
    table.pop(0x0400000100000001)
    assert table.add("d") == 0x0400000200000001
    assert handles.describe(0x0400000100000003) == "graph 0x0400000100000003"
    assert handles.describe(0x7700000100000003) == "handle 0x7700000100000003"


def test_null_foreign_and_unused_handles_are_refused() -> None:
    memory: HandleTable[str] = HandleTable(HandleKind.MEMORY, 1)
    queues: HandleTable[str] = HandleTable(HandleKind.QUEUE, 1)
    right = queues.add("queue")
    assert _refusal(queues, 0) == ZeResult.ERROR_INVALID_NULL_HANDLE
    assert _refusal(queues, memory.add("memory")) == ZeResult.ERROR_INVALID_ARGUMENT
    for slot in (1, 2, 2**32 - 1):
        assert _refusal(queues, right + slot) == ZeResult.ERROR_INVALID_ARGUMENT


def test_a_full_table_refuses_and_says_how_many() -> None:
    table: HandleTable[str] = HandleTable(HandleKind.MEMORY, 2)
    first = table.add("a")
    table.add("b")
    with pytest.raises(Refused, match="2 live in this session; expected at most 2") as caught:
        table.add("c")
    assert caught.value.info.result == ZeResult.ERROR_OUT_OF_HOST_MEMORY
    table.pop(first)
    table.check_room()


def test_a_slot_with_exhausted_generations_is_never_reused() -> None:
    table: HandleTable[int] = HandleTable(HandleKind.MEMORY, 1, generations=4)
    seen = []
    for number in range(6):
        seen.append(table.add(number))
        table.pop(seen[-1])
    assert [(handle >> 32 & 0xFFFFFF, handle & 0xFFFFFFFF) for handle in seen] == [
        (generation, slot) for slot in (0, 1) for generation in (1, 2, 3)
    ]


@given(st.integers(-(2**65), 2**65))
def test_a_forged_handle_finds_an_object_only_if_it_is_exactly_right(handle: int) -> None:
    table: HandleTable[str] = HandleTable(HandleKind.GRAPH, 2)
    if handle not in {table.add("a"), table.add("b")}:
        _refusal(table, handle)


class HandlesNeverRevive(RuleBasedStateMachine):
    """Add and remove at random: every handle ever issued is live and right, or refused as stale."""

    def __init__(self) -> None:
        super().__init__()
        self.table: HandleTable[str] = HandleTable(HandleKind.MEMORY, _LIMIT)
        self.live: dict[int, str] = {}
        self.stale: set[int] = set()
        self.count = 0

    given_out = Bundle("given_out")

    @rule(target=given_out)
    def add(self) -> int:
        name = f"object {self.count}"
        self.count += 1
        if len(self.live) == _LIMIT:
            with pytest.raises(Refused):
                self.table.add(name)
            return 0
        handle = self.table.add(name)
        assert handle not in self.live.keys() | self.stale
        self.live[handle] = name
        return handle

    @rule(handle=consumes(given_out))
    def remove(self, handle: int) -> None:
        if handle in self.live:
            assert self.table.pop(handle) == self.live.pop(handle)
            self.stale.add(handle)

    @invariant()
    def only_live_handles_work(self) -> None:
        assert sorted(self.table) == sorted(self.live.values())
        for handle, name in self.live.items():
            assert self.table.get(handle) == name
        for handle in self.stale:
            with pytest.raises(Refused, match="stale handle: destroyed"):
                self.table.get(handle)


TestHandlesNeverRevive = HandlesNeverRevive.TestCase
TestHandlesNeverRevive.settings = settings(max_examples=25, stateful_step_count=30, deadline=None)
