"""The plan of every client, decided by the seed alone: step NUMBER of client C is the same in every run.

Deaths are part of the plan and counted in steps, not in time. Only the interleaving of different clients'
steps differs between runs.
"""

from __future__ import annotations

from random import Random
from typing import Final, NamedTuple

_WEIGHTS: Final = {
    "infer": 30,
    "burst": 16,
    "batch": 8,
    "states": 8,
    "memory": 10,
    "events": 8,
    "share": 3,
    "remote": 6,
    "cancel": 4,
    "compile": 5,
    "import": 3,
    "refused": 1,
    "reconnect": 3,
}
FAULTS: Final = (
    "reset", "lost", "oom", "ecc", "compile-fail", "slow", "import-fail", "fail", "drop-doorbell", "refuse",
    "load-fail", "compile-crash", "delay", "disconnect", "hang", "stall", "drop-signal",
)  # fmt: skip
"""The kinds of faults that clients inject into their own sessions."""
OPERATIONS: Final = (*_WEIGHTS, *(f"fault {kind}" for kind in FAULTS))
"""Every operation by name; `operations` and `fault_operations` implement them."""

_DEATH: Final = 1 / 25
_FAULT: Final = 1 / 40
_COSTLY: Final = {"hang": 0.03, "stall": 0.03, "drop-signal": 0.03, "drop-doorbell": 0.1, "reset": 0.1}
"""Faults that delay everyone: their reduced frequency relative to the others."""
_FIRST_FAULT_STEP: Final = 4
_FIRST_KINDS: Final = 15
"""From this step on each of the first kinds comes once, however short the run is."""
_POINTS: Final = (
    "client.submit", "client.running", "client.completing", "client.record", "client.allocate",
    "client.map", "client.free", "client.signal", "client.compile", "client.load", "client.import",
    "client.export", "client.context", "client.queue", "client.close", "client.handshake",
)  # fmt: skip
_LATEST_MS: Final = 30.0


class Death(NamedTuple):
    """A client's death in a step: at a fail-point on its way, or after some milliseconds.

    A client still alive at the end of the step dies there.
    """

    point: str = ""
    milliseconds: float = 0.0

    def __str__(self) -> str:
        return f"at {self.point}" if self.point else f"after {self.milliseconds:.1f} ms"


class Step(NamedTuple):
    """One step: the operation, its subject, a number for all other choices, and perhaps a death."""

    number: int
    operation: str
    workload: int
    sample: int
    seed: int
    death: Death | None


class Plan(NamedTuple):
    """The decisions of a run."""

    seed: int
    clients: int
    workloads: int
    kill: bool
    faults: bool

    def step(self, client: int, number: int) -> Step:
        """Return step `number` (from 0) of a client."""
        random = Random(f"{self.seed}.{client}.{number}")
        (operation,) = random.choices(list(_WEIGHTS), list(_WEIGHTS.values()))
        death = _death(random) if random.random() < _DEATH else None
        fault = self._fault(random, client, number)
        step = Step(
            number=number,
            operation=operation,
            workload=random.randrange(self.workloads),
            sample=random.randrange(1 << 16),
            seed=random.randrange(1 << 32),
            death=death if self.kill else None,
        )
        if fault and self.faults:
            return step._replace(operation=f"fault {fault}", death=None)
        return step

    def pause(self, number: int) -> int:
        """Return the number of all clients' operations until the next engine kill."""
        random = Random(f"{self.seed}.engine.{number}")
        return int(self.clients * random.uniform(30, 90)) + 100

    def compiler_pause(self, number: int) -> int:
        """Do the same for a compiler worker."""
        random = Random(f"{self.seed}.compiler.{number}")
        return int(self.clients * random.uniform(15, 60)) + 50

    def _fault(self, random: Random, client: int, number: int) -> str:
        # clients get one kind after another, in turn
        first = (number - _FIRST_FAULT_STEP) * self.clients + client
        if 0 <= first < _FIRST_KINDS:
            return FAULTS[first]
        if random.random() >= _FAULT:
            return ""
        kind = random.choice(FAULTS)
        return kind if random.random() < _COSTLY.get(kind, 1.0) else ""


def _death(random: Random) -> Death:
    if random.random() < 0.5:
        return Death(point=random.choice(_POINTS))
    return Death(milliseconds=random.uniform(0.05, _LATEST_MS))
