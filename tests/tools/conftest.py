"""Fixtures of the tools' tests."""

from __future__ import annotations

import pytest

from softnpu.driver.native_library import ENV_NATIVE_DIR
from softnpu.emulator.interface.environment import ENV_SOCKET
from tests.native.building import build
from tests.support.daemon import Daemon


@pytest.fixture(scope="session")
def native_dir() -> dict[str, str]:
    """The environment variable that points commands to the native driver built by the tests."""
    return {ENV_NATIVE_DIR: str(build().driver.parent)}


@pytest.fixture
def cli_daemon(shared_daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> Daemon:
    """A daemon shared by many tests, found by commands and programs; see `shared_daemon`."""
    monkeypatch.setenv(ENV_SOCKET, str(shared_daemon.socket))
    return shared_daemon
