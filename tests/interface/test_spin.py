"""The spin budget: a bound that drops to nothing while spinning does not pay."""

from __future__ import annotations

import os
from collections.abc import Set as AbstractSet

import pytest

from softnpu.emulator.common.spin import SpinBudget


def _cores(monkeypatch: pytest.MonkeyPatch, cores: AbstractSet[int]) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(cores))


def test_it_spins_its_bound_while_that_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    _cores(monkeypatch, {0, 1})
    spin = SpinBudget(50_000)
    for _ in range(100):
        assert spin.limit_ns() == 50_000
        spin.hit()


def test_eight_misses_in_a_row_stop_it_but_for_one_try_in_32(monkeypatch: pytest.MonkeyPatch) -> None:
    _cores(monkeypatch, {0, 1})
    spin = SpinBudget(50_000)
    limits = []
    for _ in range(8 + 64):
        limits.append(spin.limit_ns())
        spin.miss()
    assert limits == [50_000] * 8 + ([0] * 31 + [50_000]) * 2


def test_one_hit_brings_it_back(monkeypatch: pytest.MonkeyPatch) -> None:
    _cores(monkeypatch, {0, 1})
    spin = SpinBudget(50_000)
    for _ in range(8):
        spin.miss()
    assert spin.limit_ns() == 0
    spin.hit()
    assert spin.limit_ns() == 50_000


def test_on_one_core_it_never_spins(monkeypatch: pytest.MonkeyPatch) -> None:
    _cores(monkeypatch, {3})
    assert SpinBudget(50_000).limit_ns() == 0


def test_a_bound_of_zero_never_spins(monkeypatch: pytest.MonkeyPatch) -> None:
    _cores(monkeypatch, {0, 1})
    assert SpinBudget(0).limit_ns() == 0
