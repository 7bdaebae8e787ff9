"""`softnpu docs` prints the documents."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.cli import softnpu

_DOCUMENTS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize(
    ("arguments", "document"), [((), "index"), (("faults",), "faults"), (("trace.md",), "trace")]
)
def test_a_document_is_printed_verbatim(arguments: tuple[str, ...], document: str) -> None:
    assert softnpu("docs", *arguments).words == (_DOCUMENTS / f"{document}.md").read_text()


def test_an_unknown_document_is_refused_with_the_existing_names() -> None:
    complaint = softnpu("docs", "../README").misuse
    assert "no such document" in complaint
    assert "fidelity" in complaint
    assert softnpu("docs", "faultz").misuse.endswith(". Did you mean faults?")
