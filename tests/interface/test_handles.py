"""Handles: their bits, and that a handle of a destroyed object never works again."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from softnpu.emulator.interface import handles
from softnpu.emulator.interface.handles import HandleKind, HandleTable
from softnpu.emulator.interface.result import Refused, ZeResult

_LIMIT = 5


def _refused(table: HandleTable[str], handle: int) -> int:
    with pytest.raises(Refused) as caught:
        table.get(handle)
    with pytest.raises(Refused):
        table.pop(handle)
    return caught.value.info.result


def test_kinds_keep_their_numbers() -> None:
    assert {kind.name: kind.value for kind in HandleKind} == {
        "CONTEXT": 1,
        "MEMORY": 2,
        "QUEUE": 3,
        "GRAPH": 4,
    }


def test_a_handle_is_kind_generation_slot() -> None:
    table: HandleTable[str] = HandleTable(HandleKind.GRAPH, 10)
    assert [table.add(name) for name in "abc"] == [
        0x0400000100000000,
        0x0400000100000001,
        0x0400000100000002,
    ]
    table.pop(0x0400000100000001)
    assert table.add("d") == 0x0400000200000001


def test_a_handle_is_described_by_kind_and_number() -> None:
    assert handles.describe(0x0400000100000003) == "graph 0x0400000100000003"
    assert handles.describe(0x7700000100000003) == "handle 0x7700000100000003"


def test_the_null_handle_has_its_own_refusal() -> None:
    assert _refused(HandleTable(HandleKind.QUEUE, 1), 0) == ZeResult.ERROR_INVALID_NULL_HANDLE


def test_a_handle_of_another_kind_is_refused() -> None:
    memory: HandleTable[str] = HandleTable(HandleKind.MEMORY, 1)
    queues: HandleTable[str] = HandleTable(HandleKind.QUEUE, 1)
    queues.add("queue")
    assert _refused(queues, memory.add("memory")) == ZeResult.ERROR_INVALID_ARGUMENT


def test_a_stale_handle_is_refused_as_stale_while_its_slot_is_empty_and_when_it_is_used_again() -> None:
    table: HandleTable[str] = HandleTable(HandleKind.CONTEXT, 1)
    stale = table.add("first")
    table.pop(stale)
    with pytest.raises(Refused, match="stale handle: destroyed"):
        table.get(stale)
    table.add("second")
    with pytest.raises(Refused, match="stale handle: destroyed"):
        table.get(stale)


def test_a_full_table_refuses_and_says_how_many() -> None:
    table: HandleTable[str] = HandleTable(HandleKind.MEMORY, 2)
    first = table.add("a")
    table.add("b")
    with pytest.raises(Refused, match="2 live in this session; expected at most 2") as caught:
        table.add("c")
    assert caught.value.info.result == ZeResult.ERROR_OUT_OF_HOST_MEMORY
    table.pop(first)
    table.check_room()


def test_a_slot_whose_generations_are_used_up_is_never_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handles, "_GENERATIONS", 4)
    table: HandleTable[int] = HandleTable(HandleKind.MEMORY, 1)
    seen = set()
    for number in range(20):
        handle = table.add(number)
        assert handle not in seen, f"object {number} has the handle of an earlier one"
        seen.add(handle)
        assert table.pop(handle) == number


@pytest.mark.parametrize("slot", [1, 2, 2**32 - 1])
def test_a_slot_that_was_never_used_is_refused(slot: int) -> None:
    table: HandleTable[str] = HandleTable(HandleKind.GRAPH, 5)
    handle = table.add("only")
    assert _refused(table, handle + slot) == ZeResult.ERROR_INVALID_ARGUMENT


@given(st.integers(-(2**65), 2**65))
def test_a_forged_handle_finds_an_object_only_if_it_is_exactly_right(handle: int) -> None:
    table: HandleTable[str] = HandleTable(HandleKind.GRAPH, 2)
    right = {table.add("a"), table.add("b")}
    if handle not in right:
        _refused(table, handle)


class HandlesNeverRevive(RuleBasedStateMachine):
    """Adds and removes at random; every handle ever given out is either live and right, or refused."""

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
        assert handle not in self.live
        assert handle not in self.stale
        self.live[handle] = name
        return handle

    @rule(handle=consumes(given_out))
    def remove(self, handle: int) -> None:
        if handle in self.live:
            assert self.table.pop(handle) == self.live.pop(handle)
            self.stale.add(handle)

    @invariant()
    def only_live_handles_work(self) -> None:
        assert len(self.table) == len(self.live)
        assert sorted(self.table) == sorted(self.live.values())
        for handle, name in self.live.items():
            assert self.table.get(handle) == name
        for handle in self.stale:
            assert _refused(self.table, handle) == ZeResult.ERROR_INVALID_ARGUMENT


TestHandlesNeverRevive = HandlesNeverRevive.TestCase
TestHandlesNeverRevive.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
