"""The memory limit of inferences that compute sizes from values, which may ask for any amount.

The process's limit is lowered around them. An allocation beyond it fails this inference and no other. Since
the limit covers the whole process, it is not lowered while something is compiled or loaded concurrently.
"""

from __future__ import annotations

import os
import re
import resource
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from softnpu.emulator.common import private_memory
from softnpu.emulator.interface.result import Refused, ZeResult, refuse
from softnpu.emulator.openvino import errors as openvino_errors

_OF_RUNTIME = 64 << 20  # stacks and heaps of threads started by OpenVINO meanwhile
_ASKED = re.compile(r"Failed to allocate (\d+) bytes")
_PER_WEIGHT = 4  # further bytes per byte of weights: f16 as f32, and rearranged for the processor


class _Limit:
    """The limit of this process."""

    def __init__(self, session_memory: int) -> None:
        self._session_memory = session_memory
        self._most = resource.getrlimit(resource.RLIMIT_DATA)[1]
        self._counts = private_memory.open_counts()
        self._lock = threading.Lock()
        self._compiling = 0
        self._more = 0  # of the running inference

    def close(self) -> None:
        os.close(self._counts)

    @property
    def matters(self) -> bool:
        """Whether it is lower than the process's limit."""
        lowered = private_memory.used(self._counts) + self._session_memory + _OF_RUNTIME
        return self._most == resource.RLIM_INFINITY or lowered < self._most

    def run(self, compute: Callable[[], bool], model: str, weights: int) -> bool:
        """See the function of this name."""
        self._lower(self._session_memory + _OF_RUNTIME + _PER_WEIGHT * weights)
        try:
            return compute()
        except (RuntimeError, MemoryError) as error:
            if not openvino_errors.is_out_of_memory(error):
                raise
            raise _too_much(error, model, self._session_memory) from error
        finally:
            self._lower(0)

    @contextmanager
    def lifted(self) -> Iterator[None]:
        """See the function of this name."""
        with self._lock:
            self._compiling += 1
            self._apply()
        try:
            yield
        finally:
            with self._lock:
                self._compiling -= 1
                self._apply()

    def _lower(self, more: int) -> None:
        with self._lock:
            self._more = more
            self._apply()

    def _apply(self) -> None:
        soft = self._most
        if self._more and not self._compiling:
            lower = private_memory.used(self._counts) + self._more
            soft = lower if soft == resource.RLIM_INFINITY else min(lower, soft)
        resource.setrlimit(resource.RLIMIT_DATA, (soft, self._most))


_active: _Limit | None = None


def begin(session_memory: int) -> None:
    """Limit the inferences of this process, whose sessions may hold `session_memory` bytes each.

    Nothing is lowered where a session may hold as much as the process.
    """
    global _active
    limit = _Limit(session_memory)
    if limit.matters:
        _active = limit
    else:
        limit.close()


def run(compute: Callable[[], bool], model: str, weights: int) -> bool:
    """Run an inference within a session's memory limit, for a model with that many bytes of weights.

    Raises `Refused` if the limit is too low.
    """
    return compute() if _active is None else _active.run(compute, model, weights)


def lifted() -> AbstractContextManager[None]:
    """Restore the process's limit in this context, also for concurrent inferences."""
    return nullcontext() if _active is None else _active.lifted()


def _too_much(error: Exception, model: str, session_memory: int) -> Refused:
    asked = _ASKED.search(str(error))
    return refuse(
        ZeResult.ERROR_OUT_OF_DEVICE_MEMORY,
        f"graph '{model}'",
        found=f"{asked[1]} bytes for a size that it has computed" if asked else "too large sizes computed",
        expected=f"an inference within the {session_memory} bytes of a session",
        hint="compute smaller sizes, or start the daemon with a larger --session-memory",
    )
