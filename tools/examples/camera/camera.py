"""The camera for machines without a C compiler: `camera.c`, line by line."""

from __future__ import annotations

import mmap
import os
import struct
import sys

import posix_ipc

from softnpu.tools.examples.camera import layout

_LOOK_S = 1.0


def main(name: str) -> None:
    """Write frames at the consumer's pace."""
    parent = os.getppid()
    shared = posix_ipc.SharedMemory(name, posix_ipc.O_CREAT, mode=0o600, size=layout.FRAMES_SIZE)
    memory = mmap.mmap(shared.fd, layout.FRAMES_SIZE)
    os.close(shared.fd)
    counters = memoryview(memory).cast("Q")
    slots, frames = (posix_ipc.Semaphore(f"{name}-{suffix}") for suffix in ("free", "frames"))
    frames.release()
    while True:
        while counters[layout.WRITTEN] - counters[layout.CONSUMED] < layout.SLOTS:
            sequence = counters[layout.WRITTEN]
            struct.pack_into(f"{layout.PIXELS}f", memory, layout.frame_at(sequence), *layout.pixels(sequence))
            counters[layout.WRITTEN] = sequence + 1
            frames.release()
        try:
            slots.acquire(_LOOK_S)
        except posix_ipc.BusyError:
            if os.getppid() != parent:
                return


if __name__ == "__main__":
    main(sys.argv[1])
