"""Slices of time: of one thread, and nothing else of it changes."""

from __future__ import annotations

import os
import threading

import pytest

from softnpu.emulator.common import time_slices

pytestmark = pytest.mark.quick


def test_slices_are_those_of_one_thread_and_its_priority_stays() -> None:
    found: list[tuple[int, int, int] | None] = []

    def start() -> None:
        found.append(time_slices.of_thread())
        time_slices.ask_for(500_000)
        found.append(time_slices.of_thread())
        inner = threading.Thread(target=lambda: found.append(time_slices.of_thread()))
        inner.start()
        inner.join()

    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    before, short, inherited = found
    if before is None:
        assert os.uname().machine != "x86_64"
        return
    assert short is not None
    assert inherited is not None
    assert short[:2] == inherited[:2] == before[:2]
    assert short[2] in (before[2], 500_000), "older kernels have no slices of a thread"
    assert inherited[2] == before[2]
