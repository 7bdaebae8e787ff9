"""Maintenance of the cache: describe, verify and remove entries, compare keys."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from softnpu.emulator.common.file_claim import try_lock
from softnpu.emulator.disk_cache import cache_key, entry_files
from softnpu.emulator.disk_cache.entry_files import Entry, InvalidEntry

_CHANGE_S: Final = 30.0
_INPUT: Final = slice(0, 64)


@dataclass(frozen=True)
class EntryDescription:
    """An entry with its note: the parts of its key; empty if it has none, or a damaged one."""

    entry: Entry
    parts: dict[str, str]


def describe(entry: Entry) -> EntryDescription:
    """Read the note of an entry."""
    return EntryDescription(entry, entry_files.read_note(entry.path))


def defect_of(entry: Entry) -> str | None:
    """Return the defect of an entry, None for a good one. Raises `FileNotFoundError` if it is gone."""
    try:
        fd = entry_files.open_entry(entry.path)
    except FileNotFoundError:
        raise
    except OSError as error:
        return error.strerror or str(error)
    try:
        try_lock(fd, fcntl.LOCK_SH, optional=True)  # so that it is not evicted meanwhile
        entry_files.read_payload(fd, entry.key)
    except (InvalidEntry, OSError) as error:
        return str(error)
    finally:
        os.close(fd)
    return None


def bad_entries(listed: Iterable[Entry]) -> Iterator[tuple[Entry, str]]:
    """Yield the damaged entries, each with its defect."""
    for entry in listed:
        try:
            reason = defect_of(entry)
        except FileNotFoundError:
            continue
        if reason is not None:
            yield entry, reason


def surplus(listed: list[Entry], max_size: int | None, unused_since_ns: int | None) -> list[Entry]:
    """Of `listed`, in order of use: those not used since a time, and the first of the rest beyond a size."""
    chosen = [entry for entry in listed if unused_since_ns is not None and entry.used_ns < unused_since_ns]
    rest = listed[len(chosen) :]
    excess = sum(entry.size for entry in rest) - max_size if max_size is not None else 0
    for entry in rest:
        if excess <= 0:
            break
        chosen.append(entry)
        excess -= entry.size
    return chosen


def remove(directory: Path, choose: Callable[[list[Entry]], list[Entry]]) -> tuple[list[Entry], list[Entry]]:
    """Remove the entries selected by `choose`; return the removed ones, and those in use.

    Also removes leftovers of dead processes. Raises `OSError`: `TimeoutError` if others keep the cache busy.
    """
    removed: list[Entry] = []
    kept: list[Entry] = []
    with entry_files.exclusive(directory, _CHANGE_S):
        entry_files.remove_leftovers(directory)
        for entry in choose(entry_files.entries(directory)):
            (removed if entry_files.evict(entry) else kept).append(entry)
    return removed, kept


@dataclass(frozen=True)
class NearestEntry:
    """An entry beside a wanted key: whether the input is the same, and the other parts that differ."""

    described: EntryDescription
    same_input: bool
    different: list[str]


def nearest(
    key: str, parts: Mapping[str, str], described_entries: Iterable[EntryDescription]
) -> NearestEntry | None:
    """The entry that differs least from `key`: the same input counts most, then the same name of the model.

    An entry without a note can only be compared by its input.
    """
    candidates = [
        NearestEntry(
            described,
            described.entry.key[_INPUT] == key[_INPUT],
            cache_key.differences(parts, described.parts) if described.parts else [],
        )
        for described in described_entries
        if described.parts or described.entry.key[_INPUT] == key[_INPUT]
    ]
    return min(candidates, key=_distance, default=None)


def _distance(near: NearestEntry) -> tuple[bool, bool, bool, int]:
    return (not near.same_input, "model" in near.different, not near.described.parts, len(near.different))
