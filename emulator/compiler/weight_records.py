"""Records of the digests of large weights files: the key of a cached model need not read gigabytes.

A record is for one state of a file, its identity and its times. They are no proof by themselves: a mapping
that was written to before is written to without changing them. So a record is made only if nobody could write
to the file when it was read. A read lease tells: the kernel grants it while no descriptor for writing exists,
and a mapping keeps the one that it was made with. Whoever writes later has opened the file later, and on ext4
that changes its times, through a mapping as well.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Sequence
from typing import Final

import msgspec

from softnpu.emulator.blob.weight_files import file_identities
from softnpu.emulator.common import linux
from softnpu.emulator.common.process_identity import boot_id
from softnpu.emulator.compiler.digests import LARGE, WeightDigests
from softnpu.emulator.disk_cache.cache import ModelCache
from softnpu.emulator.interface.messages import CacheOptions

FOLDER: Final = "weights"
_LIMIT: Final = 4 << 20
_SECOND_NS: Final = 10**9


class WeightRecord:
    """The record of the files that a job's weights lie in, beside the models of its cache."""

    def __init__(
        self,
        records: ModelCache,
        key: str,
        digests: WeightDigests,
        fds: Sequence[int],
        identities: tuple[bytes, ...],
    ) -> None:
        """Learn what is on record. Do that before the content is read."""
        self._records = records
        self._key = key
        self._digests = digests
        self._fds = fds
        self._identities = identities
        payload = records.load(key)
        if payload is not None:
            digests.learn(bytes(payload))
        self._known = digests.known()
        self._can_be_kept = all(map(_is_at_rest, fds))

    @classmethod
    def find(
        cls,
        options: CacheOptions,
        digests: WeightDigests,
        fds: Sequence[int],
        identities: tuple[bytes, ...],
    ) -> WeightRecord | None:
        """Return the record of files with these identities; None for files that have none."""
        layout = digests.space.layout
        if layout.size < LARGE or not all(identities) or not all(map(linux.is_ext4, fds)):
            return None
        folder = os.path.join(options.directory, FOLDER)
        records = ModelCache.open(msgspec.structs.replace(options, directory=folder, limit=_LIMIT))
        if records is None:
            return None
        ranges = " ".join(f"{source.offset}:{source.length}" for source in layout.sources)
        key = records.key(b" ".join(identities), {"boot": boot_id(), "ranges": ranges})
        return cls(records, key, digests, fds, identities)

    def keep(self) -> None:
        """Store what was digested since, if nobody can have written to the files meanwhile."""
        known = self._digests.known()
        if known != self._known and self._can_be_kept and file_identities(self._fds) == self._identities:
            self._records.store(self._key, known)


def _is_at_rest(fd: int) -> bool:
    """Whether nobody can write to a file on disk now, and its times change with the next write."""
    changed = os.fstat(fd).st_ctime_ns
    # of a file system that counts seconds they might not
    if not changed % _SECOND_NS or time.time_ns() - changed < _SECOND_NS:
        return False
    try:
        # a lease belongs to whoever shares the open file: not to the client
        own = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.fcntl(own, fcntl.F_SETLEASE, fcntl.F_RDLCK)  # until it is closed
    except OSError:
        return False
    finally:
        os.close(own)
    return True
