"""Patterns that fill outputs before an inference, to reveal bytes that the device did not write.

A pattern is eight repeating bytes. It has the client's number and a number that this client never reuses, so
a pattern found later identifies the inference that its memory was prepared for.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from softnpu.tools.stress.workloads import Array

_FIRST, _LAST = 0xA5, 0x5A
_SIZE: Final = 8
_FORM: Final = struct.Struct("<BHBHBB")
"""First byte, number (low half), client (low byte), number (middle), client (high byte), last byte.

The first bytes differ between steps, even where an output has only four of them.
"""


class Pattern(NamedTuple):
    """The pattern of one inference: `number` counts those of the client."""

    client: int
    number: int

    @property
    def word(self) -> bytes:
        """Its eight bytes."""
        low, middle = self.number & 0xFFFF, self.number >> 16 & 0xFFFF
        return _FORM.pack(_FIRST, low, self.client & 0xFF, middle, self.client >> 8 & 0xFF, _LAST)

    def fill(self, view: Array) -> None:
        """Fill a view of bytes with it."""
        whole = len(view) // _SIZE * _SIZE
        view[:whole].reshape(-1, _SIZE)[:] = np.frombuffer(self.word, np.uint8)
        view[whole:] = np.frombuffer(self.word[: len(view) - whole], np.uint8)

    def untouched_in(self, raw: bytes) -> npt.NDArray[np.bool_]:
        """Return for every byte whether it may be untouched: part of a remaining pattern.

        Parts are the eight bytes of one repetition; the last one may be shorter.
        """
        bytes_now = np.frombuffer(raw, np.uint8)
        wanted = np.resize(np.frombuffer(self.word, np.uint8), len(bytes_now))
        same = bytes_now == wanted
        parts = np.add.reduceat(~same, np.arange(0, len(bytes_now), _SIZE)) == 0 if len(bytes_now) else same
        return np.repeat(parts, _SIZE)[: len(bytes_now)]


def patterns_in(raw: bytes) -> dict[Pattern, int]:
    """Return every remaining pattern, of any inference, and its number of repetitions."""
    whole = np.frombuffer(raw[: len(raw) // _SIZE * _SIZE], np.uint8).reshape(-1, _SIZE)
    words = whole[(whole[:, 0] == _FIRST) & (whole[:, -1] == _LAST)]
    counts: dict[Pattern, int] = {}
    for word, count in zip(*np.unique(words, axis=0, return_counts=True), strict=True):
        _, low, client, middle, upper, _ = _FORM.unpack(word.tobytes())
        counts[Pattern(upper << 8 | client, middle << 16 | low)] = int(count)
    return counts
