"""The engine's account of one session: its time, and the memory kept for it."""

from __future__ import annotations

import ctypes

LEVELS = 4


class Share:
    """The account of one session: time on each level in ns; bytes of decoded programs, of staging, of what is
    prepared for the C++ part.

    `address`: that of the times, for the C++ part. `contexts`: contexts on this account. `decoding`:
    decodings in progress.
    """

    __slots__ = (
        "_words",
        "address",
        "contexts",
        "decoding",
        "kept_bytes",
        "prepared_bytes",
        "spent_ns",
        "staging_bytes",
    )

    def __init__(self) -> None:
        self.kept_bytes = self.staging_bytes = self.contexts = self.prepared_bytes = 0
        self.decoding: set[object] = set()
        self._words = (ctypes.c_uint64 * LEVELS)()
        self.address = ctypes.addressof(self._words)
        self.spent_ns = memoryview(self._words).cast("B").cast("Q")
