"""Locations of the compiled parts of softnpu: native driver, C++ of the engine and the driver, guard."""

from __future__ import annotations

import ctypes
import importlib.util
import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import logging

ENV_NATIVE_DIR = "SOFTNPU_NATIVE_DIR"
"""Directory of another build of the native driver, used instead of the installed one."""

DRIVER_NAME = "libze_softnpu.so"
GUARD_NAME = "libsoftnpu_guard.so"
ENGINE_NAME = "engine/libsoftnpu_engine.so"
SUBMIT_NAME = "libsoftnpu_submit.so"


def folder(name: str = DRIVER_NAME) -> Path:
    """Return the folder of the file of this name, present or not."""
    chosen = os.environ.get(ENV_NATIVE_DIR)
    if chosen:
        return Path(chosen).absolute()
    # found and not imported: whoever looks for a file needs no driver
    spec = importlib.util.find_spec("softnpu.driver")
    assert spec is not None
    # an editable install has the library among the installed files, which is not where the sources are
    folders = [Path(entry, "native", "lib") for entry in spec.submodule_search_locations or ()]
    return next((path for path in folders if (path / name).exists()), folders[0])


def guard() -> Path:
    """Return the library that guards foreign memory; it need not exist."""
    return folder(GUARD_NAME) / GUARD_NAME


def engine() -> Path:
    """Return the part of the engine in C++; it need not exist."""
    return folder(ENGINE_NAME) / ENGINE_NAME


def submit() -> Path:
    """Return the part of the Python driver in C++; it need not exist."""
    return folder(SUBMIT_NAME) / SUBMIT_NAME


def loaded(
    path: Path, name: str, version: int, without: str, kind: type[ctypes.CDLL] = ctypes.CDLL
) -> ctypes.CDLL | None:
    """Return the library if its function `name` returns this version; None if there is no such one.

    The log tells `without`, what that means.
    """
    if not path.exists():
        _log().info("no %s: %s", path, without)
        return None
    try:
        library = kind(str(path))
        found = int(library[name]())
    except (OSError, AttributeError) as error:
        _log().warning("%s cannot be used: %s; install softnpu again", path, error)
        return None
    if found != version:
        _log().warning("%s has version %d; expected %d: install softnpu again", path, found, version)
        return None
    return library


def _log() -> logging.Logger:
    import logging  # late: half a MiB of each client

    return logging.getLogger(__name__)
