"""Callbacks of ended inferences: one thread for the requests of a model, only while there is work."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

_IDLE_S = 1.0


class Completions:
    """Runs jobs in order of submission, each of which waits for one inference.

    Inferences of a model end in that order, so one thread serves any number of requests. It exits after a
    second without work.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._changed = threading.Condition()
        self._jobs: deque[Callable[[], None]] = deque()
        self._thread: threading.Thread | None = None

    def submit(self, job: Callable[[], None]) -> None:
        """Run `job` in the thread, after earlier jobs. A job must not raise."""
        with self._changed:
            self._jobs.append(job)
            self._changed.notify()
            if self._thread is None:
                # a daemon thread, because a program may end while an inference runs
                self._thread = threading.Thread(
                    target=self._run, name=f"callbacks of {self._name}", daemon=True
                )
                self._thread.start()

    def _run(self) -> None:
        while True:
            with self._changed:
                if not self._jobs and not self._changed.wait_for(lambda: self._jobs, _IDLE_S):
                    self._thread = None
                    return
                job = self._jobs.popleft()
            job()
            del job  # it refers to a request, which may be the last reference to its model
