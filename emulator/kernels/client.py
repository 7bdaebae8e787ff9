"""The caller of kernels: loads them into their process, prepares calls and runs them. It trusts no answer."""

from __future__ import annotations

import itertools
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

import msgspec

from softnpu.emulator.common import linux
from softnpu.emulator.interface.channel import Channel
from softnpu.emulator.interface.result import ErrorInfo, Refused, ZeResult
from softnpu.emulator.kernels import description
from softnpu.emulator.kernels.description import Description, Value
from softnpu.emulator.kernels.errors import Failure, KernelError, failed
from softnpu.emulator.kernels.mailbox import SIZE, CallerSide
from softnpu.emulator.links import kernels as link
from softnpu.emulator.links.kernels import TensorPlace

DEADLINE_MS: Final = 10_000
"""Of a run, unless told otherwise."""
MEMORY: Final = 1 << 30
"""Bytes of private memory of the process."""
_ANSWER_S: Final = 60.0
_GRACE_S: Final = 5.0
_MOST_SHAPE: Final = 1 << 40
A = TypeVar("A", bound=msgspec.Struct)


class KernelClient:
    """The owner's end of a process of kernels, which is at the other end of the channel."""

    def __init__(
        self,
        channel: Channel,
        memory: int = MEMORY,
        answer_s: float = _ANSWER_S,
        threads: int = 0,
        name: str = "",
    ) -> None:
        """Lock the process in. Raises `KernelError` if it ends or does not answer.

        `name`: the one kernel of this process, if it runs no others; errors name it.
        """
        self._channel, self._answer_s, self._name = channel, answer_s, name
        self.numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._forgotten: deque[link.Drop] = deque()
        self.is_lost = False
        self._wake_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        try:
            fd = linux.fixed_memfd("kernels", SIZE)
            try:
                self.mailbox = CallerSide(fd, self._wake_fd)
                setup = link.Setup(memory=memory, threads=threads)
                ready = self.ask(setup, link.Ready, (fd, self._wake_fd))
            finally:
                os.close(fd)
        except BaseException:
            self.close()
            raise
        self.missing_protections = ready.missing_protections

    def close(self) -> None:
        """End the connection, and with it the process; harmless when repeated."""
        self.is_lost = True
        self._channel.close()
        if self._wake_fd >= 0:
            fd, self._wake_fd = self._wake_fd, -1
            os.close(fd)

    def leave(self) -> None:
        """Have the process end after what it runs; harmless when repeated. `has_ended` tells when."""
        self.is_lost = True
        self._channel.end_sending()

    def has_ended(self) -> bool:
        """Whether the process has closed its end; asks the kernel."""
        return self._channel.peer_gone()

    def load(self, content: bytes) -> LoadedKernel:
        """Load a module. Raises `KernelError` if it is no kernel."""
        described = description.read(content)
        number = next(self.numbers)
        fd = linux.sealed_copy("kernel", content)
        try:
            request = link.LoadKernel(kernel=number, length=len(content))
            loaded = self.ask(request, link.KernelLoaded, (fd,), described.full_name)
        finally:
            os.close(fd)
        return LoadedKernel(self, number, described, loaded)

    def add_memory(self, fd: int) -> int:
        """Announce a memory file that cannot shrink; return its number for places."""
        number = next(self.numbers)
        self.ask(link.AddMemory(memory=number), link.Done, (fd,))
        return number

    def forget(self, *, call: int = -1, memory: int = -1) -> None:
        """Drop it without an answer; may be called at any moment, also within a call of this client."""
        self._forgotten.append(link.Drop(call=call, memory=memory))
        self._send_forgotten()

    def _send_forgotten(self) -> None:
        # what waits for an answer holds the lock, and sends what has come meanwhile
        if self._lock.acquire(blocking=False):
            try:
                while self._forgotten and not self.is_lost:
                    self._channel.send(0, link.encode(self._forgotten.popleft()))
            except OSError:
                self.is_lost = True
            finally:
                self._lock.release()

    def drop(self, *, call: int = -1, kernel: int = -1, memory: int = -1) -> None:
        """Drop what is not needed any more; harmless with a process that has ended."""
        if not self.is_lost:
            self.ask(link.Drop(call=call, kernel=kernel, memory=memory), link.Done)

    def ask(self, request: msgspec.Struct, wanted: type[A], fds: Sequence[int] = (), name: str = "") -> A:
        """Send a request; return its answer. Raises `KernelError`."""
        answer = self._answer(request, fds, name)
        self._send_forgotten()
        if isinstance(answer, link.KernelFailed):
            raise _error(answer)
        if not isinstance(answer, wanted):
            raise self.lost(name)
        return answer

    def _answer(self, request: msgspec.Struct, fds: Sequence[int], name: str) -> link.Answer:
        with self._lock:
            if self.is_lost:
                raise self.lost(name)
            try:
                self._channel.send(1, link.encode(request), fds)
                packet = self._channel.receive() if self._channel.wait_readable(self._answer_s) else None
            except (OSError, Refused):
                packet = None
            if packet is None:
                raise self.lost(name)
            with packet:
                try:
                    return link.answer_decoder.decode(packet.body)
                except (msgspec.DecodeError, UnicodeDecodeError):
                    raise self.lost(name) from None

    def run(
        self, call: int, name: str, deadline_ms: int, is_cancelled: Callable[[], bool] | None = None
    ) -> bool:
        """Run a prepared call; its answer is in the mailbox. For one thread at a time.

        False if it was cancelled, which ends the process.
        """
        if self.is_lost:
            raise self.lost(name)
        self.mailbox.request(call)
        if not self.mailbox.wait():
            end = time.monotonic() + deadline_ms / 1e3 + _GRACE_S
            if not self._wait(name, end, is_cancelled):
                return False
        if self.mailbox.has_full_outputs:
            return True
        message = self.mailbox.error
        if message is not None:
            try:
                answer = link.answer_decoder.decode(message)
            except (msgspec.DecodeError, UnicodeDecodeError):
                raise self.lost(name) from None
            raise _error(answer) if isinstance(answer, link.KernelFailed) else self.lost(name)
        return True

    def _wait(self, name: str, end: float, is_cancelled: Callable[[], bool] | None) -> bool:
        while not self.mailbox.wait():
            if is_cancelled is not None and is_cancelled():
                self.leave()
                return False
            if self._channel.peer_gone() or time.monotonic() > end:
                if self.mailbox.wait():
                    break
                raise self.lost(name)
        return True

    def lost(self, name: str) -> KernelError:
        """Note that the process has ended, hangs or lies: it is of no use any more. Return the error."""
        self.is_lost = True
        name = name or self._name
        return failed(Failure.LOST, name, "its process ended, or did not answer as expected", "", "try again")


