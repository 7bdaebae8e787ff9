"""Skips fail in CI: nobody reads there which tests were left out, and for how long.

Tests that cannot run in CI have a tier of their own (a marker), and are not selected there.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from typing import Final

import pytest

_IN_CI: Final = os.environ.get("CI") == "true"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Turn a skip into a failure with its reason; leave expected failures alone."""
    report = yield
    if not hasattr(report, "wasxfail"):
        _judge(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Do the same for a file that is skipped as a whole."""
    report = yield
    _judge(report)
    return report


def _judge(report: pytest.TestReport | pytest.CollectReport) -> None:
    if _IN_CI and report.skipped:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longreprtext
        report.outcome = "failed"
        report.longrepr = f"{reason}\nIn CI a skip is a failure: install what it needs, or give it a tier"
