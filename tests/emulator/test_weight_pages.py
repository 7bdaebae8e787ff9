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
_BEFORE = Resident(total=1 << 30, shared=1 << 28)


class _Releases:
    """Counts requests to a space to release its pages."""

    def __init__(self, release: Callable[[], None]) -> None:
        self._release = release
        self._changed = threading.Condition()
        self.count = 0

    def __call__(self) -> None:
        self._release()
        with self._changed:
            self.count += 1
            self._changed.notify_all()

    def wait_for(self, count: int) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: self.count >= count, _DEADLINE_S)


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
    yield WeightSpace([WeightSource(offset=0, length=LARGE)], [fd], "model")
    os.close(fd)


@pytest.fixture
def releases(space: WeightSpace, monkeypatch: pytest.MonkeyPatch) -> _Releases:
    counter = _Releases(space.release_pages)
    monkeypatch.setattr(space, "release_pages", counter)
    return counter


def test_while_memory_does_not_grow_nothing_is_given_back(space: WeightSpace, releases: _Releases) -> None:
    looks = _Looks()
    with weight_pages.releasing(space, looks):
        assert looks.wait(5)
        assert releases.count == 1, "at the beginning"
    assert releases.count == 2, "at the end"


def test_pages_of_weights_are_given_back_after_each_part(space: WeightSpace, releases: _Releases) -> None:
    looks = _Looks()
    with weight_pages.releasing(space, looks):
        looks.now = Resident(_BEFORE.total + LARGE // 4, _BEFORE.shared + LARGE // 4)
        assert releases.wait_for(2)
        assert looks.wait(8)
        assert releases.count == 2, "nothing more was mapped"


def test_near_to_what_it_takes_at_the_end_they_are_given_back_at_every_look(
    space: WeightSpace, releases: _Releases
) -> None:
    looks = _Looks()
    with weight_pages.releasing(space, looks):
        looks.now = Resident(_BEFORE.total + LARGE, _BEFORE.shared)
        assert releases.wait_for(4)


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
    assert releases.count == 0
