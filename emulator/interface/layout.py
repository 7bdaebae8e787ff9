"""Descriptions of fixed records: field by field, in order, without gaps, little-endian."""

from __future__ import annotations

import re
import struct

import msgspec

_FORMATS = {"u8": "s", "u16": "H", "u32": "I", "u64": "Q", "char": "s", "ref": "QQ"}
_FIELD = re.compile(rf"(?P<name>\w+) +(?:(?P<type>{'|'.join(_FORMATS)})(?:\[(?P<count>\d+)\])?|(?P<gap>\d+))")


class Field(msgspec.Struct, frozen=True):
    """One field. `type` is `u16`, `u32`, `u64`, `char`, `u8` or `ref`; empty for reserved bytes.

    A `ref` names memory: the handle of an allocation, and an offset into it. `count` is 0 except for arrays.
    """

    name: str
    type: str
    count: int
    offset: int
    size: int


class Layout:
    """The fields of a record, and the `struct` that packs and unpacks them.

    The description has the fields in lines or separated by commas: `NAME TYPE`, `NAME TYPE[COUNT]` or
    `reserved BYTES`. A comment starts with `#`.
    """

    def __init__(self, description: str) -> None:
        self.fields: list[Field] = []
        form = "<"
        for text in re.sub(r" *#.*", "", description).replace(",", "\n").split("\n"):
            if not text.strip():
                continue
            match = _FIELD.fullmatch(text.strip())
            if match is None:
                raise ValueError(f"no field: {text!r}")
            offset = struct.calcsize(form)
            form += f"{match['gap']}x" if match["gap"] else (match["count"] or "") + _FORMATS[match["type"]]
            size = struct.calcsize(form) - offset
            self.fields.append(
                Field(match["name"], match["type"] or "", int(match["count"] or 0), offset, size)
            )
        self.struct = struct.Struct(form)

    @property
    def size(self) -> int:
        """Bytes of the record."""
        return self.struct.size

    def offset(self, name: str) -> int:
        """Return the offset of a field."""
        return self._field(name).offset

    def room(self, name: str) -> int:
        """Return the size of a field in bytes."""
        return self._field(name).size

    def _field(self, name: str) -> Field:
        return next(field for field in self.fields if field.name == name)
