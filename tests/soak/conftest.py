"""The table of figures at the end of a run."""

from __future__ import annotations

import pytest

from tests.soak.figures import collected


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the measurements of the loops."""
    if not collected:
        return
    terminalreporter.section("figures")
    widths = [max(len(getattr(each, name)) for each in collected) for name in ("loop", "what")]
    for each in collected:
        terminalreporter.line(f"{each.loop:<{widths[0]}}  {each.what:<{widths[1]}}  {each.value}")
