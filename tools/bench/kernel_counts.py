"""What the kernel counts of a process for any user: wake-ups, switches, page faults, CPU time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

_SLEPT: Final = "voluntary_ctxt_switches"
_PREEMPTED: Final = "nonvoluntary_ctxt_switches"
_FAULTS: Final = (7, 9)
"""Fields of `stat` behind the program's name: minor and major page faults."""


class KernelCounts(NamedTuple):
    """So far, of all threads: times one slept and was woken, lost its core, faulted; microseconds of CPU."""

    woken: int
    preempted: int
    faults: int
    cpu_us: float

    def since(self, before: KernelCounts) -> KernelCounts:
        """Return the growth."""
        return KernelCounts(
            self.woken - before.woken,
            self.preempted - before.preempted,
            self.faults - before.faults,
            self.cpu_us - before.cpu_us,
        )


def read(pid: int) -> KernelCounts:
    """Return the counts of a process; those of threads that have ended are gone, but for page faults."""
    threads = [*_threads(pid)]
    # behind the name in parentheses, which may hold anything
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return KernelCounts(
        sum(woken for woken, _, _ in threads),
        sum(preempted for _, preempted, _ in threads),
        sum(int(fields[at]) for at in _FAULTS),
        sum(cpu_us for _, _, cpu_us in threads),
    )


def _threads(pid: int) -> Iterator[tuple[int, int, float]]:
    for folder in Path(f"/proc/{pid}/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # it has just ended
            status = dict(
                line.split(":", 1) for line in (folder / "status").read_text().splitlines() if ":" in line
            )
            nanoseconds = int((folder / "schedstat").read_text().split()[0])
            yield int(status[_SLEPT]), int(status[_PREEMPTED]), nanoseconds / 1000
