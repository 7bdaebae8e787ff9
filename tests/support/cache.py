"""Compiled-model caches for tests: one in a directory, its keys and its entries."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from softnpu.emulator.disk_cache.cache import ModelCache
from softnpu.emulator.interface.messages import CacheOptions

PAYLOAD: bytes | memoryview = bytes(range(256)) * 40
LARGE = 1 << 30


def cache_in(directory: Path, limit: int = LARGE) -> ModelCache:
    cache = ModelCache.open(CacheOptions(directory=str(directory), limit=limit))
    assert cache is not None
    return cache


def key_of(cache: ModelCache, name: str) -> str:
    return cache.key(name.encode(), b"configuration")


def listing(directory: Path) -> list[str]:
    return sorted(os.listdir(directory))


def size_of(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.iterdir())


Warnings = Callable[[], list[str]]
"""Return the warnings logged so far."""
