"""Which refusals of the daemon's code were met: each `refuse(...)` whose words came back in a fault."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

_ROOT = Path(__file__).parents[2]
_WHERE = (
    "emulator/interface/*.py", "emulator/engine/*.py", "emulator/supervisor/*_requests.py",
    "emulator/supervisor/memory.py", "emulator/supervisor/session.py", "emulator/supervisor/client.py",
    "emulator/compiler/native_blob.py", "emulator/compiler/files.py",
)  # fmt: skip
_OTHERS = ("injection", "failpoints", "places", "faults", "version")
"""Parts that a client cannot reach, or that are no part of a normal daemon."""
_MADE_BY = {"refuse": 1, "_bad": 0, "_invalid": 0}


@dataclass(frozen=True)
class Site:
    """One place that refuses: `pattern` matches the object and what was expected, as one text."""

    place: str
    pattern: re.Pattern[str]


def sites() -> list[Site]:
    """All of them."""
    found = []
    for glob in _WHERE:
        for path in sorted(_ROOT.glob(glob)):
            if not any(word in path.name for word in _OTHERS):
                found += list(_in_file(path))
    return found


def _in_file(path: Path) -> Iterator[Site]:
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
            continue
        first = _MADE_BY.get(node.func.id)
        if first is None or len(node.args) < first + 3:
            continue
        subject, expected = _pattern(node.args[first]), _pattern(node.args[first + 2])
        if expected == ".*" and subject == ".*":
            continue  # it builds those of others
        text = f".*{subject}.*\n{expected}"
        yield Site(f"{path.relative_to(_ROOT)}:{node.lineno}", re.compile(text, re.DOTALL))


def _pattern(node: ast.expr) -> str:
    if isinstance(node, ast.Constant):
        return re.escape(str(node.value)[:40]) + ".*"
    if isinstance(node, ast.JoinedStr):
        parts = [
            re.escape(str(part.value)[:30]) if isinstance(part, ast.Constant) else ".*"
            for part in node.values
        ]
        return "".join(parts)[:200] + ".*"
    return ".*"


def missed(faults: Iterable[tuple[str, str]]) -> tuple[int, list[str]]:
    """How many sites there are, and those that none of these faults comes from."""
    texts = ["\n".join(info) for info in faults]
    known = sites()
    return len(known), [site.place for site in known if not any(site.pattern.match(text) for text in texts)]
