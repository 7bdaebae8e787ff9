"""`python -m softnpu.emulator.kernels.sandbox CHANNEL-FD PARENT-PID`: the process in which kernels run.

It is locked in before it sees a kernel, as engines are: it computes on memory files that it is sent, and can
open, start, connect to and signal nothing. It ends with its channel, or with its parent.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import time
from typing import Final

from softnpu.emulator.common import linux, log_lines
from softnpu.emulator.interface.channel import Channel, Packet
from softnpu.emulator.interface.result import ErrorInfo, ZeResult
from softnpu.emulator.kernels.abi import TensorRecord
from softnpu.emulator.kernels.errors import Failure, KernelError, failed
from softnpu.emulator.kernels.instance import Instance
from softnpu.emulator.kernels.machine import Machine
from softnpu.emulator.kernels.mailbox import KernelSide
from softnpu.emulator.kernels.module import CodeCache, KernelModule
from softnpu.emulator.kernels.prepared import Place, PreparedCall
from softnpu.emulator.links import kernels as link
from softnpu.emulator.sandbox import sandbox

_LOOK_EVERY: Final = 64


class Sandbox:
    """The kernels, memory files and calls of one owner."""

    def __init__(self, channel: Channel, mailbox: KernelSide, wake_fd: int, cache: CodeCache | None) -> None:
        self._channel, self._mailbox, self._wake_fd, self._cache = channel, mailbox, wake_fd, cache
        self._machine = Machine()
        self._kernels: dict[int, KernelModule] = {}
        self._memories: dict[int, int] = {}
        self._calls: dict[int, PreparedCall] = {}

    def serve(self) -> None:
        """Run calls and answer messages until the channel ends."""
        poller = select.poll()
        poller.register(self._channel, select.POLLIN)
        poller.register(self._wake_fd, select.POLLIN)
        runs = 0
        while True:
            call = self._mailbox.spin()
            if call is not None:
                self._run(call)
                runs += 1
                if runs % _LOOK_EVERY:
                    continue
            ready = dict(poller.poll(None if self._mailbox.fall_asleep() else 0))
            self._mailbox.wake_up()
            if self._wake_fd in ready:
                os.eventfd_read(self._wake_fd)
            if self._channel.fileno() in ready:
                packet = self._channel.receive()
                if packet is None:
                    return
                with packet:
                    self._answer(packet)

    def _run(self, number: int) -> None:
        begin = time.monotonic_ns()
        try:
            call = self._calls.get(number)
            if call is None:
                raise failed(Failure.SHAPE, "", f"call {number}", "one that was prepared")
            ran = call.run()
        except Exception as error:  # noqa: BLE001 - any ends this run alone
            self._mailbox.fail(link.encode(_failure(error)))
        else:
            self._mailbox.answer(ran.smaller, ran.staged, time.monotonic_ns() - begin)

    def _answer(self, packet: Packet) -> None:
        try:
            answer = self._handle(link.command_decoder.decode(packet.body), packet)
        except Exception as error:  # noqa: BLE001 - any ends this request alone
            answer = _failure(error)
        if packet.request:
            self._channel.send(packet.request, link.encode(answer))

    def _handle(self, message: link.Command, packet: Packet) -> link.Answer:
        match message:
            case link.LoadKernel():
                return self._load(message, packet)
            case link.AddMemory():
                (self._memories[message.memory],) = packet.take_fds(1)
            case link.PrepareCall():
                call = self._prepared(message)
                self._calls[message.call] = call
                return link.Prepared(staged=call.staged)
            case link.AskShapes():
                return self._shapes(message)
            case link.Drop():
                self._calls.pop(message.call, None)
                self._kernels.pop(message.kernel, None)
                fd = self._memories.pop(message.memory, None)
                if fd is not None:
                    os.close(fd)
            case link.Setup():
                raise RuntimeError("a second Setup")
        return link.Done()

    def _load(self, message: link.LoadKernel, packet: Packet) -> link.Answer:
        (fd,) = packet.take_fds(1)
        try:
            content = os.pread(fd, message.length, 0)
        finally:
            os.close(fd)
        begin = time.monotonic_ns()
        module = KernelModule(self._machine, content, self._cache)
        self._kernels[message.kernel] = module
        taken = (time.monotonic_ns() - begin) // 1000
        return link.KernelLoaded(compile_us=taken, is_from_cache=module.is_from_cache)

    def _shapes(self, message: link.AskShapes) -> link.Answer:
        instance = Instance(self._kernels[message.kernel], message.deadline_ms)
        inputs = [TensorRecord(each.element_type, each.shape) for each in message.inputs]
        outputs, scratch = instance.shapes(message.implementation, inputs, message.attributes)
        places = tuple(link.TensorPlace(each.type, each.shape) for each in outputs)
        return link.Shapes(outputs=places, scratch=scratch)

    def _prepared(self, message: link.PrepareCall) -> PreparedCall:
        return PreparedCall(
            self._kernels[message.kernel],
            message.implementation,
            message.attributes,
            [self._placed(each) for each in message.inputs],
            [self._placed(each) for each in message.outputs],
            message.deadline_ms,
        )

    def _placed(self, tensor: link.TensorPlace) -> tuple[TensorRecord, Place]:
        place = Place(self._memories[tensor.memory], tensor.offset)
        return TensorRecord(tensor.element_type, tensor.shape), place


def _failure(error: Exception) -> link.KernelFailed:
    if isinstance(error, KernelError):
        return link.KernelFailed(failure=error.failure.value, error=error.info.shortened())
    memory = isinstance(error, MemoryError)
    info = ErrorInfo(
        result=int(ZeResult.ERROR_OUT_OF_HOST_MEMORY if memory else ZeResult.ERROR_UNKNOWN),
        object="process of kernels",
        found=f"{type(error).__name__}: {error}",
    )
    failure = Failure.MEMORY if memory else Failure.LOST
    return link.KernelFailed(failure=failure.value, error=info.shortened())


def main(arguments: list[str]) -> int:
    """Serve the owner at the other end of the channel."""
    linux.unblock_signals()
    linux.die_with_parent(int(arguments[1]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    log_lines.begin("info")
    channel = Channel(socket.socket(fileno=int(arguments[0])))
    packet = channel.receive()
    if packet is None:
        return 0
    with packet:
        setup = link.command_decoder.decode(packet.body)
        if not isinstance(setup, link.Setup):
            raise RuntimeError(f"the owner sent {type(setup).__name__} before Setup")
        mailbox_fd, wake_fd = packet.take_fds(2)
    mailbox = KernelSide(mailbox_fd)
    os.close(mailbox_fd)
    cache = CodeCache.open()
    folders = () if cache is None else (str(cache.entries.directory),)  # to read: `code` writes it
    missing = sandbox.enter(sandbox.Policy(readable=folders, memory=setup.memory))
    channel.send(packet.request, link.encode(link.Ready(missing_protections=missing)))
    Sandbox(channel, mailbox, wake_fd, cache).serve()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
