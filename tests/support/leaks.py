"""Leak checks for tests: processes, descriptors, names in /dev/shm."""

from __future__ import annotations

import contextlib
import gc
import os
import time
from pathlib import Path

import psutil

from tests.support.waiting import wait_until

_SETTLE_S = 5.0
_CLOCK_SLACK_S = 2.0  # between the clock and the kernel's start time of a process
# opened by a library on first use, and kept
_LIBRARIES = ("/dev/urandom", "/dev/null", "/sys/", "/proc/", "anon_inode:[eventpoll]", "/dev/pts")


lasting: set[int] = set()
"""Pids of processes that outlive a test on purpose; their children are theirs."""
servers: set[int] = set()
"""Pids of those that fork processes for a test; their children are the test's."""
lasting_descriptors: set[str] = set()
"""Descriptors that outlive a test on purpose, as /proc names them."""


class Surroundings:
    """The state before a test."""

    def __init__(self, folder: Path) -> None:
        gc.freeze()  # existing objects need not be traversed after each test
        self._folder = str(folder)
        self._begin = time.time() - _CLOCK_SLACK_S
        self._processes = _children()
        self._descriptors = set(_descriptors().items())
        self._streams = _streams()
        self._names = set(os.listdir("/dev/shm"))

    def check(self) -> None:
        """Fail if there is more than before. Processes about to end get a moment to do so."""
        gc.collect()
        # a later test would have something else there, and so would the programs that it starts
        assert _streams() == self._streams, "the test changed a standard stream of its process"
        for remaining in (self._new_processes, self._new_descriptors, self._new_names):
            try:
                wait_until(lambda remaining=remaining: not remaining(), _SETTLE_S)  # type: ignore[misc]
            except AssertionError:
                gc.unfreeze()
                gc.collect()
                left = remaining()
                assert left == [], f"left behind by the test: {left}"

    def _new_processes(self) -> list[str]:
        # processes started meanwhile by a program of a wider fixture are not this test's
        suspects = _children() - self._processes
        suspects.update(process for process in psutil.process_iter() if self._is_orphan(process))
        return [
            f"{process.pid} {_words(process.pid, 'cmdline')!r}"
            for process in suspects
            if _lives(process) and not self._known(process)
        ]

    def _is_orphan(self, process: psutil.Process) -> bool:
        """Return whether it started since and has the test's environment, whatever its parent."""
        try:
            return process.create_time() >= self._begin and self._belongs(process.pid)
        except psutil.NoSuchProcess:
            return False

    def _belongs(self, pid: int) -> bool:
        return any(self._folder in _words(pid, part) for part in ("cmdline", "environ"))

    def _known(self, process: psutil.Process) -> bool:
        try:
            if _is_server(process):
                return True
            known = {one for one in self._processes if not _is_server(one)}
            return any(one in known or one.pid in lasting for one in (process, *process.parents()))
        except psutil.NoSuchProcess:
            return True

    def _new_descriptors(self) -> list[str]:
        return [
            f"{fd} -> {target}"
            for fd, target in _descriptors().items()
            if (fd, target) not in self._descriptors
            and target not in lasting_descriptors
            and not target.startswith(_LIBRARIES)
        ]

    def _new_names(self) -> list[str]:
        return [name for name in sorted(set(os.listdir("/dev/shm")) - self._names) if not self._foreign(name)]

    def _foreign(self, name: str) -> bool:
        """Return whether only others use it: other test runs share the machine's directory."""
        try:
            inode = str(os.stat(f"/dev/shm/{name}").st_ino)
        except FileNotFoundError:
            return False  # already gone, as the next check tells
        ours = {process.pid for process in (psutil.Process(), *_children())}
        # by inode: a semaphore stays mapped under the name it had before it was ready
        users = [pid for pid in psutil.pids() if inode in _shared_memory_of(pid)]
        return bool(users) and not any(pid in ours or self._belongs(pid) for pid in users)


def _streams() -> list[str]:
    """Return what the numbers of standard streams lead to; "" where one is closed."""
    found = _descriptors()
    return [found.get(number, "") for number in range(3)]


def descriptors_of(pid: int) -> int:
    """Count the open descriptors of a process."""
    return len(os.listdir(f"/proc/{pid}/fd"))


def base_descriptors_of(supervisor: int) -> int:
    """Open descriptors of a supervisor but for a channel, an output and a pidfd for each of its children.

    Compiler workers come and go, and the status names only those that have worked.
    """

    def look() -> int:
        before = children_of(supervisor)
        count = descriptors_of(supervisor)
        # one that begins or ends in between would be counted with its descriptors, or they without it
        return count - 3 * len(before) if children_of(supervisor) == before else 0

    return wait_until(look, what="a moment in which no child begins or ends")


def children_of(pid: int) -> set[int]:
    """Return the children of a process from its own entries in /proc: psutil reads all processes."""
    children: set[int] = set()
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            children.update(map(int, Path(f"/proc/{pid}/task/{task}/children").read_text().split()))
    except (FileNotFoundError, ProcessLookupError):
        assert not Path(f"/proc/{pid}/stat").exists() or _lists_children(), "a kernel without PROC_CHILDREN"
    return children


def _lists_children() -> bool:
    return Path("/proc/thread-self/children").exists()


def _children() -> set[psutil.Process]:
    found: set[psutil.Process] = set()
    parents = {os.getpid()}
    while parents:
        children = set().union(*map(children_of, parents))
        for pid in children:
            with contextlib.suppress(psutil.NoSuchProcess):
                found.add(psutil.Process(pid))
        parents = children
    return found


def _words(pid: int, part: str) -> str:
    try:
        return Path(f"/proc/{pid}/{part}").read_bytes().replace(b"\0", b" ").decode(errors="replace").rstrip()
    except OSError:
        return ""  # ended meanwhile, or another user's


def _shared_memory_of(pid: int) -> set[str]:
    """Return the inodes of files in /dev/shm that a process maps."""
    try:
        lines = Path(f"/proc/{pid}/maps").read_text(errors="replace").splitlines()
    except OSError:
        return set()  # as above
    return {line.split()[4] for line in lines if " /dev/shm/" in line}


def _is_server(process: psutil.Process) -> bool:
    """Return whether it forks processes for tests: a server, or a server's helper with its command line."""
    parent = process.ppid()
    return process.pid in servers or (
        parent in servers and _words(process.pid, "cmdline") == _words(parent, "cmdline")
    )


def _lives(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _descriptors() -> dict[int, str]:
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            found[int(name)] = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue  # the descriptor of the listing itself
    return found
