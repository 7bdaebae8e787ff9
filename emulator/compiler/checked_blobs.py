"""Records of blobs that OpenVINO has verified against their metadata, and need not read again.

That takes longer than all other checks of an import. A note is an empty entry in a directory of the daemon's
user, in the cache of the engine; its name is a digest of all bytes of the blob, and of all that checks it.
"""

from __future__ import annotations

import functools
import os
from typing import Final

import msgspec

from softnpu.emulator import blob, compiler
from softnpu.emulator.common import source_digest
from softnpu.emulator.disk_cache import cache_key, entry_files
from softnpu.emulator.disk_cache.cache import ModelCache
from softnpu.emulator.interface import environment
from softnpu.emulator.interface.messages import CacheOptions

_FOLDER: Final = "checked"
_MOST: Final = 1000


class CheckedBlobs:
    """The notes in one directory, for a platform."""

    def __init__(self, notes: ModelCache, platform: str) -> None:
        self._notes = notes
        self._configuration = msgspec.json.encode(
            {
                "platform": platform,
                "openvino": cache_key.openvino_version(),
                "host": cache_key.host(),
                "code": code_digest(),
            },
            order="sorted",
        )

    @classmethod
    def open(cls, platform: str) -> CheckedBlobs | None:
        """Open the notes in the engine's cache; None if that is off or cannot be used."""
        options = cls.folder()
        notes = None if options is None else ModelCache.open(options)
        return None if notes is None else cls(notes, platform)

    @staticmethod
    def folder() -> CacheOptions | None:
        """Return the location of the notes; None if the engine cache is off."""
        directory = environment.engine_cache()
        if not directory:
            return None
        return CacheOptions(
            directory=os.path.join(directory, _FOLDER), limit=_MOST * entry_files.DIGEST_LENGTH
        )

    def has(self, digest: bytes) -> bool:
        """Whether the blob of this blake3 was checked."""
        return self._notes.load(self._notes.key(digest, self._configuration)) is not None

    def add(self, digest: bytes) -> None:
        """Note that the blob of this blake3 was checked, if that is possible."""
        self._notes.store(self._notes.key(digest, self._configuration), b"")


@functools.cache
def code_digest() -> str:
    """Return the digest of the code that checks blobs."""
    return source_digest.of_modules(blob, compiler)
