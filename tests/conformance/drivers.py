"""The drivers that the suite can run on, by the name that `--driver` takes."""

from __future__ import annotations

from tests.conformance.api import OpenDriver
from tests.conformance.defects import DEFECTS
from tests.conformance.python_driver import PythonDriver

_DEFECT = "defect:"


def choose(name: str) -> OpenDriver:
    """The driver of this name; `ValueError` with the known names for any other."""
    if name == "python":
        return PythonDriver
    if name == "native":
        # not before it is asked for: the suite has to run where no C++ compiler is
        from tests.conformance.native_driver import NativeDriver

        return NativeDriver
    if name.startswith(_DEFECT) and name.removeprefix(_DEFECT) in DEFECTS:
        return DEFECTS[name.removeprefix(_DEFECT)].driver
    known = ["python", "native", *(f"{_DEFECT}{defect}" for defect in DEFECTS)]
    raise ValueError(f"--driver {name}: expected one of {', '.join(known)}")
