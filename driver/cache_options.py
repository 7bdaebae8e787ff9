"""Selects a client's cache of compiled models, by the environment rules of Intel's driver."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

from softnpu.emulator.interface.messages import CacheOptions

ENV_CACHE_DIR: Final = "ZE_INTEL_NPU_CACHE_DIR"
"""Directory of the driver's cache of compiled models. If empty, nothing is cached."""
ENV_CACHE_SIZE: Final = "ZE_INTEL_NPU_CACHE_SIZE"
"""Maximum size of that directory in bytes. If 0 or invalid, nothing is stored."""
DEFAULT_LIMIT: Final = 4 << 30

_FOLDER: Final = "ze_intel_npu_cache"
_chosen: tuple[str | None, int] | None = None  # ENV_CACHE_SIZE when the limit was set, and the limit


def cache_options_from_environment(environ: Mapping[str, str]) -> CacheOptions | None:
    """Return the cache that `environ` selects; None when it is off.

    The directory is `ZE_INTEL_NPU_CACHE_DIR`, or `ze_intel_npu_cache` in `XDG_CACHE_HOME` or `HOME/.cache`,
    the first that is set, or in `./.cache`. It is made absolute here because the compiler has its own working
    directory.
    """
    folder = _directory(environ)
    if not folder:
        return None
    folder = os.path.abspath(folder)
    try:
        folder.encode()
    except UnicodeEncodeError:
        import logging  # late: half a MiB of each client

        logging.getLogger(__name__).warning(
            "no cache of compiled models: the name of directory %r is not UTF-8", folder
        )
        return None
    return CacheOptions(directory=folder, limit=cache_limit(environ))


def cache_limit(environ: Mapping[str, str]) -> int:
    """Return the limit in bytes: the one this process set, unless the variable has changed since."""
    text = environ.get(ENV_CACHE_SIZE)
    if _chosen is not None and _chosen[0] == text:
        return _chosen[1]
    return _limit(text)


def set_cache_limit(environ: Mapping[str, str], size: int) -> None:
    """Set this process's limit, overriding the variable."""
    global _chosen
    _chosen = environ.get(ENV_CACHE_SIZE), size


def _directory(environ: Mapping[str, str]) -> str:
    chosen = environ.get(ENV_CACHE_DIR)
    if chosen is not None:
        return chosen
    if base := environ.get("XDG_CACHE_HOME"):
        return os.path.join(base, _FOLDER)
    return os.path.join(environ.get("HOME") or ".", ".cache", _FOLDER)


def _limit(text: str | None) -> int:
    if text is None:
        return DEFAULT_LIMIT
    text = text.strip()
    # msgpack takes 64 bits; longer numbers exceed any disk
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 19 else 0
