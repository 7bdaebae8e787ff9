"""Metric streamers while the daemon overwrites the samples being read."""

from __future__ import annotations

import mmap
from itertools import chain, repeat

import pytest

from softnpu.driver import Context, ZeResult
from softnpu.emulator.interface import metrics
from softnpu.emulator.interface.metrics import SNAPSHOT
from tests.support.work import failure

_PERIOD_NS = 1_000_000
_WORDS = SNAPSHOT.size // 8


def test_a_sample_being_overwritten_is_not_reported(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ZET_ENABLE_METRICS", "1")
    group = context.device.get_metric_groups()[0]
    context.activate_metric_groups([group])
    streamer = context.open_metric_streamer(group, _PERIOD_NS)
    streamer._map.close()
    streamer._map = mmap.mmap(-1, metrics.stream_size())

    def write(sample: int, value: int) -> None:
        at = metrics.STREAM_HEADER.size + sample % metrics.STREAM_CAPACITY * SNAPSHOT.size
        SNAPSHOT.struct.pack_into(streamer._map, at, *[value] * _WORDS)

    # between two reads of the count, one more sample was written and the next one begun
    samples = 3 * metrics.STREAM_CAPACITY
    for sample in range(samples - metrics.STREAM_CAPACITY, samples + 1):
        write(sample, sample)
    write(samples + 1, 0)
    counts = chain([samples], repeat(samples + 1))
    monkeypatch.setattr(streamer, "_samples", lambda: next(counts))

    values = group.calculate_metric_values(streamer.read_data())
    assert set(values) == {1}
    metric_count = group.get_properties().metric_count
    assert len(values) == (metrics.STREAM_CAPACITY - 2) * metric_count
    assert streamer.available == 0


def test_a_negative_number_of_reports_is_refused_and_none_is_lost(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ZET_ENABLE_METRICS", "1")
    group = context.device.get_metric_groups()[0]
    context.activate_metric_groups([group])
    streamer = context.open_metric_streamer(group, 1000 * _PERIOD_NS)
    monkeypatch.setattr(streamer, "_samples", lambda: 10)
    failure(lambda: streamer.read_data(-5), ZeResult.ERROR_INVALID_ARGUMENT)
    assert streamer.read_data(0) == b""
    assert streamer.available == 9
