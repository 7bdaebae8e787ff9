"""In CI a skipped test has failed: nobody reads there what was left out, and for how long.

What cannot run in CI has a tier of its own (a marker), and is not selected there.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from typing import Final

import pytest

_IN_CI: Final = os.environ.get("CI") == "true"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A test that is skipped has failed, with the reason; one that is expected to fail has not."""
    report = yield
    if not hasattr(report, "wasxfail"):
        _judge(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """The same for a file that is skipped as a whole."""
    report = yield
    _judge(report)
    return report


def _judge(report: pytest.TestReport | pytest.CollectReport) -> None:
    if _IN_CI and report.skipped:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else report.longreprtext
        report.outcome = "failed"
        report.longrepr = f"{reason}\nIn CI a skip is a failure: install what it needs, or give it a tier"
