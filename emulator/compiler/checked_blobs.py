"""Records of blobs that OpenVINO has verified against their metadata, and need not read again.

That takes longer than all other checks of an import. A note is an empty entry in a directory of the daemon's
user, in the cache of the engine; its name is a digest of all bytes of the blob, and of all that checks it.
"""

from __future__ import annotations

import functools
from typing import Final

from softnpu.emulator import blob, compiler
from softnpu.emulator.common import source_digest
from softnpu.emulator.disk_cache import cache_key, entry_files
from softnpu.emulator.disk_cache.cache import ModelCache

_FOLDER: Final = "checked"
_MOST: Final = 1000


class CheckedBlobs:
    """The notes for a platform, in a folder of the engine's cache; none if that is off or cannot be used."""

    def __init__(self, platform: str) -> None:
        self._notes = ModelCache.of_engine(_FOLDER, _MOST * entry_files.DIGEST_LENGTH)
        self._parts = {
            "platform": platform,
            "openvino": cache_key.openvino_version(),
            "host": cache_key.host(),
            "code": code_digest(),
        }

    def has(self, digest: bytes) -> bool:
        """Whether the blob of this blake3 was checked."""
        return self._notes is not None and self._notes.load(self._notes.key(digest, self._parts)) is not None

    def add(self, digest: bytes) -> None:
        """Note that the blob of this blake3 was checked, if that is possible."""
        if self._notes is not None:
            self._notes.store(self._notes.key(digest, self._parts), b"")


@functools.cache
def code_digest() -> str:
    """Return the digest of the code that checks blobs."""
    return source_digest.of_modules(blob, compiler)
