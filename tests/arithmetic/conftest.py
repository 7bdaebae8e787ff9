"""Fixtures of the tests of the device's arithmetic."""

from __future__ import annotations

from collections.abc import Iterator

import openvino as ov
import pytest

from softnpu.emulator.arithmetic import library
from softnpu.plugin import Core
from tests.support.daemon import Daemon


@pytest.fixture(scope="session")
def openvino_core() -> ov.Core:
    """OpenVINO itself; the extension that rounds is built."""
    library.ensure(lambda: None)
    return ov.Core()


@pytest.fixture
def shared_core(shared_daemon: Daemon) -> Iterator[Core]:
    """A core on the daemon that many tests use; it gives everything back at the end."""
    core = Core(shared_daemon.socket)
    yield core
    core.unload_plugin()
