"""A client that implements `docs/interface.md` by hand, without the driver, so it can break every rule."""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import TypeVar

import msgspec

from softnpu.emulator.common import linux
from softnpu.emulator.interface import commands as cmd
from softnpu.emulator.interface import endpoint, frames, records
from softnpu.emulator.interface import messages as msg
from softnpu.emulator.interface.channel import Channel, Packet
from softnpu.emulator.interface.result import ErrorInfo
from softnpu.emulator.interface.shared import EventRecord, FenceRecord, SharedMapping
from softnpu.emulator.interface.version import INTERFACE_MAJOR, INTERFACE_MINOR
from tests.support.daemon import Daemon
from tests.support.waiting import DEADLINE_S, wait_until

M = TypeVar("M", bound=msg.Message)
NOTHING = cmd.encode_buffer([cmd.encode_command(cmd.Barrier())])
HELLO = msg.Hello(major=INTERFACE_MAJOR, minor=INTERFACE_MINOR, client="by hand")


class Wire:
    """One connection. `hello` greets, `ask` waits for the answer, `send` does not."""

    def __init__(self, path: Path) -> None:
        self.socket = endpoint.new_socket()
        self.socket.settimeout(DEADLINE_S)
        with endpoint.socket_address(path) as address:
            self.socket.connect(address)
        self.channel = Channel(self.socket)
        self._number = 0
        self._fds: list[int] = []

    def __enter__(self) -> Wire:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection and every descriptor received over it."""
        self.channel.close()
        self.forget_fds()

    def forget_fds(self) -> None:
        """Close the descriptors received so far."""
        fds, self._fds = self._fds, []
        for fd in fds:
            os.close(fd)

    def hello(self, role: str = "session") -> msg.Welcome:
        return self.ask(msgspec.structs.replace(HELLO, role=role), msg.Welcome)

    def send(self, message: msg.Message, fds: list[int] | None = None) -> int:
        """Send a request; return its number."""
        self._number += 1
        self.channel.send(self._number, msg.encode(message), fds or [])
        return self._number

    def send_raw(self, frame: bytes) -> None:
        self.socket.send(frame)

    def send_body(self, body: bytes) -> int:
        """Send a frame with any body; return its number."""
        self._number += 1
        self.send_raw(frames.encode(self._number, body))
        return self._number

    def receive(self) -> tuple[int, msg.Answer]:
        """Return the next answer and its request; descriptors are kept until `close`."""
        packet = self._packet()
        assert packet is not None, "the daemon closed the connection"
        with packet:
            self._fds.extend(packet.take_fds(packet.fd_count))
            return packet.request, msg.decode_answer(packet.body)

    def closed(self) -> bool:
        """Return whether the daemon closes the connection without another message."""
        return self._packet() is None

    def answer(self, number: int) -> msg.Answer:
        """Return the final answer to a request; skip answers to others."""
        while True:
            request, answer = self.receive()
            if request == number and not isinstance(answer, msg.Progress):
                return answer

    def ask(self, message: msg.Message, kind: type[M], fds: list[int] | None = None) -> M:
        answer = self.answer(self.send(message, fds))
        assert isinstance(answer, kind), answer
        return answer

    def info(self, message: msg.Message, fds: list[int] | None = None) -> ErrorInfo:
        return self.ask(message, msg.Failed, fds).info

    def take_fd(self) -> int:
        """Return the last descriptor received; it stays owned by the connection."""
        return self._fds[-1]

    def _packet(self) -> Packet | None:
        return self.channel.receive()


OpenWire = Callable[[Daemon], Wire]
"""Open a session by hand."""


class WireContext:
    """A hand-made context with memory. `created`: the last answer, which has already created it."""

    def __init__(self, wire: Wire, device: int = 0, created: msg.ContextCreated | None = None) -> None:
        self.wire = wire
        made = created or wire.ask(msg.ContextCreate(device=device), msg.ContextCreated)
        self.handle = made.context
        self.doorbell = wire.take_fd()
        self.segments: dict[int, SharedMapping] = {}

    def alloc(self, size: int, kind: str = "host", sparse: bool = False) -> WireMemory:
        request = msg.MemAlloc(context=self.handle, kind=kind, size=size, sparse=sparse)
        return self.adopt(self.wire.ask(request, msg.MemAllocated), size)

    def adopt(self, placed: msg.MemAllocated, size: int) -> WireMemory:
        if placed.fresh:
            self.segments[placed.segment] = SharedMapping(self.wire.take_fd(), placed.segment_size)
        return WireMemory(placed.memory, self.segments[placed.segment], placed.offset, size)

    def queue(self, slots: int = 16) -> WireQueue:
        return WireQueue(self, slots)

    def request_memory(self) -> msg.ContextMemoryAnswer:
        """Return the daemon's account of the context's memory."""
        return self.wire.ask(msg.ContextMemory(context=self.handle), msg.ContextMemoryAnswer)

    def check_works(self) -> None:
        """Assert that a new queue of this context executes."""
        assert self.queue().run(NOTHING, self.alloc(4096, "control")) == 0


class WireModel:
    """A model whose XML lies in sealed memory; `request` needs the descriptors `fds`."""

    def __init__(self, xml: Path) -> None:
        data = xml.read_bytes()
        self.length = len(data)
        self.fds = [linux.sealed_copy("xml", data)]

    def __enter__(self) -> WireModel:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.fds[0])

    def request(self, context: WireContext, name: str = "chain") -> msg.GraphCreate:
        return msg.GraphCreate(context=context.handle, name=name, xml_length=self.length)

    def create(self, context: WireContext, name: str = "chain") -> int:
        """Create a graph; return its handle."""
        return context.wire.ask(self.request(context, name), msg.GraphCreated, self.fds).graph


class WireMemory:
    """An allocation: bytes at `offset` of a mapping."""

    def __init__(self, handle: int, mapping: SharedMapping, offset: int, size: int) -> None:
        self.handle = handle
        self.mapping = mapping
        self.offset = offset
        self.size = size

    def write(self, data: bytes, at: int = 0) -> None:
        self.mapping.buffer[self.offset + at : self.offset + at + len(data)] = data

    def read(self, size: int | None = None, at: int = 0) -> bytes:
        start = self.offset + at
        return self.mapping.buffer[start : start + (self.size - at if size is None else size)]

    def fence(self, at: int = 0) -> FenceRecord:
        return FenceRecord(self.mapping, self.offset + at)

    def event(self, at: int = 0) -> EventRecord:
        return EventRecord(self.mapping, self.offset + at)


class WireQueue:
    """A queue; the caller controls every field of every slot. `created` as for contexts."""

    def __init__(self, context: WireContext, slots: int, created: msg.QueueCreated | None = None) -> None:
        request = msg.QueueCreate(context=context.handle, slots=slots)
        made = created or context.wire.ask(request, msg.QueueCreated)
        self.context = context
        self.doorbell = context.doorbell
        self.handle = made.queue
        self.slots = slots
        self.ring = context.adopt(made.ring, records.ring_size(slots))
        self.tail = 0

    def submit(
        self,
        buffer: WireMemory | int,
        size: int,
        offset: int = 0,
        fence: WireMemory | int = 0,
        fence_offset: int = 0,
        sequence: int | None = None,
        flags: int = 0,
    ) -> int:
        """Write a slot, store the tail and ring the doorbell; return the submission's number.

        It is also the ticket of the fence.
        """
        self.tail += 1
        slot = records.SLOT.pack(
            self.tail if sequence is None else sequence,
            buffer if isinstance(buffer, int) else buffer.handle,
            offset,
            size,
            flags,
            fence if isinstance(fence, int) else fence.handle,
            fence_offset,
            self.tail & (2**64 - 1),
            0,
            0,
        )
        self.ring.write(slot, records.RING_HEADER + (self.tail - 1) % self.slots * records.SLOT_SIZE)
        self.set_tail(self.tail)
        return self.tail

    def set_tail(self, tail: int) -> None:
        """Store any tail and ring."""
        self.ring.write(struct.pack("=Q", tail & (2**64 - 1)), records.RING_TAIL)
        linux.memory_fence()
        os.eventfd_write(self.doorbell, 1)

    def run(self, commands: bytes, buffer: WireMemory) -> int:
        """Write a command buffer, submit it, wait for its end; return the submission's result."""
        buffer.write(commands)
        return self.wait(self.submit(buffer, len(commands)))

    @property
    def completed(self) -> int:
        return self._word("=Q", records.RING_COMPLETED)

    @property
    def lost(self) -> bool:
        return bool(self._word("=I", records.RING_LOST))

    def wait(self, number: int) -> int:
        """Wait until a submission has ended; return its result, 0 for success."""
        wait_until(lambda: self.completed >= number, what=f"the end of submission {number}")
        return self.result(number)

    def result(self, number: int) -> int:
        """Return the engine's result in the slot of a submission that has ended."""
        slot = records.RING_HEADER + (number - 1) % self.slots * records.SLOT_SIZE
        return self._word("=I", slot + records.SLOT_RESULT)

    def _word(self, shape: str, at: int) -> int:
        value: int = struct.unpack(shape, self.ring.read(struct.calcsize(shape), at))[0]
        return value


def raw_socket(path: Path, kind: socket.SocketKind = socket.SOCK_SEQPACKET) -> socket.socket:
    """Return a connected socket that has sent nothing yet."""
    sock = socket.socket(socket.AF_UNIX, kind)
    sock.settimeout(DEADLINE_S)
    sock.connect(str(path))
    return sock


def unread_stream() -> tuple[int, socket.socket]:
    """Return a TCP socket whose close waits a minute for bytes nobody reads, and its peer."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        sender = socket.create_connection(listener.getsockname())
        receiver, _ = listener.accept()
    sender.setblocking(False)
    try:
        while True:
            sender.send(bytes(1 << 20))
    except BlockingIOError:
        sender.setblocking(True)
    sender.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 60))
    return sender.detach(), receiver
