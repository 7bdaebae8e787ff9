"""Fixtures of the tests of OpenVINO's faults."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from softnpu.emulator.supervisor.settings import DaemonSettings
from softnpu.plugin import Core
from tests.plugin.conftest import core, reference, shared_core
from tests.support.daemon import Daemon
from tests.support.waiting import wait_until

DIRTY = "MALLOC_PERTURB_"
"""The variable that has heap memory filled, so that what is not written differs from what is."""

__all__ = ["core", "reference", "shared_core"]


@pytest.fixture(scope="module")
def dirty_daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A daemon whose processes get heap memory filled with numbers."""
    socket = tmp_path_factory.mktemp("dirty") / "npu.sock"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(DIRTY, "85")
        daemon = Daemon(DaemonSettings(socket=str(socket)), interpreter=True)
    try:
        pid = wait_until(lambda: daemon.engine().engine_pid, what="an engine")
        assert DIRTY.encode() in Path(f"/proc/{pid}/environ").read_bytes()
        yield daemon
    finally:
        daemon.close()


@pytest.fixture
def dirty_core(dirty_daemon: Daemon) -> Iterator[Core]:
    restarts = dirty_daemon.engine().restarts
    core = Core(dirty_daemon.socket)
    yield core
    core.unload_plugin()
    assert dirty_daemon.engine().restarts == restarts
