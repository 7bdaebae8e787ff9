"""The spin budget: a bound that drops to nothing while spinning does not pay."""

from __future__ import annotations

import os

import pytest

from softnpu.emulator.common.spin import SpinBudget

pytestmark = pytest.mark.quick


@pytest.fixture(autouse=True)
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {0, 1})


def test_eight_misses_in_a_row_stop_spinning_except_one_try_in_32() -> None:
    spin = SpinBudget(50_000)
    for _ in range(100):
        assert spin.limit_ns() == 50_000
        spin.hit()
    limits = []
    for _ in range(8 + 64):
        limits.append(spin.limit_ns())
        spin.miss()
    assert limits == [50_000] * 8 + ([0] * 31 + [50_000]) * 2
    spin.hit()
    assert spin.limit_ns() == 50_000


def test_with_one_core_or_a_bound_of_zero_it_never_spins(monkeypatch: pytest.MonkeyPatch) -> None:
    assert SpinBudget(0).limit_ns() == 0
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {3})
    assert SpinBudget(50_000).limit_ns() == 0
