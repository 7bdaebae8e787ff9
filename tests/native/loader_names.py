"""What a loader of Level Zero exports, as others have it."""

from __future__ import annotations

import re
from pathlib import Path

_NAMES = Path(__file__).with_name("loader_names.txt")
_ABSENT = {
    "zelLoaderGetContext",  # gives the loader's own C++ object; static loaders go without it
}


def exported() -> set[str]:
    """Return the names in `loader_names.txt`, and the tracing layer's callback for each function."""
    lines = (line for line in _NAMES.read_text().splitlines() if not line.startswith("#"))
    names = set(" ".join(lines).split())
    functions = {name for name in names if re.match("zer?[A-Z]", name) and not name.startswith("zeLoader")}
    traced = {re.sub("^zer?", "", name) for name in functions if not name.endswith("ProcAddrTable")}
    return (names - _ABSENT) | {f"zelTracer{name}RegisterCallback" for name in traced}
