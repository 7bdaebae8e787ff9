"""`docs/plugin.md` says which test shows what: those tests exist."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENT = ROOT / "docs" / "plugin.md"
_NAMED = re.compile(r"`((?:[\w/]+/)?\w+\.py)?(?:::(\w+))?`")


def references() -> Iterator[tuple[str, str | None]]:
    """File and test of every reference; one that begins with `::` means the file before it."""
    for line in DOCUMENT.read_text().splitlines():
        if not line.startswith("|"):
            continue
        file = ""
        for named, test in _NAMED.findall(line):
            file = named or file
            if file and (test or Path(file).name.startswith("test_")):
                yield file, test or None


def find(file: str) -> Path:
    """A file as the document names it: from the root, or from the plugin's tests."""
    return next(
        (path for path in (ROOT / file, ROOT / "tests" / "plugin" / file) if path.exists()), Path(file)
    )


def test_there_are_many() -> None:
    assert len(set(references())) > 100


@pytest.mark.parametrize(("file", "test"), sorted(set(references()), key=str))
def test_what_the_document_names_exists(file: str, test: str | None) -> None:
    path = find(file)
    assert path.exists(), f"docs/plugin.md names {file}"
    if test is not None:
        assert re.search(rf"def {test}\(", path.read_text()), f"docs/plugin.md names {test} in {file}"
