"""A comparison as an HTML page."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from softnpu.tools.compare.show import Shown, figures, numbers
from softnpu.tools.compare.verdict import Role
from softnpu.tools.shared.pages import rendering

_CLASSES: Final = {
    Role.EQUAL: "good",
    Role.IN_TOLERANCE: "good",
    Role.INHERITS: "warn",
    Role.UNKNOWN: "warn",
}


def write_page(shown: Shown, path: Path) -> None:
    """Write all figures to a file. Raise `ToolError` without jinja2, and `OSError`."""
    when = time.strftime("%Y-%m-%d %H:%M:%S %Z")
    rendering.write(path, "compare.html", {"shown": shown, "when": when}, **filters())


def filters() -> dict[str, Callable[..., Any]]:
    """Return the templates' filters for statistics and roles."""
    return {"figures": figures, "numbers": numbers, "colour": lambda role: _CLASSES.get(role, "bad")}
