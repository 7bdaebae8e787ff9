"""Notes of hints: which entry of the engine's cache an image had that was loaded with a hint before.

A program sends the hint of what it will load long before the compiler knows the content, and the engine
imports the entry meanwhile. It finds an image by its content alone: a wrong note costs time and nothing else.
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
    """The key of an entry, and the properties with which it is imported."""

    key: str
    properties: dict[str, str]


class ExpectedImages:
    """The notes in the cache of engines."""

    def __init__(self, files: ModelCache) -> None:
        self._files = files

    @classmethod
    def open(cls, directory: str) -> ExpectedImages | None:
        """Open the notes of the cache in `directory`; None if they cannot be used."""
        files = ModelCache.open(CacheOptions(directory=os.path.join(directory, _FOLDER), limit=_LIMIT))
        return None if files is None else cls(files)

    def find(self, hint: bytes) -> Note | None:
        """Return the note of this hint; None without a sound one."""
        payload = self._files.load(self._files.key(hint, _FORMAT))
        if payload is None:
            return None
        try:
            note = msgspec.msgpack.decode(payload, type=Note)
        except msgspec.DecodeError:
            return None
        return note if entry_files.is_key(note.key) else None

    def store(self, hint: bytes, note: Note) -> None:
        """Note what was loaded with this hint, if that is possible and not noted."""
        if self.find(hint) != note:
            self._files.store(self._files.key(hint, _FORMAT), msgspec.msgpack.encode(note))
