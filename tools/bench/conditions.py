"""Where a run was measured: its cores, and the busy processes beside it.

`taskset -c 0 softnpu bench ...` measures on one core. `--load 4` keeps four processes busy, as other programs
do: they hash more memory than a core caches, each in a session of its own, as the daemon is in. Both sides of
every ratio meet the same conditions.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Final

import msgspec

from softnpu.tools.bench.result import Conditions
from softnpu.tools.bench.worker import Worker

_BYTES: Final = 4 << 20


class BusyStart(msgspec.Struct, frozen=True):
    """A busy process needs nothing."""


@contextmanager
def conditions(busy: int = 0) -> Iterator[Conditions]:
    """Keep this many processes busy in the block, on the cores of this one."""
    with ExitStack() as stack:
        workers = [
            stack.enter_context(Worker("busy process", "conditions:prepare", BusyStart(), apart=True))
            for _ in range(busy)
        ]
        for worker in workers:
            worker.wait_until_ready()
            worker.begin()
        yield Conditions(len(os.sched_getaffinity(0)), os.cpu_count() or 1, busy)


def prepare(start: BusyStart) -> Callable[[float], BusyStart]:
    """Return a turn that never ends."""
    del start
    memory = bytes(_BYTES)

    def turn(_: float) -> BusyStart:
        while True:
            hashlib.blake2b(memory)

    return turn
