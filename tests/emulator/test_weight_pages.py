"""Release of large weights' pages: during OpenVINO's conversion, not all the time."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator

import pytest

from softnpu.emulator.blob.weight_space import WeightSpace
from softnpu.emulator.common import linux
from softnpu.emulator.interface.messages import WeightSource
from softnpu.emulator.openvino.weights import weight_pages
from softnpu.emulator.openvino.weights.weight_pages import LARGE, Resident

pytestmark = pytest.mark.quick

_DEADLINE_S = 20.0
_PART = LARGE // 64
_ALL = ()
_BEFORE = Resident(total=1 << 30, shared=1 << 28)


class _Releases:
    """Notes which pages a space is asked to release."""

    def __init__(self, release: Callable[..., None]) -> None:
        self._release = release
        self._changed = threading.Condition()
        self.ranges: list[tuple[int, ...]] = []

    def __call__(self, *pages: int) -> None:
        self._release(*pages)
        with self._changed:
            self.ranges.append(pages)
            self._changed.notify_all()

    def wait_for(self, count: int) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: len(self.ranges) >= count, _DEADLINE_S)


class _Looks:
    """The process's resident memory, as set by a test; `wait` waits until that was seen."""

    def __init__(self) -> None:
        self.now = _BEFORE
        self._seen = threading.Semaphore(0)

    def __call__(self) -> Resident:
        self._seen.release()
        return self.now

    def wait(self, times: int) -> bool:
        return all(self._seen.acquire(timeout=_DEADLINE_S) for _ in range(times))


@pytest.fixture
def space() -> Iterator[WeightSpace]:
    fd = linux.memfd("weights", LARGE)
    space = WeightSpace([WeightSource(offset=0, length=LARGE)], [fd], "model")
    assert space.in_memory
    space.in_memory = False
    yield space
    os.close(fd)


@pytest.fixture
def releases(space: WeightSpace, monkeypatch: pytest.MonkeyPatch) -> _Releases:
    counter = _Releases(space.release_pages)
    monkeypatch.setattr(space, "release_pages", counter)
    return counter


def _grown(*, converted: int = 0, touched: int = 0) -> Resident:
    return Resident(_BEFORE.total + converted + touched, _BEFORE.shared + touched)


def test_pages_that_are_only_touched_are_kept(space: WeightSpace, releases: _Releases) -> None:
    looks = _Looks()
    with weight_pages.releasing(space, looks):
        looks.now = _grown(touched=LARGE)
        assert looks.wait(5)
        assert releases.ranges == [_ALL], "at the beginning"
    assert releases.ranges == [_ALL, _ALL], "and at the end"


def test_pages_are_released_behind_what_is_converted(space: WeightSpace, releases: _Releases) -> None:
    looks = _Looks()
    with weight_pages.releasing(space, looks):
        looks.now = _grown(touched=LARGE, converted=_PART)
        assert releases.wait_for(2)
        assert releases.ranges[1:] == [(LARGE - 8 * _PART,)], "room for those behind"
        looks.now = _grown(touched=LARGE, converted=10 * _PART)
        assert releases.wait_for(3)
        looks.now = _grown(touched=LARGE, converted=10 * _PART + 1)
        assert looks.wait(5)
        looks.now = _grown(converted=LARGE + 4 * _PART)
        assert releases.wait_for(4)
    assert releases.ranges[2:4] == [(0, 6 * _PART), (6 * _PART, LARGE)]


def test_all_are_released_at_every_look_if_it_takes_more_memory_than_that(
    space: WeightSpace, releases: _Releases
) -> None:
    looks = _Looks()
    with weight_pages.releasing(space, looks):
        looks.now = _grown(touched=LARGE + 17 * _PART)
        assert releases.wait_for(4)
        assert set(releases.ranges) == {_ALL}


def test_those_of_memory_files_are_all_released_earlier(space: WeightSpace, releases: _Releases) -> None:
    space.in_memory = True
    looks = _Looks()
    with weight_pages.releasing(space, looks):
        looks.now = _grown(touched=60 * _PART)
        assert looks.wait(5)
        assert releases.ranges == [_ALL]
        looks.now = _grown(touched=60 * _PART + 1)
        assert releases.wait_for(3)
        assert set(releases.ranges) == {_ALL}


def test_the_pages_are_those_of_the_process(space: WeightSpace) -> None:
    before = weight_pages.resident().shared
    with weight_pages.releasing(space, lambda: _BEFORE):
        sum(space.view[::4096])
        assert weight_pages.resident().shared - before > LARGE // 2
    assert weight_pages.resident().shared - before < LARGE // 2


def test_small_weights_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    fd = linux.memfd("weights", 4096)
    space = WeightSpace([WeightSource(offset=0, length=4096)], [fd], "model")
    os.close(fd)
    releases = _Releases(space.release_pages)
    monkeypatch.setattr(space, "release_pages", releases)
    with weight_pages.releasing(space):
        pass
    assert not releases.ranges
