"""The native driver, called from Python through ctypes as from a C program.

The library has one session per process, as every Level Zero driver: an adapter instance stands for the
contexts created through it.
"""

from __future__ import annotations

import os
from pathlib import Path
from unittest import mock

from softnpu.emulator.interface.environment import ENV_AUTOSTART, ENV_SOCKET
from tests.conformance.api import HostMemory
from tests.conformance.native_driver.commands import NativeCommands
from tests.conformance.native_driver.core import NativeCore
from tests.conformance.native_driver.graphs import NativeGraphs
from tests.conformance.native_driver.metrics import NativeMetrics


class NativeDriver(NativeCore, NativeCommands, NativeGraphs, NativeMetrics, HostMemory):
    """The objects that a test creates with this process's library."""

    def __init__(self, place: Path) -> None:
        super().__init__()
        with mock.patch.dict(os.environ, {ENV_SOCKET: str(place), ENV_AUTOSTART: "0"}):
            self.ze_init_drivers().get()

    def close(self) -> None:
        for context in list(self._contexts):
            self.ze_context_destroy(context)
