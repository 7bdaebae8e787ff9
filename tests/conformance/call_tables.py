"""The functions of the API headers, parsed from `docs/level-zero.md`; tests hold the code to them."""

from __future__ import annotations

import enum
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

DOCUMENT = Path(__file__).parents[2] / "docs" / "level-zero.md"
_ROW = re.compile(r"\| `(\w+)` \| (supported|refused|absent) \| (?:`([\w.]+)`)? ?\| (.*?) ?\|")
_NOTE = re.compile(r"^- `(\w+)`: (.*(?:\n  .*)*)", re.MULTILINE)
_REST = re.compile(r"(Refused|Absent): ((?:`\w+`[,.]\s+)+)")


class Status(enum.Enum):
    """The support that a program gets."""

    SUPPORTED = "supported"
    REFUSED = "refused"
    ABSENT = "absent"


class Call(NamedTuple):
    """One function of a C header. `python` is "Class.method", "Class.attribute" or "Class"."""

    name: str
    header: str
    status: Status
    python: str = ""
    remark: str = ""


def _read(text: str) -> Iterator[Call]:
    for section in text.split("\n## ")[1:]:
        header = section.split("`")[1]
        notes = dict(_NOTE.findall(section))
        for name, status, python, remark in _ROW.findall(section):
            yield Call(name, header, Status(status), python, notes.get(name, remark))
        for status, names in _REST.findall(section + "\n"):
            for name in re.findall(r"\w+", names):
                yield Call(name, header, Status(status.lower()))


CALLS = tuple(_read(DOCUMENT.read_text()))
