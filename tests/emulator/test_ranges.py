"""The range allocator: no overlap, alignment kept, and everything merges back."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from softnpu.emulator.common.range_allocator import RangeAllocator

_SIZES = st.integers(1, 5000)
_ALIGNMENTS = st.sampled_from([1, 64, 256, 4096])
_STEPS = st.lists(st.tuples(st.booleans(), _SIZES, _ALIGNMENTS, st.integers(0, 1000)), max_size=80)


@given(total=st.integers(1, 40_000), steps=_STEPS)
@settings(max_examples=300, deadline=None)
def test_any_order_of_taking_and_giving_keeps_the_ranges_apart(
    total: int, steps: list[tuple[bool, int, int, int]]
) -> None:
    ranges = RangeAllocator(total)
    taken: list[tuple[int, int]] = []
    for take, size, alignment, choice in steps:
        if take:
            offset = ranges.allocate(size, alignment)
            if offset is not None:
                assert offset % alignment == 0
                assert offset + size <= total
                assert all(offset + size <= at or at + length <= offset for at, length in taken)
                taken.append((offset, size))
        elif taken:
            ranges.free(*taken.pop(choice % len(taken)))
    assert ranges.empty == (not taken)
    for entry in taken:
        ranges.free(*entry)
    assert ranges.empty
    assert ranges.allocate(total, 1) == 0, "all free ranges have merged"


@given(total=st.integers(1, 10_000), size=st.integers(1, 20_000), alignment=_ALIGNMENTS)
@settings(deadline=None)
def test_a_fresh_one_gives_its_start_or_nothing(total: int, size: int, alignment: int) -> None:
    assert RangeAllocator(total).allocate(size, alignment) == (0 if size <= total else None)


def test_it_gives_nothing_when_the_free_ranges_are_too_small() -> None:
    ranges = RangeAllocator(300)
    assert [ranges.allocate(100, 1) for _ in range(3)] == [0, 100, 200]
    ranges.free(0, 100)
    ranges.free(200, 100)
    assert ranges.allocate(150, 1) is None
    ranges.free(100, 100)
    assert ranges.allocate(300, 1) == 0
