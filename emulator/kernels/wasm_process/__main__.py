"""`python -m softnpu.emulator.kernels.wasm_process CHANNEL-FD PARENT-PID`: the process in which kernels run.

It is locked in before it sees a kernel, as engines are: it computes on memory files that it is sent, and can
open, start, connect to and signal nothing. It ends with its channel, or with its parent.
"""

from __future__ import annotations

import signal
import socket
import sys

from softnpu.emulator.common import linux, log_lines
from softnpu.emulator.interface.channel import Channel
from softnpu.emulator.kernels import serving, split
from softnpu.emulator.kernels.abi import TensorRecord
from softnpu.emulator.kernels.instance import Instance
from softnpu.emulator.kernels.machine import Machine
from softnpu.emulator.kernels.module import CodeCache, KernelModule
from softnpu.emulator.kernels.serving import Call, Server, Tensor
from softnpu.emulator.kernels.split import Threads
from softnpu.emulator.links import kernels as link
from softnpu.emulator.sandbox import sandbox


class WasmKernel:
    """A module, for the server."""

    def __init__(self, module: KernelModule, threads: Threads) -> None:
        self._module, self._threads = module, threads
        self.is_from_cache = module.is_from_cache

    def shapes(self, request: link.AskShapes) -> tuple[list[TensorRecord], int]:
        """Ask the module."""
        instance = Instance(self._module, request.deadline_ms)
        inputs = [TensorRecord(each.element_type, each.shape) for each in request.inputs]
        return instance.shapes(request.implementation, inputs, request.attributes)

    def prepare(self, request: link.PrepareCall, inputs: list[Tensor], outputs: list[Tensor]) -> Call:
        """Bind a call."""
        return split.prepare(self._module, request, inputs, outputs, self._threads)


def main(arguments: list[str]) -> int:
    """Serve the owner at the other end of the channel."""
    linux.unblock_signals()
    linux.die_with_parent(int(arguments[1]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    log_lines.begin("info")
    channel = Channel(socket.socket(fileno=int(arguments[0])))
    begun = serving.begin(channel)
    if begun is None:
        return 0
    setup, mailbox, wake_fd, request = begun
    cache = CodeCache.open()
    folders = () if cache is None else (str(cache.entries.directory),)  # to read: `code` writes it
    missing = sandbox.enter(sandbox.Policy(readable=folders, memory=setup.memory))
    channel.send(request, link.encode(link.Ready(missing_protections=missing)))
    machine, threads = Machine(), Threads(setup.threads)

    def load(content: bytes) -> WasmKernel:
        return WasmKernel(KernelModule(machine, content, cache), threads)

    Server(channel, mailbox, wake_fd, load).serve()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
