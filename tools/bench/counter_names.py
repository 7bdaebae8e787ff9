"""The names of what `bench counters` counts."""

from __future__ import annotations

from typing import Final

BENCH: Final = "counters"
CLIENT, ENGINE, SUPERVISOR = PROCESSES = ("client", "engine", "supervisor")
WOKEN, PREEMPTED, FAULTS, CPU, CALLS = COUNTS = (
    "wake-ups",
    "switched away",
    "page faults",
    "CPU time",
    "system calls",
)
COPIED: Final = "device: bytes copied"
