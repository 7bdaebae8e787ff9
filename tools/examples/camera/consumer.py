"""The consumer: plain Python without softnpu. It compares every result, bit by bit."""

from __future__ import annotations

import mmap
import os
import sys
from pathlib import Path

import posix_ipc

from softnpu.tools.examples.camera import layout

_LOOK_S = 1.0
_BYTES = layout.CLASSES * 4


class Results:
    """The results memory of the current inference process."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._memory: mmap.mmap | None = None

    def find(self, sequence: int) -> bytes | None:
        """Return a result, or None if it was lost with a killed process; the next one recomputes it."""
        result = self._look(sequence)
        if result is None:
            self._open()
            result = self._look(sequence)
        return result

    def _look(self, sequence: int) -> bytes | None:
        if self._memory is None:
            return None
        at = layout.result_at(sequence)
        if int.from_bytes(self._memory[at : at + 8], sys.byteorder) != sequence + 1:
            return None
        return self._memory[at + layout.RESULT_AT : at + layout.RESULT_AT + _BYTES]

    def _open(self) -> None:
        try:
            shared = posix_ipc.SharedMemory(self._name)
        except posix_ipc.ExistentialError:
            return
        try:
            if shared.size == layout.RESULTS_SIZE:  # else it is being created
                self._memory = mmap.mmap(shared.fd, layout.RESULTS_SIZE)
        finally:
            os.close(shared.fd)


def main(name: str, expected: Path) -> None:
    """Consume results until the pipeline ends; exit with an error at the first wrong one."""
    right, parent = expected.read_bytes(), os.getppid()
    shared = posix_ipc.SharedMemory(name)
    counters = memoryview(mmap.mmap(shared.fd, layout.FRAMES_SIZE)).cast("Q")
    os.close(shared.fd)
    inferred, free = (posix_ipc.Semaphore(f"{name}-{suffix}") for suffix in ("inferred", "free"))
    results = Results(f"{name}-results")
    free.release()  # an earlier consumer may have been killed before releasing it
    while True:
        while (sequence := counters[layout.CONSUMED]) < counters[layout.INFERRED]:
            result = results.find(sequence)
            if result is None:
                break
            at = sequence % layout.VARIANTS * _BYTES
            if result != right[at : at + _BYTES]:
                sys.exit(f"frame {sequence}: {result.hex()}; expected {right[at : at + _BYTES].hex()}")
            counters[layout.CONSUMED] = sequence + 1
            free.release()
        try:
            inferred.acquire(_LOOK_S)
        except posix_ipc.BusyError:
            if os.getppid() != parent:
                return


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
