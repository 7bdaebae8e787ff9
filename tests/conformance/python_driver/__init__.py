"""The Python driver behind the C functions: thin, so that the tests reach `softnpu.driver`.

Three things are done here that Python has no place for: null handles and null pointers (a C program can pass
them, the classes cannot receive them), results instead of exceptions, and keeping every object alive until it
is destroyed (Python would collect it).
"""

from __future__ import annotations

from pathlib import Path

from softnpu.driver import Driver
from tests.conformance.api import HostMemory
from tests.conformance.python_driver.commands import PythonCommands
from tests.conformance.python_driver.core import PythonCore
from tests.conformance.python_driver.graphs import PythonGraphs
from tests.conformance.python_driver.metrics import PythonMetrics


class PythonDriver(PythonCore, PythonCommands, PythonGraphs, PythonMetrics, HostMemory):
    """A session of `softnpu.driver`."""

    def __init__(self, place: Path) -> None:
        super().__init__()
        self._driver = Driver.open(place, autostart=False)

    def close(self) -> None:
        self._kept.clear()
        self._driver.destroy()
