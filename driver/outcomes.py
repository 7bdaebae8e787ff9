"""How the submissions of a queue ended: each failure is kept until somebody was told of it."""

from __future__ import annotations

from typing import NamedTuple

_MOST_KEPT = 1024


class Failure(NamedTuple):
    """A submission that failed, and its `ze_result_t`."""

    sequence: int
    result: int


class Execution:
    """The submissions `first` to `last` of one call with a fence, and the ticket that signals it."""

    __slots__ = ("failure", "first", "last", "ticket")

    def __init__(self, ticket: int, first: int, last: int) -> None:
        self.ticket = ticket
        self.first = first
        self.last = last
        self.failure: Failure | None = None  # the first of them that failed, once it was looked at


class Outcomes:
    """The results of one queue, read from its slots before they are used again.

    `words` has the result of submission s at `first + step * ((s - 1) mod slots)`. Not thread-safe: the
    queue's lock guards it.
    """

    def __init__(self, words: memoryview, first: int, step: int, slots: int) -> None:
        self._words = words
        self._first = first
        self._step = step
        self._mask = slots - 1
        self._read = 0  # results up to here were read
        self._untold: dict[int, int] = {}
        self._more = 0  # failures beyond those that are kept
        self._executions: dict[int, Execution] = {}  # by each of their submissions

    def expect(self, execution: Execution) -> None:
        """An execution with a fence: it learns of the first of its submissions that fails."""
        for sequence in range(execution.first, execution.last + 1):
            self._executions[sequence] = execution

    def read(self, completed: int) -> None:
        """Read the results of all submissions up to `completed`, which have ended."""
        for sequence in range(self._read + 1, completed + 1):
            result = self._words[self._first + self._step * ((sequence - 1) & self._mask)]
            execution = self._executions.pop(sequence, None) if self._executions else None
            if not result:
                continue
            if execution is not None and execution.failure is None:
                execution.failure = Failure(sequence, result)
            if len(self._untold) < _MOST_KEPT:
                self._untold[sequence] = result
            else:
                self._more += 1
        self._read = max(self._read, completed)

    def was_read(self, sequence: int) -> bool:
        """Whether the result of this submission was read."""
        return self._read >= sequence

    def told(self, sequence: int) -> None:
        """Somebody was told of this failure."""
        self._untold.pop(sequence, None)

    def take_untold(self, last: int) -> tuple[Failure, int] | None:
        """The oldest failure up to `last` that nobody was told of, and how many more there are.

        All of them count as told from now on.
        """
        chosen = [sequence for sequence in self._untold if sequence <= last]
        if not chosen:
            return None
        first = Failure(chosen[0], self._untold[chosen[0]])
        for sequence in chosen:
            del self._untold[sequence]
        more, self._more = len(chosen) - 1 + self._more, 0
        return first, more
