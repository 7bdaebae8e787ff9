"""The native driver's headers match the description of the wire."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from softnpu.emulator.interface.layout import Layout
from softnpu.tools.generators import wire_schema

_ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.quick


@pytest.mark.parametrize(
    ("path", "generate"),
    [
        (wire_schema.SCHEMA, wire_schema.schema_header),
        (wire_schema.RESULTS, wire_schema.results_header),
    ],
)
def test_a_header_is_up_to_date(path: str, generate: Callable[[], str]) -> None:
    assert (_ROOT / path).read_text() == generate(), "run: python -m softnpu.tools.generators.wire_schema ."


def test_a_layout_has_offsets_sizes_and_a_struct() -> None:
    layout = Layout("magic char[4]\nflags u16\nreserved 2  # zero\nat ref\nsteps u32[2]")
    assert layout.struct.format == "<4sH2xQQ2I"
    assert [(field.name, field.offset, field.size) for field in layout.fields] == [
        ("magic", 0, 4), ("flags", 4, 2), ("reserved", 6, 2), ("at", 8, 16), ("steps", 24, 8),
    ]  # fmt: skip
    assert (layout.size, layout.offset("at"), layout.room("steps")) == (32, 8, 8)
    with pytest.raises(ValueError, match="size i32"):
        Layout("size i32")