class LoadedKernel:
    """A kernel in its process."""

    def __init__(
        self, client: KernelClient, number: int, described: Description, loaded: link.KernelLoaded
    ) -> None:
        self.client, self.number, self.description = client, number, described
        self.compile_us, self.is_from_cache = loaded.compile_us, loaded.is_from_cache

    def shapes(
        self, inputs: Sequence[TensorPlace], attributes: dict[str, Value], deadline_ms: int = DEADLINE_MS
    ) -> tuple[TensorPlace, ...]:
        """Return types and shapes of the outputs, for these types and shapes of the inputs."""
        request = link.AskShapes(
            kernel=self.number,
            implementation=self._implementation(inputs),
            attributes=self.description.complete(attributes),
            inputs=tuple(inputs),
            deadline_ms=deadline_ms,
        )
        outputs = self.client.ask(request, link.Shapes, name=self.description.full_name).outputs
        chosen = self.description.implementations[request.implementation].outputs
        sizes = [extent for each in outputs for extent in (*each.shape, len(each.shape))]
        if tuple(each.element_type for each in outputs) != chosen or not all(
            0 <= size < _MOST_SHAPE for size in sizes
        ):
            raise self.client.lost(self.description.full_name)
        return outputs

    def prepare(
        self,
        inputs: Sequence[TensorPlace],
        outputs: Sequence[TensorPlace],
        attributes: dict[str, Value],
        deadline_ms: int = DEADLINE_MS,
    ) -> KernelCall:
        """Bind the kernel to tensors in announced memory."""
        number = next(self.client.numbers)
        request = link.PrepareCall(
            call=number,
            kernel=self.number,
            implementation=self._implementation(inputs),
            attributes=self.description.complete(attributes),
            inputs=tuple(inputs),
            outputs=tuple(outputs),
            deadline_ms=deadline_ms,
        )
        prepared = self.client.ask(request, link.Prepared, name=self.description.full_name)
        return KernelCall(self, number, [each.shape for each in outputs], deadline_ms, prepared.parts)

    def _implementation(self, inputs: Sequence[TensorPlace]) -> int:
        return self.description.implementation_for(tuple(each.element_type for each in inputs))


class KernelCall:
    """A prepared call. `parts`: those that run in several threads, 1 if it is not split."""

    def __init__(
        self, kernel: LoadedKernel, number: int, bounds: list[tuple[int, ...]], deadline_ms: int, parts: int
    ) -> None:
        self.parts = parts
        self._client, self._name = kernel.client, kernel.description.full_name
        self._may_shrink = [name in kernel.description.dynamic for name in kernel.description.outputs]
        self.number, self._bounds, self._deadline_ms = number, bounds, deadline_ms

    def run(self) -> list[tuple[int, ...]]:
        """Run it; return the shapes of the outputs. Raises `KernelError`."""
        self._client.run(self.number, self._name, self._deadline_ms)
        return self._shapes()

    def run_unless(self, is_cancelled: Callable[[], bool]) -> list[tuple[int, ...]] | None:
        """Like `run`, polling `is_cancelled`; return None if it was."""
        if not self._client.run(self.number, self._name, self._deadline_ms, is_cancelled):
            return None
        return self._shapes()

    def _shapes(self) -> list[tuple[int, ...]]:
        if self._client.mailbox.has_full_outputs:
            return self._bounds
        shapes = []
        for output, bound in enumerate(self._bounds):
            shape = self._client.mailbox.shape(output, bound)
            if shape is None or (shape != bound and not self._may_shrink[output]):
                raise self._client.lost(self._name)
            shapes.append(shape)
        return shapes

    @property
    def staged(self) -> int:
        """Return the bytes that the last run of this client copied."""
        return self._client.mailbox.staged

    @property
    def time_ns(self) -> int:
        """Return how long the last run of this client took in its process."""
        return self._client.mailbox.time_ns

    def close(self) -> None:
        """Forget it."""
        self._client.drop(call=self.number)


def _error(message: link.KernelFailed) -> KernelError:
    """Return the error of a message, whatever it says."""
    failure = Failure(message.failure) if message.failure in set(Failure) else Failure.LOST
    info = message.error.shortened()
    if not 0x70000000 <= info.result < 0x80000000:
        info = ErrorInfo(result=int(ZeResult.ERROR_UNKNOWN), object=info.object, found=info.found)
    return KernelError(failure, info)
