"""The records of a queue's prepared submissions, as the C++ part finds them."""

from __future__ import annotations

import ctypes
from typing import Final

from softnpu.emulator.engine.fast_path.native_records import PreparedRecord, QueueRecord

_FIRST_ROOM: Final = 64


class RecordTable:
    """Addresses of records, by key, in the record of a queue. Adding and removing one takes constant time.

    Whoever adds a record keeps it alive until it is removed.
    """

    def __init__(self, queue: QueueRecord) -> None:
        self._queue = queue
        self._keys: list[bytes] = []
        self._place: dict[bytes, int] = {}
        self._addresses: ctypes.Array[ctypes.c_void_p] = (ctypes.c_void_p * 0)()
        self._make_room(_FIRST_ROOM)

    def add(self, key: bytes, record: PreparedRecord) -> None:
        """Add a record under a new key."""
        count = len(self._keys)
        if count == len(self._addresses):
            self._make_room(2 * count)
        self._addresses[count] = ctypes.addressof(record)
        self._keys.append(key)
        self._place[key] = count
        self._queue.prepared_count = count + 1

    def remove(self, key: bytes) -> None:
        """Remove the record of a key; the last one takes its place."""
        place, last = self._place.pop(key), self._keys.pop()
        self._queue.prepared_count = count = len(self._keys)
        if place < count:
            self._keys[place], self._place[last] = last, place
            self._addresses[place] = self._addresses[count]

    def _make_room(self, room: int) -> None:
        addresses = (ctypes.c_void_p * room)()
        for place in range(len(self._keys)):
            addresses[place] = self._addresses[place]
        self._queue.prepared = ctypes.addressof(addresses)
        self._addresses = addresses  # the old ones are freed: C++ no longer finds them
