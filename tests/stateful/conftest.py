"""Processes for the sessions of the models, shared by all of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.stateful.remote_session import SessionProcesses


@pytest.fixture
def processes() -> Iterator[SessionProcesses]:
    processes = SessionProcesses()
    yield processes
    processes.close()
