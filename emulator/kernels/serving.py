"""The process of kernels, whatever its kernels are: it answers messages, and runs calls by the mailbox."""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable
from typing import Final, NamedTuple, Protocol

from softnpu.emulator.interface.channel import Channel, Packet
from softnpu.emulator.interface.result import ErrorInfo, ZeResult
from softnpu.emulator.kernels.abi import TensorRecord
from softnpu.emulator.kernels.errors import Failure, KernelError, failed
from softnpu.emulator.kernels.mailbox import KernelSide
from softnpu.emulator.links import kernels as link

_LOOK_EVERY: Final = 64


class Place(NamedTuple):
    """Where a tensor lies: dense, from `offset` on, in a memory file that cannot shrink."""

    fd: int
    offset: int


Tensor = tuple[TensorRecord, Place]


class Ran(NamedTuple):
    """The end of a run: the shapes of all outputs if one is smaller, and the bytes that were copied."""

    smaller: list[tuple[int, ...]] | None
    staged: int


class Call(Protocol):
    """A kernel with its arguments. `staged`: the bytes that a run copies if all outputs are full.

    `parts`: those that may run at the same time.
    """

    staged: int
    parts: int

    def run(self) -> Ran: ...


class Kernel(Protocol):
    """A kernel that has been loaded."""

    is_from_cache: bool

    def shapes(self, request: link.AskShapes) -> tuple[list[TensorRecord], int]: ...
    def prepare(self, request: link.PrepareCall, inputs: list[Tensor], outputs: list[Tensor]) -> Call: ...


class Server:
    """The kernels, memory files and calls of one owner. `load` makes a kernel of a module's bytes."""

    def __init__(
        self, channel: Channel, mailbox: KernelSide, wake_fd: int, load: Callable[[bytes], Kernel]
    ) -> None:
        self._channel, self._mailbox, self._wake_fd, self._make = channel, mailbox, wake_fd, load
        self._kernels: dict[int, Kernel] = {}
        self._memories: dict[int, int] = {}
        self._calls: dict[int, Call] = {}

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
                inputs, outputs = (
                    [self._placed(each) for each in side] for side in (message.inputs, message.outputs)
                )
                call = self._kernels[message.kernel].prepare(message, inputs, outputs)
                self._calls[message.call] = call
                return link.Prepared(staged=call.staged, parts=call.parts)
            case link.AskShapes():
                records, scratch = self._kernels[message.kernel].shapes(message)
                places = tuple(link.TensorPlace(each.type, each.shape) for each in records)
                return link.Shapes(outputs=places, scratch=scratch)
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
        kernel = self._kernels[message.kernel] = self._make(content)
        taken = (time.monotonic_ns() - begin) // 1000
        return link.KernelLoaded(compile_us=taken, is_from_cache=kernel.is_from_cache)

    def _placed(self, tensor: link.TensorPlace) -> Tensor:
        place = Place(self._memories[tensor.memory], tensor.offset)
        return TensorRecord(tensor.element_type, tensor.shape), place


def begin(channel: Channel) -> tuple[link.Setup, KernelSide, int, int] | None:
    """Take the first message: return it with mailbox, eventfd and its number; None if the owner has left."""
    packet = channel.receive()
    if packet is None:
        return None
    with packet:
        setup = link.command_decoder.decode(packet.body)
        if not isinstance(setup, link.Setup):
            raise RuntimeError(f"the owner sent {type(setup).__name__} before Setup")
        mailbox_fd, wake_fd = packet.take_fds(2)
    mailbox = KernelSide(mailbox_fd)
    os.close(mailbox_fd)
    return setup, mailbox, wake_fd, packet.request


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
