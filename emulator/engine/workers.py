"""OpenVINO's workers, which sleep while the C++ part runs short inferences: see `native/workers.hpp`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from softnpu.emulator.engine import native_library


@contextmanager
def needed() -> Iterator[None]:
    """Keep the workers awake, for what another thread computes meanwhile."""
    library = native_library.library()
    if library is None:
        yield
        return
    library.softnpu_workers_take()
    try:
        yield
    finally:
        library.softnpu_workers_give()
