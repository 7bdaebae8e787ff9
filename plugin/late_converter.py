"""Imports OpenVINO, and its model converter only when a program uses it.

The converter imports a command line, telemetry and much of the standard library: about a third of the time of
`import openvino`. OpenVINO works without it where it is not installed.
"""

from __future__ import annotations

import sys
import threading
from contextlib import suppress
from importlib import import_module
from types import ModuleType
from typing import Any

from softnpu.driver import starter

_CONVERTER = "openvino.tools.ovc"
# Names that exist only once the converter is imported.
_LATE = {"openvino": "convert_model", "openvino.tools": "ovc", "openvino.frontend": "tensorflow"}


class _Absence:
    """Hides the converter in the thread that imports OpenVINO here; its names load it later."""

    def __init__(self) -> None:
        self._thread = threading.get_ident()

    def find_spec(self, fullname: str, *_path_and_target: object) -> None:
        if fullname != _CONVERTER or threading.get_ident() != self._thread:
            return
        # now: other threads that import OpenVINO wait for this one
        for module, name in _LATE.items():
            _load_later(sys.modules[module], name)
        raise ModuleNotFoundError(f"{fullname} is imported when it is used", name=fullname)


def _import() -> ModuleType:
    """Return the package; with its converter if the program was already importing it.

    Meanwhile a daemon can begin, if this program may have to start one.
    """
    starter.begin_early()
    if "openvino" in sys.modules:
        return import_module("openvino")
    absence = _Absence()
    sys.meta_path.insert(0, absence)
    try:
        return import_module("openvino")
    finally:
        sys.meta_path.remove(absence)


def _load_later(module: ModuleType, late: str) -> None:
    """Give `module` the attribute `late`, which imports the converter."""

    def names() -> list[str]:
        return sorted({*vars(module), late})

    def find(name: str) -> Any:
        if name == "__all__":  # for `import *`, which does not see `late` otherwise
            return [public for public in names() if not public.startswith("_")]
        if name == late:
            _import_converter()
        if name not in vars(module):
            raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}")
        return vars(module)[name]

    vars(module).update(__getattr__=find, __dir__=names)


def _import_converter() -> None:
    """Import the converter if it is installed, like `import openvino`."""
    with suppress(ImportError):
        converter = import_module(_CONVERTER)
        vars(sys.modules["openvino"]).setdefault("convert_model", converter.convert_model)


openvino = _import()
