"""What one more object costs a program does not depend on how many it has: steps are counted, not time."""

from __future__ import annotations

import random
from typing import Any, cast

import pytest

from softnpu.driver import Context
from softnpu.driver.address_index import AddressIndex
from softnpu.driver.submissions import QueueProgress, Recording

_PAGE = 4096


@pytest.mark.quick
def test_an_address_is_found_among_thousands_and_stands_among_few() -> None:
    index, dice = AddressIndex(), random.Random(3)
    starts = [number * _PAGE for number in range(20_000)] + [1 << 40, (1 << 40) + 64, 1 << 45]
    dice.shuffle(starts)
    for start in starts:
        index.add(start)
    assert max(map(len, index._starts.values())) <= 64
    kept = sorted(starts[:100])
    for start in starts[100:]:
        index.remove(start)
    assert index.last_until(kept[0] - 1) is None
    for start, following in zip(kept, [*kept[1:], 1 << 50], strict=True):
        for address in (start, start + 1, following - 1):
            assert index.last_until(address) == start


@pytest.mark.quick
def test_two_entries_of_one_address_are_removed_one_by_one() -> None:
    index = AddressIndex()
    index.add(64)
    index.add(64)
    index.remove(64)
    assert index.last_until(100) == 64
    index.remove(64)
    assert index.last_until(100) is None


class _Progress:
    """The progress of a queue that is not gone; counts looks."""

    looks = 0

    @property
    def gone(self) -> bool:
        _Progress.looks += 1
        return False


@pytest.mark.quick
def test_a_list_is_submitted_to_a_thousand_queues_without_a_look_at_all_others_each_time() -> None:
    recording, queues = Recording(), [_Progress() for _ in range(1000)]
    for queue in queues:
        recording.submitted(cast("QueueProgress", queue), 1)
    assert _Progress.looks <= 2 * len(queues)


def test_an_allocation_has_no_table_of_what_is_created_through_it(context: Context) -> None:
    assert "_children" not in vars(context.alloc_host(64))
    queue: Any = context.create_command_queue()
    fence = queue.create_fence()
    queue.destroy()
    assert fence.destroyed
