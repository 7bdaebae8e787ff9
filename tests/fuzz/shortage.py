"""A daemon at one of its limits: descriptors, memory or disk space run short for a while."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from unittest import mock

import psutil

from tests.support.daemon import Daemon

LIMITS = ("descriptors", "memory", "processes", "disk")
_DESCRIPTORS = 64
_DISK = 1 << 20
_NOBODY = "65533"
_PRIVILEGES = "-sys_admin,-sys_resource"
"""What exempts a user from its limit of processes."""
_ACCESS = "+dac_override"
"""What lets another user run an interpreter below the folder of root."""


def become_bound(at: str) -> None:
    """With `processes`: go on as a user whom a limit of processes binds. It does not bind root."""
    if at == "processes" and os.getuid() == 0:
        user = ["--reuid", _NOBODY, "--regid", _NOBODY, "--clear-groups", "--bounding-set", _PRIVILEGES]
        words = ["setpriv", *user, "--inh-caps", _ACCESS, "--ambient-caps", _ACCESS, "--", *sys.orig_argv]
        os.execvp(words[0], words)


@contextmanager
def folder_for_caches(at: str, folder: Path) -> Iterator[None]:
    """Give the daemon a folder for its caches; with `disk` a small file system, which `short_of` fills."""
    caches = folder / "caches"
    caches.mkdir()
    with ExitStack() as stack:
        if at == "disk":
            mount = ["mount", "-t", "tmpfs", "-o", f"size={_DISK}", "none", str(caches)]
            subprocess.run(mount, check=True)
            stack.callback(subprocess.run, ["umount", "-l", str(caches)], check=True)
        if at:
            stack.enter_context(mock.patch.dict(os.environ, HOME=str(folder), XDG_CACHE_HOME=str(caches)))
        yield


@contextmanager
def short_of(at: str, daemon: Daemon, folder: Path) -> Iterator[None]:
    """Leave the supervisor a few descriptors, no address space or process, or no disk for its caches."""
    bounds = {
        "descriptors": (resource.RLIMIT_NOFILE, daemon.fd_count + _DESCRIPTORS),
        "memory": (resource.RLIMIT_AS, psutil.Process(daemon.pid).memory_info().vms),
        "processes": (resource.RLIMIT_NPROC, 0),
    }
    if at == "disk":
        with suppress(OSError), (folder / "caches" / "all").open("wb") as file:
            while True:
                file.write(bytes(4096))
                file.flush()
    if at not in bounds:
        yield
        return
    what, limit = bounds[at]
    before = resource.prlimit(daemon.pid, what)
    resource.prlimit(daemon.pid, what, (limit, before[1]))
    if at == "processes":
        for worker in daemon.status().compiler_pids:
            os.kill(worker, signal.SIGKILL)  # no other can be started
    try:
        yield
    finally:
        if daemon.alive:
            resource.prlimit(daemon.pid, what, before)
