"""Tests of this folder start no daemon: the check for leftovers runs once per module."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from softnpu.emulator.interface.environment import ENV_AUTOSTART, ENV_SOCKET
from tests.support.leaks import Surroundings


@pytest.fixture(scope="module", autouse=True)
def nothing_left_behind_by_the_module() -> Iterator[None]:
    """Check that the module leaves the machine as it found it."""
    with tempfile.TemporaryDirectory(prefix="softnpu-test-") as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv(ENV_SOCKET, str(Path(folder, "npu.sock")))
        patch.setenv(ENV_AUTOSTART, "0")
        before = Surroundings(Path(folder))
        yield
        before.check()


@pytest.fixture(autouse=True)
def nothing_left_behind(request: pytest.FixtureRequest) -> Iterator[None]:
    """Replace the check after each test, which takes longer than most tests here."""
    yield
    request.node.funcargs.clear()  # they would keep what the fixtures returned
