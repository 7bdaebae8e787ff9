"""A daemon at one of its limits: what is short meanwhile, and what it had before comes back."""

from __future__ import annotations

import os
import resource
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import psutil

from tests.support.daemon import Daemon

LIMITS = ("descriptors", "memory", "disk")
_DESCRIPTORS = 64
_DISK = 1 << 20


@contextmanager
def folder_for_caches(at: str, folder: Path) -> Iterator[None]:
    """With `disk`: the daemon, and all that it starts, have a file system for their caches that is full."""
    if at != "disk":
        yield
        return
    full = folder / "caches"
    full.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={_DISK}", "none", str(full)], check=True)
    before = os.environ.get("XDG_CACHE_HOME")
    os.environ["XDG_CACHE_HOME"] = str(full)
    try:
        yield
    finally:
        if before is None:
            del os.environ["XDG_CACHE_HOME"]
        else:
            os.environ["XDG_CACHE_HOME"] = before
        subprocess.run(["umount", "-l", str(full)], check=True)


@contextmanager
def short_of(at: str, daemon: Daemon, folder: Path) -> Iterator[None]:
    """The supervisor has little left: of descriptors, of address space; of the disk for caches nothing."""
    with ExitStack() as stack:
        if at == "descriptors":
            stack.enter_context(_limited(daemon, resource.RLIMIT_NOFILE, daemon.fd_count + _DESCRIPTORS))
        elif at == "memory":
            has = psutil.Process(daemon.pid).memory_info().vms
            stack.enter_context(_limited(daemon, resource.RLIMIT_AS, has))
        elif at == "disk":
            with suppress(OSError), (folder / "caches" / "all").open("wb") as file:
                while True:
                    file.write(bytes(4096))
                    file.flush()
        yield


@contextmanager
def _limited(daemon: Daemon, what: int, limit: int) -> Iterator[None]:
    before = resource.prlimit(daemon.pid, what)
    resource.prlimit(daemon.pid, what, (limit, before[1]))
    try:
        yield
    finally:
        if daemon.alive:
            resource.prlimit(daemon.pid, what, before)
