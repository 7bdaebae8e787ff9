"""What the README promises is true: its example runs, its commands exist, its links lead somewhere."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.cli import softnpu

pytestmark = pytest.mark.quick


_ROOT = Path(__file__).parents[2]
_README = (_ROOT / "README.md").read_text()


@pytest.mark.usefixtures("cli_daemon")
def test_the_python_example_prints_what_it_says() -> None:
    (example,) = re.findall(r"```python\n(.*?)```", _README, re.DOTALL)
    assert len(example.strip().splitlines()) <= 12
    expected = re.findall(r"print\(.*# (.*)$", example, re.MULTILINE)
    done = subprocess.run(
        [sys.executable, "-P", "-c", example], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.splitlines() == expected


def test_every_command_and_option_that_it_shows_exists() -> None:
    shown = re.findall(r"^\$ softnpu (\w+)(.*)$", _README, re.MULTILINE)
    assert {name for name, _ in shown} >= {"infer", "daemon", "status", "stop"}
    for name, rest in shown:
        words = softnpu(name, "--help").words
        assert [option for option in re.findall(r"--[a-z-]+", rest) if option not in words] == []


def test_every_link_leads_to_a_file() -> None:
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
