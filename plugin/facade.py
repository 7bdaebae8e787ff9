"""Support for `import softnpu.plugin as ov` instead of `import openvino as ov`.

Names not defined by the plugin come from `openvino`: types, models, preprocessing, conversion. Its submodules
are also importable under the plugin's name, for `from softnpu.plugin.preprocess import ...`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import openvino
import openvino.properties.intel_npu  # noqa: F401 - openvino itself imports it on demand only


def fall_back(module: str, source: ModuleType) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` for `module`, which falls back on the names of `source`."""

    def find(name: str) -> Any:
        if not _is_public(name):
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        try:
            return getattr(source, name)
        except AttributeError:
            raise AttributeError(
                f"module {module!r} has no attribute {name!r}, and neither has {source.__name__!r}"
            ) from None

    def names() -> list[str]:
        own = set(sys.modules[module].__all__)
        return sorted(own | {name for name in dir(source) if _is_public(name)})

    return find, names


def share_submodules(module: str, source: ModuleType) -> None:
    """Make submodules of `source` importable as submodules of `module`, except where it has its own."""
    for name, value in list(vars(source).items()):
        if (
            isinstance(value, ModuleType)
            and value.__name__ == f"{source.__name__}.{name}"
            and _is_public(name)
        ):
            sys.modules.setdefault(f"{module}.{name}", value)


def _is_public(name: str) -> bool:
    return not name.startswith("_") or name == "__version__"
