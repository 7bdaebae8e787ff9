"""Work in another thread while this one waits for another process, or for OpenVINO."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def meanwhile(work: Callable[[], object]) -> Iterator[None]:
    """Do `work` in a thread, which ends with the block."""
    thread = threading.Thread(target=work, name="meanwhile")
    thread.start()
    try:
        yield
    finally:
        thread.join()
