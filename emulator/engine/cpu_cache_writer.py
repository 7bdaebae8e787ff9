"""Fill the cache of compiled images, in a process of its own for each, after those who wait have gone on.

OpenVINO's export holds the interpreter lock, so that in the engine it would stop all submissions meanwhile.
"""

from __future__ import annotations

import logging
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Sequence

from softnpu.emulator.interface.messages import encode
from softnpu.emulator.links import engine as link

log = logging.getLogger(__name__)

_DELAY_S = 1.0  # the first inferences go first
_DEADLINE_S = 120.0
_MOST_WAITING = 4
_PROGRAM = "softnpu.emulator.engine.cpu_cache_fill"


class CpuCacheWriter:
    """Start a process for each image that the cache lacks."""

    def __init__(self) -> None:
        self._jobs: queue.Queue[tuple[link.ImageLoad, list[int], str]] = queue.Queue(_MOST_WAITING)
        self._thread: threading.Thread | None = None

    def add(self, message: link.ImageLoad, fds: list[int], key: str) -> None:
        """Have an image put into the cache as `key`; takes the descriptors of its message.

        One of too many at once is left to a later load.
        """
        try:
            self._jobs.put_nowait((message, fds, key))
        except queue.Full:
            _close(fds)
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="cpu-cache", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while True:
            message, fds, key = self._jobs.get()
            time.sleep(_DELAY_S)
            try:
                _fill(message, fds, key)
            except OSError as error:
                log.warning("engine cache: no process: %s", error)
            finally:
                _close(fds)


def _fill(message: link.ImageLoad, fds: Sequence[int], key: str) -> None:
    arguments = [sys.executable, "-P", "-m", _PROGRAM, str(os.getpid()), key, encode(message).hex()]
    with subprocess.Popen(
        [*arguments, *map(str, fds)], pass_fds=fds, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
    ) as process:
        try:
            code = process.wait(_DEADLINE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            code = process.wait()
    if code:
        log.warning("engine cache: image %d is not stored: the process ended with %d", message.image, code)


def _close(fds: Sequence[int]) -> None:
    for fd in fds:
        os.close(fd)
