"""The sidecar of a cache entry: the parts of its key, for people; the cache itself never depends on it.

A JSON file `KEY.json` beside the entry `KEY`. Every hit appends one newline, which JSON allows: a count that
needs no lock and no rewriting, also when others append at the same time.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

import msgspec


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """The content of a sidecar: time in UTC, bytes of the payload, and the compiler's description."""

    created: str
    payload_size: int
    description: dict[str, str] = {}


_decoder = msgspec.json.Decoder(Record)


def encode(payload_size: int, description: Mapping[str, str], now_ns: int) -> bytes:
    """Return the sidecar of a new entry; equal descriptions have equal lengths, so sizes are predictable."""
    seconds, rest = divmod(now_ns, 1_000_000_000)
    created = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + f".{rest // 1_000_000:03d}Z"
    record = Record(created=created, payload_size=payload_size, description=_printable(description))
    return msgspec.json.format(msgspec.json.encode(record), indent=2)


def decode(data: bytes) -> tuple[Record | None, int]:
    """Return the record in a sidecar, None if it is damaged, and the number of hits."""
    text = data.rstrip(b"\n")
    try:
        record = _decoder.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        record = None
    return record, len(data) - len(text)


def _printable(description: Mapping[str, str]) -> dict[str, str]:
    # a model may be named anything, also what UTF-8 cannot say
    return {_utf8(key): _utf8(value) for key, value in description.items()}


def _utf8(text: str) -> str:
    return text.encode("utf-8", "replace").decode()
