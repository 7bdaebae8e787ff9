"""A file in memory that OpenVINO serialises a model into: it writes to names that end with `.xml` only.

The name is a link to a descriptor of whoever opens it. A worker that is sandboxed can make no link, so it is
made before. It stays, and serves all who have the file as the same descriptor. Models in another format are
read by a name as well.
"""

from __future__ import annotations

import contextlib
import functools
import os
import threading
from collections.abc import Callable
from pathlib import Path

from softnpu.emulator.common import linux
from softnpu.emulator.interface import environment

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
    import tempfile  # late: most workers have a link

    fd = linux.memfd("ir")
    try:
        with tempfile.TemporaryDirectory(prefix="softnpu-ir-") as folder:
            link = Path(folder, "model.xml")
            link.symlink_to(f"/proc/self/fd/{fd}")
            write(link)
        return os.pread(fd, os.fstat(fd).st_size, 0)
    finally:
        os.close(fd)


@functools.cache
def prepared(suffix: str = ".xml") -> tuple[int, Path]:
    """Return the file of this process and its name with this end, made by the first call."""
    fd = linux.memfd("ir")
    target = f"/proc/self/fd/{fd}"
    folder = environment.user_cache("ir")
    if folder:
        with contextlib.suppress(OSError):
            os.makedirs(folder, 0o700, exist_ok=True)
            link = Path(folder, f"{fd}{suffix}")
            with contextlib.suppress(FileExistsError):
                link.symlink_to(target)
            if os.readlink(link) == target:
                return fd, link
    import tempfile

    link = Path(tempfile.mkdtemp(prefix="softnpu-ir-"), f"model{suffix}")
    link.symlink_to(target)
    return fd, link
