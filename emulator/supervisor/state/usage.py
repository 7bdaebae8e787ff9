"""A session's use of its devices: the sum over its queues, including ended ones."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from softnpu.emulator.links.engine import QueuePause

_MOST = 2**64 - 1


class QueueUsage(NamedTuple):
    """The engine's record of one queue. Time in nanoseconds."""

    completed: int = 0
    running: bool = False
    spent_ns: int = 0
    inferences: int = 0
    waiting: int = 0
    pause: int = QueuePause.NONE


class QueueRecords(Protocol):
    """The records in which one device's engine logs it."""

    def usage(self, state: int) -> QueueUsage:
        """Return the content of one record."""
        ...


class SessionUsage:
    """The use by all queues of one session. Counts never decrease."""

    def __init__(self) -> None:
        self._live: dict[tuple[int, int], QueueRecords] = {}
        self._submissions = self._spent_ns = self._inferences = 0

    def begin(self, device: int, state: int, records: QueueRecords) -> None:
        """Count a new queue."""
        self._live[device, state] = records

    def end(self, device: int, state: int) -> None:
        """Add up a queue whose record will have another owner."""
        records = self._live.pop((device, state), None)
        if records is None:
            return  # it was never begun
        usage = records.usage(state)
        self._submissions += usage.completed
        self._spent_ns += usage.spent_ns
        self._inferences += usage.inferences

    def queues(self) -> list[QueueUsage]:
        """Return the queues that exist, and those that the engine has yet to drop."""
        return [records.usage(state) for (_, state), records in self._live.items()]

    def total(self, queues: list[QueueUsage]) -> QueueUsage:
        """Return the sum over these queues and those that have ended."""
        # a client that overwrites its rings chooses what was logged of them: no sum may outgrow its field
        return QueueUsage(
            completed=min(_MOST, self._submissions + sum(queue.completed for queue in queues)),
            running=any(queue.running for queue in queues),
            spent_ns=min(_MOST, self._spent_ns + sum(queue.spent_ns for queue in queues)),
            inferences=min(_MOST, self._inferences + sum(queue.inferences for queue in queues)),
            waiting=min(_MOST, sum(queue.waiting for queue in queues)),
            pause=max((queue.pause for queue in queues), default=QueuePause.NONE),
        )
