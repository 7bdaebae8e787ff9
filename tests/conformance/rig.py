"""The starting point of every test of the suite: a session, a context, and shortcuts to valid objects.

Methods here only make calls that must succeed; a test calls its subject on `api` itself.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence

from softnpu.emulator.interface.result import ZeResult
from tests.conformance.api.enumerations import FenceFlag, GraphFormat, QueuePriority
from tests.conformance.api.structures import (
    CommandListDesc,
    CommandQueueDesc,
    ContextDesc,
    DeviceMemDesc,
    EventDesc,
    EventPoolDesc,
    FenceDesc,
    GraphDesc,
    Handle,
    HostMemDesc,
    Pointer,
)
from tests.conformance.commands import Append, barrier, copy, wait
from tests.conformance.drivers import LevelZero
from tests.conformance.models import COUNT, SIZE, Model

SECOND = 1_000_000_000
DEADLINE = 10 * SECOND
"""How long the suite waits for expected events."""
BRIEF = SECOND // 50
"""How long it waits for events that must not happen."""
TDR = SECOND * 8 // 10
"""After this time the suite's daemon aborts a waiting submission."""


class Rig:
    """One session of a driver, with a context on its first device."""

    def __init__(self, api: LevelZero) -> None:
        self.api = api
        self.driver: Handle = api.ze_init_drivers().get()[0]
        self.devices: Sequence[Handle] = api.ze_device_get(self.driver).get()
        self.device: Handle = self.devices[0]
        self.context: Handle = self.new_context()
        self._pool: Handle = None
        self._pool_left: Iterator[int] = iter(())

    # ------------------------------------------------------------ objects

    def new_context(self) -> Handle:
        return self.api.ze_context_create(self.driver, ContextDesc()).get()

    def queue(self, context: Handle = None, **desc: int) -> Handle:
        """Return a queue; keywords are fields of its descriptor."""
        made = self.api.ze_command_queue_create(
            context or self.context, self.device, CommandQueueDesc(**desc)
        )
        return made.get()

    def command_list(self, context: Handle = None, mutable: bool = False, flags: int = 0) -> Handle:
        desc = CommandListDesc(mutable=mutable, flags=flags)
        return self.api.ze_command_list_create(context or self.context, self.device, desc).get()

    def immediate(self, **desc: int) -> Handle:
        """Return an immediate list; keywords are fields of its descriptor."""
        made = self.api.ze_command_list_create_immediate(self.context, self.device, CommandQueueDesc(**desc))
        return made.get()

    def fence(self, queue: Handle, signalled: bool = False) -> Handle:
        flags = FenceFlag.SIGNALED if signalled else 0
        return self.api.ze_fence_create(queue, FenceDesc(flags)).get()

    def pool(self, count: int, context: Handle = None) -> Handle:
        desc = EventPoolDesc(count)
        return self.api.ze_event_pool_create(context or self.context, desc, 0, None).get()

    def event(self) -> Handle:
        """Return an event of the rig's own pool."""
        if self._pool is None:
            self._pool, self._pool_left = self.pool(64), iter(range(64))
        return self.api.ze_event_create(self._pool, EventDesc(next(self._pool_left))).get()

    # ------------------------------------------------------------ memory

    def host(self, size: int, context: Handle = None, fill: bytes = b"\0") -> Pointer:
        """Return host memory, every byte of it `fill`."""
        pointer = self.api.ze_mem_alloc_host(context or self.context, HostMemDesc(), size).get()
        self.api.write(pointer, fill * size)
        return pointer

    def of_kind(self, kind: str, size: int) -> Pointer:
        """Return memory of the kind host, device or shared."""
        if kind == "host":
            return self.host(size)
        if kind == "device":
            return self.api.ze_mem_alloc_device(self.context, DeviceMemDesc(), size, 0, self.device).get()
        made = self.api.ze_mem_alloc_shared(
            self.context, DeviceMemDesc(), HostMemDesc(), size, 0, self.device
        )
        return made.get()

    def data(self, data: bytes) -> Pointer:
        """Return host memory with these bytes."""
        pointer = self.host(len(data))
        self.api.write(pointer, data)
        return pointer

    # ------------------------------------------------------------ execution

    def append(self, command_list: Handle, *commands: Append) -> None:
        for command in commands:
            ok(command(self.api, command_list))

    def close(self, *lists: Handle) -> None:
        for entry in lists:
            ok(self.api.ze_command_list_close(entry))

    def recorded(self, *commands: Append, context: Handle = None, mutable: bool = False) -> Handle:
        """Return a closed list with these commands."""
        command_list = self.command_list(context, mutable)
        self.append(command_list, *commands)
        self.close(command_list)
        return command_list

    def submit(self, queue: Handle, *lists: Handle, fence: Handle = None) -> None:
        ok(self.api.ze_command_queue_execute_command_lists(queue, len(lists), lists, fence))

    def finish(self, *queues: Handle) -> None:
        for queue in queues:
            ok(self.api.ze_command_queue_synchronize(queue, DEADLINE))

    def run(self, *lists: Handle, queue: Handle = None) -> None:
        """Close the lists, execute them and wait for completion."""
        chosen = queue or self.queue()
        self.close(*lists)
        self.submit(chosen, *lists)
        self.finish(chosen)

    def settle(self) -> None:
        """Let the device do everything possible now: low priority comes last."""
        self.execute(barrier(), queue=self.queue(priority=QueuePriority.LOW))

    def execute(self, *commands: Append, queue: Handle = None, context: Handle = None) -> None:
        """Execute the commands in one list and wait for completion."""
        chosen = queue or self.queue(context)
        self.submit(chosen, self.recorded(*commands, context=context))
        self.finish(chosen)

    def copy_list(self, target: Pointer, source: Pointer, size: int) -> Handle:
        """Return a closed list with one copy."""
        return self.recorded(copy(target, source, size))

    def gated_copy(self, gate: Handle, target: Pointer, source: Pointer, size: int) -> Handle:
        """Return a closed list that waits for the event `gate` and then copies."""
        return self.recorded(wait(gate), copy(target, source, size))

    def signal(self, event: Handle) -> None:
        ok(self.api.ze_event_host_signal(event))

    def block(self, queue: Handle) -> Handle:
        """Submit work that lasts until the returned event is signalled."""
        gate = self.event()
        self.submit(queue, self.recorded(wait(gate)))
        return gate

    def check_works(self, queue: Handle = None, context: Handle = None) -> None:
        """Assert that a copy on the queue works."""
        target, source = self.host(8, context), self.host(8, context, b"\x77")
        self.execute(copy(target, source, 8), queue=queue, context=context)
        assert self.api.read(target, 8) == b"\x77" * 8

    # ------------------------------------------------------------ graphs

    def model_desc(
        self, model: Model, flags: int = 0, build_flags: str | None = None, input_hash: int | None = None
    ) -> GraphDesc:
        """Return the descriptor of a model in the layout that copies its weights."""
        version = self.api.ze_device_get_graph_properties(self.device).get()
        return GraphDesc(
            input=model.serialised(version.compiler_major, version.compiler_minor),
            format=GraphFormat.NGRAPH_LITE,
            build_flags=model.build_flags if build_flags is None else build_flags,
            flags=flags,
            input_hash=input_hash,
        )

    def graph(self, model: Model, flags: int = 0, build_flags: str | None = None) -> Handle:
        """Return a compiled and initialized graph."""
        return self.graph_from(self.model_desc(model, flags, build_flags))

    def graph_from(self, desc: GraphDesc) -> Handle:
        graph = self.api.ze_graph_create2(self.context, self.device, desc).get()
        ok(self.api.ze_graph_initialize(graph))
        return graph

    def tensor(self, values: Iterable[float] | float = 0) -> Pointer:
        """Return memory of an argument with these values, or filled with one."""
        return self.data(packed(values))

    def values(self, pointer: Pointer) -> list[float]:
        return list(struct.unpack(f"<{COUNT}f", self.api.read(pointer, SIZE)))

    def bind(self, graph: Handle, *pointers: Pointer) -> None:
        """Set the graph's arguments, from the first on."""
        for index, pointer in enumerate(pointers):
            ok(self.api.ze_graph_set_argument_value(graph, index, pointer))

    def memory_in_use(self, context: Handle = None) -> int:
        """Return the context's reported memory in bytes."""
        return self.api.ze_graph_query_context_memory(context or self.context, 1).get().allocated


def packed(values: Iterable[float] | float) -> bytes:
    """Return the bytes of an argument with these values, or filled with one."""
    numbers = [values] * COUNT if isinstance(values, int | float) else values
    return struct.pack(f"<{COUNT}f", *numbers)


def ok(result: ZeResult) -> None:
    """Assert that the call succeeded."""
    assert result == ZeResult.SUCCESS, f"{result!r} instead of SUCCESS"
