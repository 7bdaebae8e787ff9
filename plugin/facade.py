"""What makes `import softnpu.plugin as ov` work where a program says `import openvino as ov`.

Names that the plugin does not define are those of `openvino`: types, models, preprocessing, conversion.
Its submodules are found under the plugin's name too, for `from softnpu.plugin.preprocess import ...`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import openvino
import openvino.properties.intel_npu  # noqa: F401 - openvino itself imports it on demand only


def fall_back(module: str, source: ModuleType) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of `module`: what it does not have, `source` has."""

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
        own = set(vars(sys.modules[module]))
        return sorted(own | {name for name in dir(source) if _is_public(name)})

    return find, names


def share_submodules(module: str, source: ModuleType) -> None:
    """Lets submodules of `source` be imported as submodules of `module`, but for those that it has itself."""
    for name, value in list(vars(source).items()):
        if (
            isinstance(value, ModuleType)
            and value.__name__ == f"{source.__name__}.{name}"
            and _is_public(name)
        ):
            sys.modules.setdefault(f"{module}.{name}", value)


def _is_public(name: str) -> bool:
    return not name.startswith("_") or name == "__version__"
