"""A test of a million daemon lines at which an exception may come."""

from __future__ import annotations

import pytest

from tests.fuzz.exceptions.campaign import Plan, run


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_an_exception_anywhere_is_its_owners_alone() -> None:
    tally = run(Plan(exceptions=1_000_000), print)
    assert tally.lines >= 1_000_000
    assert tally.raised
    assert tally.violations == []
