"""Copies, fills and timestamps against numpy, and how lists are recorded."""

from __future__ import annotations

import random
import time
from functools import partial

import numpy as np
import pytest

from softnpu.driver import CommandQueue, Context, ZeResult
from tests.support.work import LONG, barrier, copy, execute, failure, recorded, run, stamp


@pytest.mark.parametrize("size", [1, 7, 64, 4095, 100_000, 3 << 20])
def test_a_copy_is_what_numpy_copies(context: Context, queue: CommandQueue, size: int) -> None:
    source, target = context.alloc_host(size + 64), context.alloc_device(size + 64)
    source.view()[:] = np.random.default_rng(size).integers(0, 256, size + 64, np.uint8)
    target.view()[:] = 0x99
    expected = target.view().copy()
    expected[13 : 13 + size] = source.view()[5 : 5 + size]

    run(queue, recorded(context, lambda c: c.append_memory_copy(target.view()[13:], source.view()[5:], size)))

    assert np.array_equal(target.view(), expected)


@pytest.mark.parametrize("size", [1, 5, 63, 1000, 70_000])
def test_overlapping_copies_are_as_if_through_another_buffer(
    context: Context, queue: CommandQueue, size: int
) -> None:
    memory = context.alloc_host(3 * size)
    data = np.random.default_rng(size).integers(0, 256, 3 * size, np.uint8)
    for source, target in ((0, size // 2), (size // 2, 0), (0, 1), (1, 0), (0, 0)):
        memory.view()[:] = data
        expected = data.copy()
        expected[target : target + size] = data[source : source + size]
        run(queue, copy(context, memory.address + target, memory.address + source, size))
        assert np.array_equal(memory.view(), expected), (source, target)


@pytest.mark.parametrize("pattern", [b"\x00", b"\xab", b"ab", b"\x00\xff", b"abcd", b"\0\0\0\1", b"aaaa"])
@pytest.mark.parametrize("offset", [0, 1, 2, 3, 4, 6])
def test_a_fill_repeats_its_pattern_at_any_offset(
    context: Context, queue: CommandQueue, pattern: bytes, offset: int
) -> None:
    memory = context.alloc_host(4200)
    memory.view()[:] = 0x77
    expected = memory.view().copy()
    expected[offset : offset + 4096] = np.frombuffer(pattern * (4096 // len(pattern)), np.uint8)

    run(queue, recorded(context, lambda c: c.append_memory_fill(memory.view()[offset:], pattern, 4096)))

    assert np.array_equal(memory.view(), expected)


@pytest.mark.parametrize(
    ("pattern", "size"), [(b"", 4), (b"abc", 6), (b"abcdefgh", 8), (b"ab", 3), (b"abcd", 6)]
)
def test_a_pattern_that_does_not_fit_is_refused(context: Context, pattern: bytes, size: int) -> None:
    memory, commands = context.alloc_host(64), context.create_command_list()
    failure(lambda: commands.append_memory_fill(memory, pattern, size), ZeResult.ERROR_INVALID_SIZE)


def test_nothing_is_copied_and_filled_when_the_size_is_0(context: Context, queue: CommandQueue) -> None:
    memory = context.alloc_host(64)
    memory.view()[:] = 5
    end = memory.address + 64
    run(
        queue,
        recorded(
            context,
            lambda c: c.append_memory_copy(memory, memory, 0),
            lambda c: c.append_memory_fill(memory, b"\1", 0),
        ),
    )
    assert np.all(memory.view() == 5)
    assert end > memory.address


def test_a_random_program_is_what_numpy_does(context: Context, queue: CommandQueue) -> None:
    chance, size = random.Random(7), 5000
    memory = context.alloc_host(size)
    memory.view()[:] = np.random.default_rng(7).integers(0, 256, size, np.uint8)
    expected = memory.view().copy()
    commands = context.create_command_list()
    for _ in range(300):
        length = chance.randint(0, 800) & ~3
        target, source = (chance.randint(0, size - length) for _ in range(2))
        if chance.random() < 0.5:
            commands.append_memory_copy(memory.address + target, memory.address + source, length)
            expected[target : target + length] = expected[source : source + length].copy()
        else:
            pattern = chance.randbytes(chance.choice([1, 2, 4]))
            commands.append_memory_fill(memory.address + target, pattern, length)
            expected[target : target + length] = np.frombuffer(pattern * (length // len(pattern)), np.uint8)
    commands.close()
    run(queue, commands)
    assert np.array_equal(memory.view(), expected)


def test_timestamps_are_the_device_clock_and_never_go_back(context: Context, queue: CommandQueue) -> None:
    memory = context.alloc_host(64)
    stamps = memory.view(np.uint64)
    ns_per_tick = context.device.info.timer_ns_per_tick
    lists = [stamp(context, stamps[at:]) for at in range(8)]
    before = time.monotonic_ns()
    run(queue, *lists)
    after = time.monotonic_ns()
    ticks = stamps.astype(np.int64)
    assert np.all(np.diff(ticks) >= 0)
    assert before / ns_per_tick - 1 <= ticks[0] <= ticks[-1] <= after / ns_per_tick + 1


def test_a_timestamp_must_be_aligned(context: Context, queue: CommandQueue) -> None:
    memory = context.alloc_host(64)
    fence = execute(queue, recorded(context, lambda c: c.append_write_global_timestamp(memory.address + 4)))
    failure(lambda: fence.host_synchronize(LONG), ZeResult.ERROR_UNSUPPORTED_ALIGNMENT)


def test_memory_of_nobody_is_refused_when_appended(context: Context) -> None:
    memory, commands = context.alloc_host(64), context.create_command_list()
    foreign = np.zeros(64, np.uint8)
    for place in (foreign, memory.address - 1, memory.address + 64, 4096):
        append = partial(commands.append_memory_copy, memory, place, 1)
        failure(append, ZeResult.ERROR_UNINITIALIZED)
    failure(lambda: commands.append_memory_copy(memory, 0, 1), ZeResult.ERROR_INVALID_NULL_POINTER)
    strided = memory.view()[::2]
    error = failure(lambda: commands.append_memory_copy(memory, strided, 1), ZeResult.ERROR_INVALID_ARGUMENT)
    assert "contiguous" in str(error)


def test_a_list_runs_as_often_as_it_is_executed(context: Context, queue: CommandQueue) -> None:
    memory = context.alloc_host(16)
    memory.view()[:] = np.arange(16)
    shift = recorded(context, lambda c: c.append_memory_copy(memory.address + 1, memory, 15))
    for _ in range(5):
        queue.execute_command_lists([shift])
    queue.execute_command_lists([shift, shift, shift])
    assert queue.synchronize(LONG)
    assert list(memory.view()) == [0] * 9 + [1, 2, 3, 4, 5, 6, 7]


def test_an_open_list_cannot_be_executed(context: Context, queue: CommandQueue) -> None:
    commands = context.create_command_list()
    failure(lambda: queue.execute_command_lists([commands]), ZeResult.ERROR_UNINITIALIZED)
    commands.append_barrier()
    failure(lambda: queue.execute_command_lists([commands]), ZeResult.ERROR_UNINITIALIZED)


def test_a_closed_list_takes_nothing_until_its_reset(context: Context, queue: CommandQueue) -> None:
    memory = context.alloc_host(64)
    commands = recorded(context, lambda c: c.append_memory_fill(memory, b"\1", 64))
    commands.close()
    failure(commands.append_barrier, ZeResult.ERROR_NOT_AVAILABLE)
    commands.reset()
    commands.append_memory_fill(memory, b"\2", 32)
    commands.close()
    run(queue, commands)
    assert np.all(memory.view()[:32] == 2)
    assert not memory.view()[32:].any()


def test_a_submission_is_a_snapshot_on_every_queue(context: Context) -> None:
    gate, memory = context.create_event(), context.alloc_host(64)
    held, free = context.create_command_queue(), context.create_command_queue()
    commands = recorded(context, lambda c: c.append_memory_fill(memory, b"\1", 32))
    waits = recorded(context, lambda c: c.append_wait_on_events([gate]))
    held.execute_command_lists([waits])
    fence = execute(held, commands)
    run(free, commands)
    memory.view()[:] = 0

    commands.reset()
    commands.append_memory_fill(memory.address + 32, b"\2", 32)
    commands.close()
    gate.host_signal()

    assert fence.host_synchronize(LONG)
    assert np.all(memory.view()[:32] == 1), "the first queue had the first recording in flight"
    assert not memory.view()[32:].any()


def test_a_list_may_be_destroyed_while_it_runs(context: Context, queue: CommandQueue) -> None:
    gate, memory = context.create_event(), context.alloc_host(1 << 16)
    queue.execute_command_lists([recorded(context, lambda c: c.append_wait_on_events([gate]))])
    commands = recorded(context, lambda c: c.append_memory_fill(memory, b"\3", 1 << 16))
    fence = execute(queue, commands)
    commands.destroy()
    del commands
    for _ in range(20):  # what would be given the place of the buffer if it were free
        recorded(context, lambda c: c.append_barrier())
    gate.host_signal()
    assert fence.host_synchronize(LONG)
    assert np.all(memory.view() == 3)
    run(queue, barrier(context))
