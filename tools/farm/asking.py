"""`python -m softnpu.tools.farm.asking ADDRESS`: queries a cluster once for each line on stdin.

A line is the time limit for nodes to answer; the answer is a line of JSON. It ends when stdin does.
"""

from __future__ import annotations

import os
import queue
import socket
import sys
import threading
import time
from typing import Final

import msgspec

from softnpu.tools.farm.cluster import ClusterWatcher, connected
from softnpu.tools.farm.states import CLUSTER, ClusterState, Failure
from softnpu.tools.shared.failures import debugging

_REACH_S: Final = 5.0
_END_S: Final = 2.0
_START: Final = "start its first node with softnpu farm node --run"


def main(address: str) -> int:
    """Answer until stdin ends."""
    questions: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(questions,), daemon=True).start()
    answers = os.dup(1)
    quiet = os.open(os.devnull, os.O_WRONLY)
    os.dup2(quiet, 1)  # Ray prints freely
    if not debugging():
        os.dup2(quiet, 2)

    def write(answer: ClusterState | Failure) -> None:
        os.write(answers, msgspec.json.encode(answer) + b"\n")

    try:
        _reach(address)
        with connected(address):
            watcher = ClusterWatcher()
            while line := questions.get():
                write(watcher.look(float(line)))
    except (OSError, RuntimeError, ValueError) as failure:
        write(_failure_of(failure))
        return 1
    return 0


def _listen(questions: queue.SimpleQueue[str]) -> None:
    """Read questions, so that the asker's end is noticed while Ray waits for something."""
    for line in sys.stdin:
        questions.put(line)
    questions.put("")
    time.sleep(_END_S)
    os._exit(0)


def _reach(address: str) -> None:
    """Check at once whether anything listens there: Ray would try for minutes."""
    host, _, port = address.rpartition(":")
    if host and port.isdecimal():
        socket.create_connection((host, int(port)), _REACH_S).close()


def _failure_of(failure: Exception) -> Failure:
    text = " ".join(str(failure).split())
    if isinstance(failure, ConnectionError) and "find any running" in text:
        return Failure(found="no Ray runs there", expected="a running cluster", hint=_START)
    if isinstance(failure, ValueError):
        return Failure(found=text[:200], expected="'auto', or HOST:PORT")
    if (isinstance(failure, OSError) and not isinstance(failure, ConnectionError)) or "refused" in text:
        return Failure(found=text[:200], expected="a running cluster", hint=_START)
    return Failure(found=text[:300], expected=CLUSTER, hint=_START)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
