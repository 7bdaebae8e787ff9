"""A file in memory that OpenVINO serialises a model into: it writes to names that end with `.xml` only.

The name is a link to a descriptor of whoever opens it. It stays, and serves all who have the file as the same
descriptor: a process that is killed leaves no other. A worker that is sandboxed can make no link, so it is
made before.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

from softnpu.emulator.common import linux
from softnpu.emulator.interface import environment, socket_place

_lock = threading.Lock()


def written(write: Callable[[Path], None]) -> bytes:
    """Return the bytes that `write` puts into the file named to it. Only a sandboxed worker keeps it."""
    if prepared.cache_info().currsize:
        fd, link = prepared()
        with _lock:
            try:
                write(link)
                return os.pread(fd, os.fstat(fd).st_size, 0)
            finally:
                os.ftruncate(fd, 0)
    fd = linux.memfd("ir")
    try:
        write(_link_to(fd))
        return os.pread(fd, os.fstat(fd).st_size, 0)
    finally:
        os.close(fd)


@functools.cache
def prepared() -> tuple[int, Path]:
    """Return the file of this process and its name, made by the first call."""
    fd = linux.memfd("ir")
    return fd, _link_to(fd)


def _link_to(fd: int) -> Path:
    target = f"/proc/self/fd/{fd}"
    for folder in _folders():
        with contextlib.suppress(OSError):
            os.makedirs(folder, 0o700, exist_ok=True)
            if not socket_place.is_private(folder):
                continue
            link = Path(folder, f"{fd}.xml")
            with contextlib.suppress(FileExistsError):
                link.symlink_to(target)
            if os.readlink(link) == target:
                return link
    raise OSError(f"no folder for the name of a file in memory: {', '.join(_folders())}")


def _folders() -> Iterator[str]:
    if folder := environment.user_cache("ir"):
        yield folder
    import tempfile  # late: most can use that one

    yield os.path.join(tempfile.gettempdir(), f"softnpu-ir-{os.geteuid()}")
