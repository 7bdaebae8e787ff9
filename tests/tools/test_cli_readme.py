"""The README and the index: links resolve, and CI runs their commands. Listings: `test_snippets.py`."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.quick


_ROOT = Path(__file__).parents[2]
_README = (_ROOT / "README.md").read_text()


def test_the_python_example_is_short() -> None:
    (example,) = re.findall(r"```python\n(.*?)```", _README, re.DOTALL)
    assert len(example.strip().splitlines()) <= 12


def test_every_link_resolves_to_a_file() -> None:
    documents = [*_ROOT.glob("*.md"), *(_ROOT / "docs").glob("*.md"), _ROOT / "tests" / "README.md"]
    links = [
        (document.name, link)
        for document in documents
        for link in re.findall(r"\]\(([^)#:]+)[)#]", document.read_text())
        if not (document.parent / link).exists()
    ]
    assert len(documents) > 8
    assert links == []


def test_the_index_names_every_document() -> None:
    index = (_ROOT / "docs" / "index.md").read_text()
    documents = [path.name for path in (_ROOT / "docs").glob("*.md") if path.name != "index.md"]
    assert [name for name in documents if f"({name}" not in index] == []


def test_continuous_integration_runs_the_test_command_of_the_readme() -> None:
    commands = [line for line in _README.splitlines() if line.startswith("python3 -m venv")]
    assert [line.rpartition("/")[2] for line in commands] == ["softnpu demo", "pytest -n auto"]
    script = (_ROOT / ".ci" / "run").read_text()
    pattern = re.search(r"grep --max-count=1 '(.*?)'", script)
    assert pattern is not None
    found = subprocess.run(
        ["grep", "--max-count=1", pattern[1], _ROOT / "README.md"], capture_output=True, text=True, check=True
    )
    assert found.stdout.splitlines() == commands[1:]
