"""Whatever is raised at whatever line of the loop: nothing is lost that is watched, or will be due."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

import pytest

from softnpu.emulator.supervisor import reactor as original
from tests.support.faulty import NthLine
from tests.support.faulty import faulty as made_faulty

_PAUSE_S = 0.001
_ROUNDS = 200


@pytest.fixture(scope="module")
def raiser() -> NthLine:
    return NthLine()


@pytest.fixture(scope="module")
def faulty(raiser: NthLine) -> Iterator[ModuleType]:
    """The module of the reactor, with a call of `raiser` before each statement that may fail."""
    with made_faulty(original, raiser) as module:
        vars(module).update(_MOMENT_S=_PAUSE_S, _BROKEN_PAUSE_S=_PAUSE_S)
        yield module


@contextmanager
def _pipe() -> Iterator[tuple[int, int]]:
    read_end, write_end = os.pipe()
    os.set_blocking(read_end, False)
    try:
        yield read_end, write_end
    finally:
        os.close(read_end)
        os.close(write_end)


class _Scene:
    """A listener that belongs to nobody, a client, and timers of both."""

    def __init__(self, module: ModuleType, listener: tuple[int, int], client: tuple[int, int]) -> None:
        self.reactor: original.Reactor = module.Reactor()
        self.mine: original.Reactor = self.reactor.owned("which ends mine", self._end, share="user")
        self.listener, self.client = listener, client
        self.accepted = self.served = self.rang = self.rounds = 0
        self.mine_rang = self.ended = False
        self._written = 0
        self._flaws = 1
        self.reactor.watch(listener[0], self._accept)
        self.mine.watch(client[0], self._serve)
        self.reactor.after(0, self._ring)
        self.mine.after(0, self._ring_mine)
        self.every = self.reactor.every(_PAUSE_S, self._count)

    def run(self) -> None:
        """Write to both, and run until all have been served, or the recurring timer has come often."""
        self._written += 1
        for _, write_end in (self.listener, self.client):
            os.write(write_end, b"x")
        self.rounds, self.reactor._loop.running = 0, True
        self.reactor.run()

    @property
    def lost(self) -> str | None:
        """What has not been served as often as it should have been."""
        if self.accepted < self._written:
            return "the listener"
        if self.rang < 2:
            return "a timer of nobody"
        if self.ended:
            return None
        return "a client" if self.served < self._written else None if self.mine_rang else "its timer"

    def _accept(self) -> None:
        self.accepted += len(os.read(self.listener[0], 100))
        self.reactor.pause(self.listener[0], _PAUSE_S)
        if self._flaws:
            self._flaws = 0
            raise ValueError  # comes back, as any that belongs to nobody

    def _serve(self) -> None:
        self.served += len(os.read(self.client[0], 100))
        self.mine.watch(self.client[0], self._serve, self._write)

    def _write(self) -> None:
        self.mine.watch(self.client[0], self._serve)

    def _ring(self) -> None:
        self.rang += 1
        if self.rang == 1:
            raise ValueError  # called again: nobody has ended

    def _ring_mine(self) -> None:
        self.mine_rang = True

    def _count(self) -> None:
        self.rounds += 1
        if self.rounds >= _ROUNDS or (self.rounds >= 5 and self.lost is None):
            self.reactor.stop()

    def _end(self, _info: object) -> None:
        self.ended = True
        self.reactor.unwatch(self.client[0])


@pytest.mark.timeout(120)
@pytest.mark.parametrize("error", [KeyError, MemoryError, OSError, StopIteration])
def test_an_error_at_any_line_loses_no_descriptor_and_no_timer(
    raiser: NthLine, faulty: ModuleType, error: type[Exception], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("CRITICAL")
    number, met = 0, set()
    while True:
        number += 1
        with _pipe() as listener, _pipe() as client:
            scene = _Scene(faulty, listener, client)
            raiser.arm(number, error)
            scene.run()
            where, raiser.left = raiser.where, 0
            scene.run()
            met.add(where)
            assert not scene.lost, f"lost: {scene.lost}, by an error at {where}"
            scene.reactor.close()
        if not where:
            break
    assert number > 80
    assert {place.split()[1] for place in met if place} >= {
        f"Reactor.{name}"
        for name in (
            "run",
            "_round",
            "_serve",
            "_call_back",
            "_resume",
            "_run_timers",
            "_call",
            "watch",
            "_push",
        )
    }
