"""Notes that map each hint to the engine-cache entry it last loaded.

A program sends the hint of a model long before the compiler knows its content, and the engine prefetches the
entry meanwhile. Images are looked up by content alone, so a wrong note costs nothing but time.
"""

from __future__ import annotations

import os
from typing import Final

import msgspec

from softnpu.emulator.disk_cache import entry_files
from softnpu.emulator.disk_cache.cache import ModelCache
from softnpu.emulator.interface.messages import CacheOptions

_FOLDER: Final = "expected"
_LIMIT: Final = 1 << 20
_FORMAT: Final = b"1"


class Note(msgspec.Struct, frozen=True):
    """The key of an entry, and the properties it is imported with."""

    key: str
    properties: dict[str, str]


class ExpectedImages:
    """The notes in the engine cache."""

    def __init__(self, files: ModelCache) -> None:
        self._files = files

    @classmethod
    def open(cls, directory: str) -> ExpectedImages | None:
        """Open the notes of the cache in `directory`; return None if they are unusable."""
        files = ModelCache.open(CacheOptions(directory=os.path.join(directory, _FOLDER), limit=_LIMIT))
        return None if files is None else cls(files)

    def find(self, hint: bytes) -> Note | None:
        """Return the note of this hint; None if it is missing or invalid."""
        payload = self._files.load(self._files.key(hint, _FORMAT))
        if payload is None:
            return None
        try:
            note = msgspec.msgpack.decode(payload, type=Note)
        except msgspec.DecodeError:
            return None
        return note if entry_files.is_key(note.key) else None

    def store(self, hint: bytes, note: Note) -> None:
        """Record what this hint loaded, unless already recorded; ignore failures."""
        if self.find(hint) != note:
            self._files.store(self._files.key(hint, _FORMAT), msgspec.msgpack.encode(note))
