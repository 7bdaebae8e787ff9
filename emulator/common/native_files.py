"""Locations of the compiled parts of softnpu: native driver, C++ of the engine and the driver, guard.

It imports little: a program waits for it.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # that of `typing` takes longer to import than all of this
if TYPE_CHECKING:
    import ctypes
    import logging
    from collections.abc import Iterable
    from pathlib import Path

ENV_NATIVE_DIR = "SOFTNPU_NATIVE_DIR"
"""Directory of another build of the native driver, used instead of the installed one."""

DRIVER_NAME = "libze_softnpu.so"
GUARD_NAME = "libsoftnpu_guard.so"
ENGINE_NAME = "engine/libsoftnpu_engine.so"
SUBMIT_NAME = "libsoftnpu_submit.so"


def folder(name: str = DRIVER_NAME) -> Path:
    """Return the folder of the file of this name, present or not."""
    from pathlib import Path  # late, as above

    return Path(folder_name(name))


def folder_name(name: str = DRIVER_NAME) -> str:
    """Return the path of `folder`."""
    chosen = os.environ.get(ENV_NATIVE_DIR)
    if chosen:
        return chosen if os.path.isabs(chosen) else os.path.join(os.getcwd(), chosen)
    # an editable install has the library among the installed files, which is not where the sources are
    folders = [os.path.join(entry, "native", "lib") for entry in _folders_of_driver()]
    return next((path for path in folders if os.path.exists(os.path.join(path, name))), folders[0])


def _folders_of_driver() -> Iterable[str]:
    driver = sys.modules.get("softnpu.driver")
    if driver is not None:
        return driver.__path__
    import importlib.util  # late: it is often known

    # found and not imported: whoever looks for a file needs no driver
    spec = importlib.util.find_spec("softnpu.driver")
    assert spec is not None
    return spec.submodule_search_locations or ()


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
    path: Path, name: str, version: int, without: str, kind: type[ctypes.CDLL] | None = None
) -> ctypes.CDLL | None:
    """Return the library if its function `name` returns this version; None if there is no such one.

    The log tells `without`, what that means.
    """
    import ctypes  # late, as above

    if not path.exists():
        _log().info("no %s: %s", path, without)
        return None
    try:
        library = (kind or ctypes.CDLL)(str(path))
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
