"""Seeded randomness, biased to values that break things."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")

INTEGERS = (
    0, 1, -1, 2, 3, 7, 8, 15, 16, 17, 31, 63, 64, 65, 127, 128, 255, 256, 257, 4095, 4096, 4097, 65535, 65536,
    2**24 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**40, 2**46, 2**46 + 1, 2**53, 2**62, 2**63 - 1, 2**63,
    2**63 + 1, 2**64 - 4096, 2**64 - 64, 2**64 - 8, 2**64 - 1, -2, -64, -4096, -(2**31), -(2**63),
)  # fmt: skip
TEXTS = (
    "", "\0", "host", "normal", "session", "a" * 255, "é" * 1000, "\U0001f600" * 64, "\u202e\r\n%s%n{0}",
    "../../etc/passwd", "x" * 60_000, '"' * 300, "--config A=B", "[?,?]", "NaN", "-1",
)  # fmt: skip


class Dice(random.Random):
    """Randomness determined by its seed words."""

    def __init__(self, *words: object) -> None:
        super().__init__("/".join(map(str, words)))

    def chance(self, probability: float) -> bool:
        return self.random() < probability

    def pick(self, values: Sequence[T]) -> T:
        return values[int(self.random() * len(values))]

    def integer(self) -> int:
        """Return an integer that fits into 64 bits, mostly near a boundary."""
        if self.chance(0.7):
            return self.pick(INTEGERS)
        if self.chance(0.5):
            return self.getrandbits(self.pick((4, 8, 16, 32, 48, 64)))
        return max(-(2**63), min(2**64 - 1, self.pick(INTEGERS) + self.randint(-9, 9)))

    def unsigned(self, bits: int) -> int:
        """Return an integer of this many bits, mostly near a boundary."""
        return self.integer() % (1 << bits)

    def text(self) -> str:
        if self.chance(0.7):
            return self.pick(TEXTS)
        return "".join(chr(self.pick((65, 0x20, 0x22, 0x3D, 0x7F, 0xFF, 0x3042, 0x1F4A9))) for _ in range(12))

    def damaged(self, data: bytes, most: int = 4) -> bytes:
        """Return the data with some bytes changed."""
        if not data:
            return data
        changed = bytearray(data)
        for _ in range(self.randint(1, most)):
            at = self.randrange(len(changed))
            way = self.randrange(4)
            if way == 0:
                changed[at] ^= 1 << self.randrange(8)
            elif way == 1:
                changed[at] = self.pick((0, 1, 7, 0x7F, 0x80, 0xFE, 0xFF))
            else:
                width = self.pick((2, 4, 8))
                changed[at : at + width] = self.unsigned(8 * width).to_bytes(width, "little")
        return bytes(changed[: len(data)])
