"""The C++ part of the engine, `libsoftnpu_engine.so`, if built; without it Python does everything.

It is built together with the native driver and lies beside it. Calls release the interpreter lock.
"""

from __future__ import annotations

import ctypes

from softnpu.emulator.common import native_files

VERSION = 7
"""Version of the calls and of the records in `native/`: a library of another version is not used."""

_loaded: list[ctypes.CDLL | None] = []


def library() -> ctypes.CDLL | None:
    """Return the library; None if there is none of this version."""
    if not _loaded:
        _loaded.append(_load())
    return _loaded[0]


def _load() -> ctypes.CDLL | None:
    without = "the engine runs without its part in C++, slower"
    return native_files.loaded(native_files.engine(), "softnpu_engine_version", VERSION, without)
