"""The engine's connection to its process of kernels, which the supervisor starts when it is needed."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

from softnpu.emulator.interface.channel import Channel
from softnpu.emulator.kernels import trust
from softnpu.emulator.kernels.client import KernelClient, LoadedKernel
from softnpu.emulator.kernels.errors import Failure, KernelError, failed
from softnpu.emulator.kernels.process import check_installed

_START_S: Final = 20.0
_POLL_S: Final = 0.002
_LOOK_S: Final = 0.005
_LEAST_MS: Final = 100


class KernelHost:
    """One process at a time. `begin` tells how to ask for one.

    A thread waits for it, as the engine has to read its messages meanwhile; its CPU time tells the watchdog
    that the command has not stopped.
    """

    def __init__(self) -> None:
        self._ask: Callable[[], None] = _nobody
        self._policy = trust.NONE
        self.deadline_ms = _LEAST_MS
        self._client: KernelClient | None = None
        self._loaded: dict[bytes, LoadedKernel] = {}
        self._lock = threading.Lock()  # of what follows
        self._arrived = -1
        self._starter: threading.Thread | None = None
        self._error: KernelError | None = None

    def begin(self, ask: Callable[[], None], command_ms: int, policy: str) -> None:
        """`ask` requests a process, whose channel `arrive` gets; a command has `command_ms` to show progress.

        A run has half of it, so that its failure is told by its name. `policy`: which kernels
        the daemon runs.
        """
        self._ask, self._policy = ask, policy
        self.deadline_ms = max(_LEAST_MS, command_ms // 2)

    def check(self, model: str, modules: Sequence[bytes]) -> None:
        """Refuse a model with kernels that may not or cannot run."""
        check_installed()
        trust.check(self._policy, f"model '{model}'", modules)

    def arrive(self, fd: int) -> None:
        """Take the channel of a new process."""
        with self._lock:
            before, self._arrived = self._arrived, fd
        if before >= 0:
            os.close(before)

    def client(self, is_cancelled: Callable[[], bool]) -> KernelClient | None:
        """Return the client of a process that lives; None if the submission is cancelled meanwhile.

        `is_cancelled` reads the messages of the supervisor. Raises `KernelError` if there is none in time.
        """
        while self._client is None or self._client.is_lost:
            with self._lock:
                error, self._error = self._error, None
                if error is not None:
                    raise error
                starter = self._starter
                if starter is None:
                    starter = threading.Thread(target=self._start, name="kernels", daemon=True)
                    starter.start()
                    self._starter = starter  # it cannot have ended: its end needs the lock
            starter.join(_LOOK_S)
            if is_cancelled():
                return None
        return self._client

    def load(self, client: KernelClient, content: bytes) -> LoadedKernel:
        """Return a module in this process, loaded once."""
        loaded = self._loaded.get(content)
        if loaded is None or loaded.client is not client:
            loaded = self._loaded[content] = client.load(content)
        return loaded

    def _start(self) -> None:
        error = None
        try:
            self._connect()
        except KernelError as failure:
            error = failure
        except Exception as failure:  # noqa: BLE001 - the submission that waits has to be told
            error = failed(Failure.LOST, "", f"no process of kernels: {failure!r}", "one")
        with self._lock:
            self._starter, self._error = None, error

    def _connect(self) -> None:
        if self._client is not None:
            self._client.close()
        self._loaded.clear()
        self._ask()
        end = time.monotonic() + _START_S
        fd = -1
        while fd < 0:
            if time.monotonic() > end:
                raise failed(Failure.LOST, "", f"no process of kernels after {_START_S:g} s", "one")
            time.sleep(_POLL_S)
            with self._lock:
                fd, self._arrived = self._arrived, -1
        self._client = KernelClient(Channel(socket.socket(fileno=fd)))


def _nobody() -> None:
    raise failed(Failure.LOST, "", "kernels in a program that is no engine", "an engine")


host: Final = KernelHost()
"""That of this engine."""
