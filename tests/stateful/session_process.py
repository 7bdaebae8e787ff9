"""A hand-made client directed by other processes: one session, objects by name, no implicit references.

Every allocation is requested and freed explicitly, so that the model can count to the byte.
"""

from __future__ import annotations

import hashlib
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

from softnpu.emulator.common import linux
from softnpu.emulator.interface import commands as cmd
from softnpu.emulator.interface import messages as msg
from softnpu.emulator.interface import records
from softnpu.emulator.interface.commands import MemoryAt
from softnpu.emulator.interface.shared import SharedMapping
from tests.support.wire import Wire, WireContext, WireMemory, WireQueue

BUFFER_BYTES = 64 * 1024
_FENCE = struct.Struct("=QIIQQQ")


class RefusedRequest(Exception):
    """The daemon has refused a request; `info` says why."""

    def __init__(self, info: Any) -> None:
        super().__init__(str(info))
        self.info = info


class ScriptedSession:
    """The session. Contexts, memory, queues and graphs have the names that the director gives them."""

    def __init__(self, socket: str) -> None:
        self.wire = Wire(Path(socket))
        self.session = self.wire.hello().session
        self._contexts: dict[str, WireContext] = {}
        self._memory: dict[str, tuple[WireContext, WireMemory]] = {}
        self._queues: dict[str, WireQueue] = {}
        self._graphs: dict[str, int] = {}
        self._segment_fds: dict[str, int] = {}
        self._compiling: dict[str, int] = {}
        self._early: dict[int, msg.Answer] = {}

    def number(self) -> int:
        return self.session

    def leave(self) -> None:
        """End the session in an orderly way."""
        self.wire.close()

    # ------------------------------------------------------------ contexts and memory

    def context(self, name: str) -> None:
        answer = self._ask(msg.ContextCreate(device=0))
        self._contexts[name] = WireContext(self.wire, created=answer)

    def drop_context(self, name: str) -> None:
        context = self._contexts.pop(name)
        self._ask(msg.ContextDestroy(context=context.handle))
        self._memory = {key: entry for key, entry in self._memory.items() if entry[0] is not context}
        self._queues = {key: queue for key, queue in self._queues.items() if queue.context is not context}

    def allocate(self, context: str, name: str, size: int, kind: str, exportable: bool = False) -> None:
        owner = self._contexts[context]
        request = msg.MemAlloc(context=owner.handle, kind=kind, size=size, exportable=exportable)
        self._adopt(owner, name, self._ask(request), size)

    def import_memory(self, context: str, name: str, place: str) -> None:
        """Import memory that another session shares at this place."""
        owner = self._contexts[context]
        fd = os.open(place, os.O_RDWR | os.O_CLOEXEC)
        try:
            answer = self._ask(msg.MemImport(context=owner.handle, kind="host"), [fd])
        finally:
            os.close(fd)
        self._adopt(owner, name, answer, answer.segment_size)

    def share(self, name: str) -> str:
        """Return where another process can open exportable memory."""
        return f"/proc/{os.getpid()}/fd/{self._segment_fds[name]}"

    def free(self, *names: str) -> None:
        self._ask(msg.MemFree(memory=tuple(self._memory[name][1].handle for name in names)))
        for name in names:
            del self._memory[name]

    def write(self, name: str, offset: int, value: int, size: int) -> None:
        self._memory[name][1].write(bytes([value]) * size, offset)

    def fill_floats(self, name: str, data: str) -> None:
        self._memory[name][1].write(bytes.fromhex(data))

    def digest(self, name: str) -> str:
        return hashlib.blake2b(self._memory[name][1].read()).hexdigest()

    def content(self, name: str) -> str:
        return self._memory[name][1].read().hex()

    # ------------------------------------------------------------ queues and events

    def queue(self, context: str, name: str, slots: int, priority: str = "normal") -> None:
        owner = self._contexts[context]
        answer = self._ask(msg.QueueCreate(context=owner.handle, slots=slots, priority=priority))
        self._queues[name] = WireQueue(owner, slots, answer)

    def drop_queue(self, name: str) -> None:
        self._ask(msg.QueueDestroy(queue=self._queues.pop(name).handle))

    def submit(
        self, queue: str, buffer: str, offset: int, commands: list[list[Any]], fences: str, fence: int
    ) -> int:
        """Submit these commands (see `_command`) at `offset` of `buffer`, with a fence."""
        data = cmd.encode_buffer([cmd.encode_command(self._command(*command)) for command in commands])
        block, signals, target = self._memory[buffer][1], self._memory[fences][1], self._queues[queue]
        block.write(data, offset)
        words = _FENCE.pack(0, 0, 0, target.tail + 1, 0, 0)
        signals.write(words, fence * records.SIGNAL_SIZE)
        return target.submit(
            block, len(data), offset, fence=signals, fence_offset=fence * records.SIGNAL_SIZE
        )

    def break_ring(self, queue: str) -> None:
        """Write an invalid slot."""
        target = self._queues[queue]
        target.submit(0, 64, sequence=target.tail + 77)

    def wait(self, queue: str, number: int) -> int:
        return self._queues[queue].wait(number)

    def completed(self, queue: str) -> int:
        return self._queues[queue].completed

    def lost(self, queue: str) -> bool:
        return self._queues[queue].lost

    def fence(self, fences: str, index: int) -> list[int]:
        """Return the ticket that a fence holds, and its result."""
        words = self._memory[fences][1].read(_FENCE.size, index * records.SIGNAL_SIZE)
        ticket, _, result, *_ = _FENCE.unpack(words)
        return [ticket, result]

    def event(self, events: str, index: int) -> int:
        """Return the state of an event."""
        words = self._memory[events][1].read(4, index * records.SIGNAL_SIZE)
        return int.from_bytes(words, "little")

    def cancel(self, queue: str, fences: str, index: int) -> None:
        block, at = self._memory[fences][1], index * records.SIGNAL_SIZE
        armed = block.read(8, at + records.FENCE_ARMED)
        block.write(armed, at + records.FENCE_CANCEL)
        self._ring(queue)

    def signal(self, queue: str, events: str, index: int) -> None:
        """Signal an event from the host."""
        self._memory[events][1].write(struct.pack("=I", 5), index * records.SIGNAL_SIZE)
        self._ring(queue)

    def reset(self, events: str, index: int) -> None:
        """Reset an event from the host."""
        self._memory[events][1].write(struct.pack("=I", 2), index * records.SIGNAL_SIZE)

    def run(self, context: str, commands: list[list[Any]]) -> int:
        """Run one submission on its own queue to its end; return its result. Everything is released."""
        self.allocate(context, "run", BUFFER_BYTES, "control")
        self.allocate(context, "run fences", records.SIGNAL_SIZE, "control")
        self.queue(context, "run", 2)
        result = self.wait("run", self.submit("run", "run", 0, commands, "run fences", 0))
        self.drop_queue("run")
        self.free("run", "run fences")
        return result

    # ------------------------------------------------------------ graphs

    def compile(self, context: str, name: str, xml: str) -> None:
        """Begin to compile. `compiled` reports the end."""
        fds = [os.open(path, os.O_RDONLY | os.O_CLOEXEC) for path in (xml, Path(xml).with_suffix(".bin"))]
        try:
            length, weights = (os.fstat(fd).st_size for fd in fds)
            request = msg.GraphCreate(
                context=self._contexts[context].handle,
                name="scale",
                xml_length=length,
                weights=(msg.WeightSource(offset=0, length=weights),),
            )
            self._compiling[name] = self.wire.send(request, fds)
        finally:
            for fd in fds:
                os.close(fd)

    def compiled(self, name: str) -> int:
        """Return 0, or the result of a compilation that was refused or failed."""
        answer = self._answer(self._compiling.pop(name))
        if isinstance(answer, msg.Failed):
            return answer.info.result
        assert isinstance(answer, msg.GraphCreated)
        self._graphs[name] = answer.graph
        return 0

    def cancel_compile(self, name: str) -> None:
        """Request the end of a compilation; `compiled` still reports how it ended."""
        number = self._compiling.pop(name)
        self._ask(msg.Cancel(request=number))
        final = self._answer(number)
        if isinstance(final, msg.GraphCreated):
            self._graphs[name] = final.graph

    def has_graph(self, name: str) -> bool:
        return name in self._graphs

    def initialize(self, name: str) -> None:
        self._ask(msg.GraphInitialize(graph=self._graphs[name]))

    def drop_graph(self, name: str) -> None:
        self._ask(msg.GraphDestroy(graph=self._graphs.pop(name)))

    # ------------------------------------------------------------ helpers

    def _command(self, kind: str, *values: Any) -> cmd.Command:
        match kind:
            case "barrier":
                return cmd.Barrier()
            case "fill":
                name, offset, size, value = values
                return cmd.Fill(self._at(name, offset), size, bytes([value]))
            case "copy":
                target, to, source, start, size = values
                return cmd.Copy(self._at(target, to), self._at(source, start), size)
            case "signal":
                return cmd.EventSignal(self._at(values[0], values[1] * records.SIGNAL_SIZE))
            case "wait":
                return cmd.EventWait(self._at(values[0], values[1] * records.SIGNAL_SIZE))
            case "infer":
                graph, source, target = values
                return cmd.GraphExecute(self._graphs[graph], 1, (self._at(source, 0), self._at(target, 0)))
        raise ValueError(kind)

    def _at(self, name: str, offset: int) -> MemoryAt:
        return MemoryAt(self._memory[name][1].handle, offset)

    def _adopt(self, context: WireContext, name: str, answer: msg.MemAllocated, size: int) -> None:
        if answer.fresh:
            fd = self.wire.take_fd()
            os.posix_fallocate(fd, 0, answer.segment_size)
            context.segments[answer.segment] = SharedMapping(fd, answer.segment_size)
            self._segment_fds[name] = fd
        self._memory[name] = context, context.adopt(_without_descriptor(answer), size)

    def _answer(self, number: int) -> msg.Answer:
        """Return the final answer to a request; keep those to others."""
        while number not in self._early:
            request, answer = self.wire.receive()
            if not isinstance(answer, msg.Progress):
                self._early[request] = answer
        return self._early.pop(number)

    def _ring(self, queue: str) -> None:
        linux.memory_fence()
        os.eventfd_write(self._queues[queue].doorbell, 1)

    def _ask(self, request: msg.Message, fds: list[int] | None = None) -> Any:
        answer = self._answer(self.wire.send(request, fds))
        if isinstance(answer, msg.Failed):
            raise RefusedRequest(answer.info)
        return answer


def _without_descriptor(answer: msg.MemAllocated) -> msg.MemAllocated:
    """Return the answer without a descriptor, as for a segment that is already mapped."""
    return msg.MemAllocated(
        memory=answer.memory,
        segment=answer.segment,
        segment_size=answer.segment_size,
        offset=answer.offset,
        fresh=False,
    )


def serve(given: dict[str, str], say: Callable[[object], None], hear: Callable[[], Any]) -> None:
    """Call the methods that the director names, until it has no more to say."""
    session: ScriptedSession | None = None
    while (request := hear()) is not None:
        method, arguments = request
        try:
            session = session or ScriptedSession(given["socket"])
            answer = ["value", getattr(session, method)(*arguments)]
        except RefusedRequest as error:
            answer = ["refused", [error.info.result, str(error.info)]]
        except Exception as error:  # noqa: BLE001 - the test fails with it
            answer = ["crashed", f"{type(error).__name__}: {error}"]
        say(answer)
