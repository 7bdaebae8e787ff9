"""The drivers that the suite can run on, by their `--driver` names."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from tests.conformance.defects import DEFECTS
from tests.conformance.python_driver import PythonDriver

if TYPE_CHECKING:
    from tests.conformance.native_driver import NativeDriver

LevelZero: TypeAlias = "PythonDriver | NativeDriver"
"""A session with the daemon. mypy checks every call of the suite against both drivers."""
OpenDriver: TypeAlias = "Callable[[Path], LevelZero]"
"""Open a session with the daemon at this socket."""


def choose(name: str) -> OpenDriver:
    """Return the driver of this name, or of a defect; raise `ValueError` listing the known names."""
    if name == "python":
        return PythonDriver
    if name == "native":
        # imported on demand: the suite runs without a C++ compiler too
        from tests.conformance.native_driver import NativeDriver

        return NativeDriver
    if name in DEFECTS:
        return DEFECTS[name].driver
    raise ValueError(f"--driver {name}: expected python, native or defects")
