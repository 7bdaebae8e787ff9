"""Checks messages of engines and compiler workers before use: a model may have compromised the sender.

Numbers are finite and in range, texts and lists no longer than ours, descriptors the announced memory files.
Nothing else reaches the supervisor, or a client.
"""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from typing import Any, Final, TypeVar

import msgspec

from softnpu.emulator.common import linux
from softnpu.emulator.interface.result import ErrorInfo

_LONGEST_TEXT: Final = 1000  # as of a shortened `ErrorInfo`
_FREE_TEXTS: Final = ("log", "name")  # up to the size of a frame
_LONGEST_BYTES: Final = 256
_MOST_ITEMS: Final = 256
_LARGEST: Final = 1e12
_ERRORS: Final = range(0x70000000, 0x80000000)
"""The results of Level Zero that are errors."""

M = TypeVar("M", bound=msgspec.Struct)


class BadMessageError(Exception):
    """A message that our own code never sends; the text names the field."""


def decode(decoder: msgspec.msgpack.Decoder[M], body: memoryview) -> M:
    """Decode the message in `body`. Raises `BadMessageError`."""
    try:
        message = decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadMessageError(str(error)) from error
    _check(message, type(message).__name__)
    return message


def check_files(fds: Sequence[int], lengths: Sequence[int]) -> None:
    """Check that there is an immutable memory file of each length. Raises `BadMessageError`."""
    if len(fds) != len(lengths):
        raise BadMessageError(f"{len(fds)} descriptors, expected {len(lengths)}")
    for fd, length in zip(fds, lengths, strict=True):
        # sealed: only then is its size queried, because no file system can block us
        if not linux.has_seals(fd, linux.SEALS_IMMUTABLE) or length > os.fstat(fd).st_size:
            raise BadMessageError(f"a descriptor that is no sealed file of {length} bytes")


def _check(value: Any, at: str) -> None:
    match value:
        case ErrorInfo() if value.result not in _ERRORS:
            raise BadMessageError(f"{at}: result {value.result:#x}, expected that of an error")
        case msgspec.Struct():
            for field in value.__struct_fields__:
                _check(getattr(value, field), f"{at}.{field}")
        case tuple():
            _check_length(value, at, _MOST_ITEMS)
            for item in value:
                _check(item, at)
        case str():
            if at.rpartition(".")[2] not in _FREE_TEXTS:
                _check_length(value, at, _LONGEST_TEXT)
        case bytes():
            _check_length(value, at, _LONGEST_BYTES)
        case int() | float() if not (math.isfinite(value) and value >= 0):
            raise BadMessageError(f"{at}: {value}, expected a number from 0 on")
        case float() if value > _LARGEST:
            raise BadMessageError(f"{at}: {value}, expected at most {_LARGEST:g}")


def _check_length(value: Sequence[object], at: str, most: int) -> None:
    if len(value) > most:
        raise BadMessageError(f"{at}: {len(value)} long, expected at most {most}")
