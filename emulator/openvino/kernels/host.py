"""The engine's connections to processes of kernels, which the supervisor starts when they are needed.

WebAssembly kernels of all models share one process; each Python function has one, which the program forks
that has registered it.
"""

from __future__ import annotations

import os
import socket
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Final

from softnpu.emulator.interface.channel import Channel
from softnpu.emulator.kernels import description, trust
from softnpu.emulator.kernels.client import KernelClient, LoadedKernel
from softnpu.emulator.kernels.description import FunctionDescription
from softnpu.emulator.kernels.errors import Failure, KernelError, failed
from softnpu.emulator.kernels.process import check_installed

_START_S: Final = 20.0
_POLL_S: Final = 0.002
_LOOK_S: Final = 0.005
_LEAST_MS: Final = 100
_HELPER_S: Final = 10.0
_ENDS_S: Final = 2.0
"""Beyond its deadline, for a function that nothing can interrupt."""


class KernelHost:
    """One process at a time, for WebAssembly or a function. `begin` tells how to ask for one.

    A thread waits for it, as the engine has to read its messages meanwhile; its CPU time tells the watchdog
    that the command has not stopped.
    """

    def __init__(self, function: FunctionDescription | None = None) -> None:
        self.function = function
        self._ask: Callable[[str], None] = _nobody
        self._policy = trust.NONE
        self._functions: weakref.WeakValueDictionary[str, KernelHost] = weakref.WeakValueDictionary()
        self.deadline_ms = _LEAST_MS
        self.ran_ns = 0
        """The time of all runs that have ended: progress of a command, as its own threads rest meanwhile.

        That of the engine's counts those of functions too.
        """
        self._client: KernelClient | None = None
        self._loaded: dict[bytes, LoadedKernel] = {}
        self._lock = threading.Lock()  # of what follows
        self._arrived = -1
        self._starter: threading.Thread | None = None
        self._error: KernelError | None = None

    def begin(self, ask: Callable[[str], None], command_ms: int, policy: str) -> None:
        """`ask` requests a process, of a helper if it is named, whose channel `arrive` gets.

        A command has `command_ms` to show progress. A run has half of it, so that its failure is told by its
        name. `policy`: which kernels the daemon runs.
        """
        self._ask, self._policy = ask, policy
        self.deadline_ms = max(_LEAST_MS, command_ms // 2)

    def check(self, model: str, modules: Sequence[bytes]) -> None:
        """Refuse a model with kernels that may not or cannot run."""
        if not all(map(description.is_function, modules)):
            check_installed()
        trust.check(self._policy, f"model '{model}'", modules)

    def of(self, content: bytes) -> KernelHost:
        """Return the host of a module: this one, or that of a function, which lives as long as it is held."""
        described = description.read(content)
        if not isinstance(described, FunctionDescription):
            return self
        found = self._functions.get(described.helper)
        if found is None:
            found = self._functions[described.helper] = KernelHost(described)
            found._ask, found.deadline_ms = self._ask, self.deadline_ms
        return found

    def arrive(self, fd: int, helper: str) -> None:
        """Take the channel of a new process."""
        found = self._functions.get(helper) if helper else self
        before = fd
        if found is not None:
            with found._lock:
                before, found._arrived = found._arrived, fd
        if before >= 0:
            os.close(before)

    def client(self, is_cancelled: Callable[[], bool]) -> KernelClient | None:
        """Return the client of a process that lives; None if the submission is cancelled meanwhile.

        `is_cancelled` reads the messages of the supervisor. Raises `KernelError` if there is none in time.
        """
        while self._client is None or self._client.is_lost or self._has_ended(self._client):
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

    def _has_ended(self, client: KernelClient) -> bool:
        """Whether the process of a function has ended; others are replaced when a run fails."""
        return self.function is not None and client.has_ended()

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
            if self.function is not None:
                self._wait_for_end(self._client, self.function.full_name)
            self._client.close()
        self._loaded.clear()
        self._ask("" if self.function is None else self.function.helper)
        end = time.monotonic() + _START_S
        fd = -1
        while fd < 0:
            if time.monotonic() > end:
                raise failed(Failure.LOST, "", f"no process of kernels after {_START_S:g} s", "one")
            time.sleep(_POLL_S)
            with self._lock:
                fd, self._arrived = self._arrived, -1
        channel = Channel(socket.socket(fileno=fd))
        if self.function is None:
            self._client = KernelClient(channel)
            return
        try:
            self._client = KernelClient(channel, answer_s=_HELPER_S, name=self.function.full_name)
        except KernelError:
            found, hint = "the process that runs it has ended", "compile the model again"
            raise failed(Failure.LOST, self.function.full_name, found, "its program's helper", hint) from None

    def _wait_for_end(self, client: KernelClient, name: str) -> None:
        """Wait until the process before is gone: a cancelled function may write its outputs until then.

        That of WebAssembly the supervisor kills before it starts another one.
        """
        client.leave()
        end = time.monotonic() + self.deadline_ms / 1e3 + _ENDS_S
        while not client.has_ended():
            if time.monotonic() > end:
                raise failed(Failure.LOST, name, "its process of before does not end", "its end", "kill it")
            time.sleep(_POLL_S)

    def __del__(self) -> None:
        if self._client is not None:
            self._client.close()
        if self._arrived >= 0:
            os.close(self._arrived)


def _nobody(_helper: str) -> None:
    raise failed(Failure.LOST, "", "kernels in a program that is no engine", "an engine")


host: Final = KernelHost()
"""That of this engine."""
