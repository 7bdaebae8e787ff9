"""A process of kernels of a program's own."""

from __future__ import annotations

import importlib.util
import os
import socket
import subprocess
import sys
from types import TracebackType
from typing import Final

from softnpu.emulator.interface.channel import Channel
from softnpu.emulator.interface.result import ZeResult, refuse
from softnpu.emulator.kernels.client import MEMORY, KernelClient

_PROGRAM: Final = "softnpu.emulator.kernels.wasm_process"
_END_S: Final = 5.0


class KernelProcess:
    """A running process, and its client. A context manager."""

    def __init__(self, memory: int = MEMORY, threads: int = 0) -> None:
        """Start it; `threads` run kernels, 0: one for each core. Refuses without wasmtime."""
        check_installed()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", _PROGRAM, str(theirs.fileno()), str(os.getpid())],
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
            )
        try:
            self.client = KernelClient(Channel(ours), memory, threads=threads)
        except BaseException:
            self._end()
            raise

    def __enter__(self) -> KernelClient:
        return self.client

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End it."""
        self.client.close()
        self._end()

    def _end(self) -> None:
        self.process.kill()
        self.process.wait(_END_S)


def check_installed() -> None:
    """Refuse if wasmtime is not installed."""
    if importlib.util.find_spec("wasmtime") is None:
        raise refuse(
            ZeResult.ERROR_DEPENDENCY_UNAVAILABLE,
            "kernels",
            found="no package wasmtime",
            expected="it, to run WebAssembly",
            hint=f"{sys.executable} -m pip install 'softnpu[kernels]'",
        )
