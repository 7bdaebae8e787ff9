"""A monitor's view of a cluster, queried by a separate process because Ray may block, or end its process."""

from __future__ import annotations

import importlib.util
import os
import select
import subprocess
import sys
import threading
import time
from typing import Final

import msgspec

from softnpu.tools.farm.states import CLUSTER, WAITING, ClusterState, Failure
from softnpu.tools.shared.failures import ToolError

_LOOK_S: Final = 0.5
"""Nodes that miss this time limit are asked at the next look."""
_SILENT_S: Final = 5.0
_HUNG_S: Final = 60.0
_AGAIN_S: Final = 3.0
_END_S: Final = 2.0
_NODES_S: Final = 120.0
_PYTHON: Final = (sys.executable, "-P", "-m", "softnpu.tools.farm.asking")


class NotYetError(ToolError):
    """The cluster has not answered yet; the question is pending."""


def without_ray() -> ToolError:
    """Return the error for a missing Ray, with the remedy."""
    return ToolError(
        "ray", found="not installed", expected="Ray", hint="install it: pip install 'softnpu[ray,tools]'"
    )


class _Asker:
    """The process connected to Ray: questions and answers are lines."""

    def __init__(self, address: str) -> None:
        self._process = subprocess.Popen(
            [*_PYTHON, address],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,  # Ctrl-C is for the asker
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._questions, self._answers = self._process.stdin, self._process.stdout
        self._buffer = b""
        self.asked: float | None = None
        """The time of the pending question; None if there is none."""
        self.answered = False

    def ask(self) -> None:
        """Ask, unless a question is pending."""
        if self.asked is None:
            self._questions.write(b"%g\n" % _LOOK_S)
            self.asked = time.monotonic()

    def answer(self, within_s: float) -> ClusterState | Failure | None:
        """Return the next answer; None if none came in time. Raise `EOFError` when the process has ended."""
        end = time.monotonic() + within_s
        while b"\n" not in self._buffer:
            if not select.select([self._answers], [], [], max(0.0, end - time.monotonic()))[0]:
                return None
            data = os.read(self._answers.fileno(), 1 << 16)
            if not data:
                raise EOFError
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        self.asked, self.answered = None, True
        return msgspec.json.decode(line, type=ClusterState | Failure)

    def close(self) -> None:
        """End the process; kill it if it is busy with Ray."""
        self._questions.close()
        try:
            self._process.wait(_END_S if self.asked is None else 0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._answers.close()


class ClusterMonitor:
    """Polls the cluster at `address`, reconnecting when the connection ends.

    Raise `ToolError` without Ray.
    """

    def __init__(self, address: str) -> None:
        if importlib.util.find_spec("ray") is None:
            raise without_ray()
        self.address = address
        self._asker: _Asker | None = None
        self._lock = threading.Lock()
        self._failure: ToolError | None = None
        self._again = 0.0
        self._closed = False

    def poll(self, within_s: float = 1.0) -> ClusterState | ToolError | None:
        """Return the cluster, or why there is none; None: no answer within `within_s`, not yet a problem."""
        with self._lock:
            if self._closed:
                return None
            try:
                return self._poll(within_s)
            except (EOFError, BrokenPipeError):
                return self._end(
                    "the connection to it ended",
                    "a cluster that goes on",
                    "is its first node still there? It is tried again",
                )
            except (OSError, msgspec.DecodeError) as failure:
                return self._end(str(failure), CLUSTER)

    def close(self) -> None:
        """End the connection for good."""
        with self._lock:
            self._closed = True
            self._stop()

    def _poll(self, within_s: float) -> ClusterState | ToolError | None:
        if self._asker is None:
            if time.monotonic() < self._again:
                time.sleep(max(0.0, min(within_s, self._again - time.monotonic())))
                return self._failure
            self._asker = _Asker(self.address)
        self._asker.ask()
        answer = self._asker.answer(within_s)
        if answer is None:
            return self._silence(self._asker)
        if isinstance(answer, Failure):
            return self._end(answer.found, answer.expected, answer.hint)
        self._failure = None
        return answer

    def _silence(self, asker: _Asker) -> ToolError | None:
        assert asker.asked is not None
        waited = time.monotonic() - asker.asked
        if waited > _HUNG_S:
            return self._end(f"no answer within {_HUNG_S:g} s", CLUSTER, "look at it with 'ray status'")
        if not asker.answered:
            return self._failure or self._not_yet(f"connecting, for {waited:.0f} s")
        return self._not_yet(f"no answer for {waited:.0f} s") if waited > _SILENT_S else None

    def _not_yet(self, found: str) -> NotYetError:
        return NotYetError(f"cluster {self.address}", found=found)

    def _end(self, found: str, expected: str, hint: str = "") -> ToolError:
        self._stop()
        failure = ToolError(f"cluster {self.address}", found=found, expected=expected, hint=hint)
        self._failure, self._again = failure, time.monotonic() + _AGAIN_S
        return failure

    def _stop(self) -> None:
        if self._asker is not None:
            self._asker.close()
            self._asker = None


def look_once(address: str) -> ClusterState:
    """Return the cluster once all nodes have answered, or after two minutes. Raise `ToolError`."""
    monitor = ClusterMonitor(address)
    try:
        end = time.monotonic() + _NODES_S
        while True:
            found = monitor.poll()
            if isinstance(found, ToolError):
                if not isinstance(found, NotYetError):
                    raise found
            elif found is not None and (
                time.monotonic() > end or not any(node.state == WAITING for node in found.nodes)
            ):
                return found
    finally:
        monitor.close()
