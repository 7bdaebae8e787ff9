"""The digest of source code, which invalidates cached results when the code changes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from blake3 import blake3


def of_modules(*modules: ModuleType) -> str:
    """Return the digest of the source of these modules; of a package with all that is in it."""
    return of_files(*(path for module in modules for path in _files(Path(str(module.__file__)))))


def of_files(*paths: Path) -> str:
    """Return the digest of these files, for source code that need not be imported for it."""
    hasher = blake3()
    for path in paths:
        hasher.update(blake3(path.read_bytes()).digest())
    return hasher.hexdigest(8)


def _files(path: Path) -> Iterator[Path]:
    if path.name == "__init__.py":
        yield from sorted(path.parent.rglob("*.py"))
    else:
        yield path
