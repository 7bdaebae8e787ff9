"""The part of the engine in C++, `libsoftnpu_engine.so`, if it was built; without it Python does all of it.

It is built together with the native driver and lies beside it. Calls release the interpreter lock.
"""

from __future__ import annotations

import ctypes
import logging
import os
from collections.abc import Iterator
from pathlib import Path

import softnpu

log = logging.getLogger(__name__)

NAME = "libsoftnpu_engine.so"
VERSION = 2
"""Of what is called, and of the records in `native/`: a library of another build is not used."""
ENV_NATIVE_DIR = "SOFTNPU_NATIVE_DIR"  # as for the native driver
_FOLDER = "driver/native/lib"

_loaded: list[ctypes.CDLL | None] = []


def library() -> ctypes.CDLL | None:
    """Return the library; None if there is none that fits."""
    if not _loaded:
        _loaded.append(_load())
    return _loaded[0]


def _load() -> ctypes.CDLL | None:
    path = next((path for path in _places() if path.exists()), None)
    if path is None:
        log.info("no %s: the engine runs without its part in C++, slower", NAME)
        return None
    try:
        loaded = ctypes.CDLL(str(path))
        found = int(loaded.softnpu_engine_version())
    except (OSError, AttributeError) as error:
        log.warning("%s cannot be used: %s; install softnpu again", path, error)
        return None
    if found != VERSION:
        log.warning("%s has version %d; expected %d: install softnpu again", path, found, VERSION)
        return None
    loaded.softnpu_copy.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint)
    loaded.softnpu_copy.restype = None
    return loaded


def _places() -> Iterator[Path]:
    chosen = os.environ.get(ENV_NATIVE_DIR)
    if chosen:
        yield Path(chosen, "engine", NAME)
        return
    # an editable install has the library among the installed files, which is not where the sources are
    for root in (*map(Path, softnpu.__path__), Path(__file__).parents[2]):
        yield Path(root, _FOLDER, "engine", NAME)
