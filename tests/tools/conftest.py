"""Fixtures of the tests of the tools."""

from __future__ import annotations

import pytest

from softnpu.driver.native_library import ENV_NATIVE_DIR
from softnpu.emulator.interface.environment import ENV_SOCKET
from tests.native.building import build
from tests.support.daemon import Daemon


@pytest.fixture(scope="session")
def native_dir() -> dict[str, str]:
    """The variable with which commands take the native driver that the tests have built."""
    return {ENV_NATIVE_DIR: str(build().driver.parent)}


@pytest.fixture
def cli_daemon(shared_daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> Daemon:
    """A daemon for many tests, which commands and programs find; see `shared_daemon`."""
    monkeypatch.setenv(ENV_SOCKET, str(shared_daemon.socket))
    return shared_daemon
