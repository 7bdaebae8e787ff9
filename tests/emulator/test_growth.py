"""What one more object costs does not depend on how many there are: steps are counted, not time."""

from __future__ import annotations

from collections.abc import Iterator, ValuesView
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any, cast

import pytest

from softnpu.emulator.common.range_allocator import RangeAllocator
from softnpu.emulator.interface import messages as msg
from softnpu.emulator.interface.channel import Packet
from softnpu.emulator.supervisor.engines.idle_memory import IdleMemory
from softnpu.emulator.supervisor.requests.memory_requests import MemoryRequests
from softnpu.emulator.supervisor.requests.session_state import Call, OwnedAllocation
from softnpu.emulator.supervisor.state.images import Image
from softnpu.emulator.supervisor.state.memory import Allocation, ContextMemory
from softnpu.emulator.supervisor.state.objects import Context, Graph

pytestmark = pytest.mark.quick

_SIZES = (64, 1000, 4096, 100_000)


@pytest.fixture
def memory() -> Iterator[ContextMemory]:
    memory = ContextMemory()
    with ExitStack() as stack:
        stack.callback(lambda: memory.close_some(len(memory.segments)))
        yield memory


def _allocate(memory: ContextMemory, size: int) -> Allocation:
    return memory.allocate(size, 0, "host")[0]


def test_full_arenas_are_not_looked_at_for_each_allocation(
    memory: ContextMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = 0
    allocate = RangeAllocator.allocate

    def counted(self: RangeAllocator, size: int, alignment: int) -> int | None:
        nonlocal looks
        looks += 1
        return allocate(self, size, alignment)

    monkeypatch.setattr(RangeAllocator, "allocate", counted)
    count = 400
    held = [_allocate(memory, size) for _ in range(count) for size in _SIZES]
    assert len(memory.segments) > 10
    assert looks < 1.2 * len(held)
    # holes of one size each are found again, and only by what fits
    segments = set(memory.segments)
    for allocation in held[::2]:
        memory.free(allocation)
    looks = 0
    again = [_allocate(memory, allocation.size) for allocation in held[::2]]
    assert set(memory.segments) == segments
    assert looks < 1.2 * len(again)
    places = {(each.segment.number, each.offset) for each in (*held[1::2], *again)}
    assert len(places) == len(held)


def test_an_arena_that_has_ended_is_not_used_again(memory: ContextMemory) -> None:
    for _ in range(3):
        allocation = _allocate(memory, 64)
        assert memory.free(allocation)
        assert not memory.segments


class _NoTable:
    """A table at whose objects nobody looks one after the other."""

    def __iter__(self) -> Iterator[Any]:
        raise AssertionError("each of its objects was looked at")


def test_memory_is_allocated_and_freed_without_a_look_at_each_queue_and_context(
    memory: ContextMemory,
) -> None:
    context = Context(1, 0, memory=memory)
    allocation = _allocate(memory, 64)
    allocation.handle = 7
    context.allocations[7] = allocation
    owned = OwnedAllocation(context, allocation)
    freed: list[int] = []
    ignored = SimpleNamespace(memory_freed=lambda *_: None, segment_freed=lambda *_: None)
    state = SimpleNamespace(
        queues=_NoTable(),
        contexts=_NoTable(),
        memory=SimpleNamespace(get=lambda _: owned, discard=freed.append),
        function_of=lambda _: SimpleNamespace(announce=ignored),
        count=lambda _: None,
        answer_ok=lambda _: None,
    )
    requests = MemoryRequests(cast("Any", state))
    requests.count_pages()
    requests.free(Call(Packet(1, memoryview(b""), [])), msg.MemFree(memory=(7,)))
    assert freed == [7]


class _Counted(dict[int, Graph]):
    """The graphs of a context; counts looks at them."""

    looks = 0

    def values(self) -> ValuesView[Graph]:  # type: ignore[override]
        def each() -> Iterator[Graph]:
            for graph in super(_Counted, self).values():
                _Counted.looks += 1
                yield graph

        return cast("ValuesView[Graph]", each())


def test_idle_contexts_give_images_back_with_a_few_looks_at_each_graph() -> None:
    many = 20
    contexts = {number: Context(number, 0, graphs=_Counted()) for number in range(many)}
    shared = Image(0, (b"",), cast("Any", None), (), [], 0)
    for context in contexts.values():
        context.idle.after_ms = 0
        for number in range(many):
            place = 1 + context.number * many + number
            image = Image(place, (b"%d" % place,), cast("Any", None), (), [], 0) if number else shared
            context.graphs[number] = Graph(context, image, initialized=True)
    evicted: list[int] = []
    idle = IdleMemory(
        contexts,
        cast("Any", None),  # without queues there are no records
        cast("Any", SimpleNamespace(evict=lambda image: evicted.append(image.number))),
        lambda *_: None,
        cast("Any", SimpleNamespace(after=lambda *_: None)),
        prunes=True,
    )
    graphs = many * many

    _Counted.looks = 0
    idle.release(contexts[0])
    assert len(evicted) == many - 1, "others use the shared one"
    assert _Counted.looks <= 2 * graphs

    for _ in range(2):  # the first time it begins to wait
        _Counted.looks = 0
        idle._on_timer()
        assert _Counted.looks <= 4 * graphs
    assert sorted({*evicted}) == sorted(
        {graph.image.number for c in contexts.values() for graph in c.graphs.values()}
    )
