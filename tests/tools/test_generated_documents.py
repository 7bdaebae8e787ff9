"""The generated documents match the code."""

from __future__ import annotations

import re
from pathlib import Path

from softnpu.tools.generators import documents as generated_documents

_ROOT = Path(__file__).parents[2]
_DOCUMENTS = _ROOT / "docs"
_WRITE = "run: python -m softnpu.tools.generators.documents ."


def test_commands() -> None:
    assert (_DOCUMENTS / "commands.md").read_text() == generated_documents.commands(), _WRITE


def test_variables_of_the_environment() -> None:
    assert (_DOCUMENTS / "environment.md").read_text() == generated_documents.environment(_ROOT), _WRITE


def test_properties_of_the_plugin() -> None:
    assert (_DOCUMENTS / "properties.md").read_text() == generated_documents.properties(), _WRITE


def test_faults_of_openvino() -> None:
    assert (_DOCUMENTS / "defects.md").read_text() == generated_documents.defects(_ROOT), _WRITE


def test_every_variable_that_the_code_reads_is_described() -> None:
    described = set(re.findall(r"^\| `(\w+)`", (_DOCUMENTS / "environment.md").read_text(), re.MULTILINE))
    of_others = {"ZE_ENABLE_ALT_DRIVERS"}
    for folder in ("driver", "emulator", "plugin", "tools"):
        for path in (_ROOT / folder).rglob("*.[ch]pp"), (_ROOT / folder).rglob("*.py"):
            for file in path:
                names = set(re.findall(r'"((?:SOFTNPU|ZET?)_[A-Z_]+)"', file.read_text()))
                private = {name for name in names if name.endswith("_COUNTS")}
                assert names - private - of_others <= described, file
