"""The pictures of the documents show today's screens; `softnpu.tools.generators.pictures` makes them."""

from __future__ import annotations

import html
import re
from pathlib import Path

from PIL import Image

from softnpu.tools.generators.pictures import HEADINGS, headings
from softnpu.tools.top.history import SPAN_S
from softnpu.tools.top.table_app import _HINTS
from softnpu.tools.top.tables import LISTINGS

_ROOT = Path(__file__).parents[2]


def test_the_picture_of_top_has_its_tables_columns_keys_and_history() -> None:
    picture = (_ROOT / "docs" / "top.svg").read_text()
    shown = {
        html.unescape(text).replace("\xa0", " ").strip(" ▼")
        for text in re.findall(">([^<]*)</text>", picture)
    }
    text = " ".join(shown)
    for word in (*(listing.name for listing in LISTINGS), *(name for hint in _HINTS for name in hint)):
        assert word in text, word
    assert {column.title for column in LISTINGS[0].columns} <= shown
    assert f"the last {SPAN_S:.0f} s" in shown


def test_the_picture_of_a_report_has_its_parts() -> None:
    with Image.open(_ROOT / "docs" / "images" / "report.png") as picture:
        assert picture.info.get(HEADINGS) == headings(_ROOT)
