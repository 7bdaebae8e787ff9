"""The identity of a process: its pid, its start time and the boot of the machine.

The kernel uses a pid again after a while, but never with the same start time in one boot.

Two questions, for two kinds of decision: `is_running` is proven before a process is signalled, `has_ended`
before something of it is removed. Both are False for a process that cannot be read.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import NamedTuple


class ProcessIdentity(NamedTuple):
    """One process of this machine. `start_time` in clock ticks since boot, as in /proc/PID/stat."""

    pid: int
    start_time: int
    boot_id: str

    @classmethod
    def of(cls, pid: int) -> ProcessIdentity:
        """The process that has this pid now. `OSError` if there is none, or it is hidden from this one."""
        return cls(pid, start_time(pid), boot_id())

    @classmethod
    def current(cls) -> ProcessIdentity:
        """This process."""
        return cls.of(os.getpid())

    def is_running(self) -> bool:
        """Whether the process provably runs; a zombie counts as running."""
        return self._runs() is True

    def has_ended(self) -> bool:
        """Whether the process has provably ended."""
        return self._runs() is False

    def _runs(self) -> bool | None:
        """None if nothing proves either."""
        if self.boot_id != boot_id():
            return False
        try:
            return start_time(self.pid) == self.start_time
        except (FileNotFoundError, ProcessLookupError):
            return False
        except OSError:
            return None


def start_time(pid: int) -> int:
    """When a process started, in clock ticks since boot. `OSError` if it does not exist or is hidden."""
    # the command name (field 2) may hold spaces and brackets: count from its last bracket
    fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    return int(fields[19])


@cache
def boot_id() -> str:
    """Return the identity of this boot of the machine."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
