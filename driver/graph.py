"""`ze_graph_handle_t` of the graph extension: a compiled model, its arguments, and its blob."""

from __future__ import annotations

import mmap
import os
import threading
import weakref
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from softnpu.driver.block import Block
from softnpu.driver.errors import check_type, invalid_argument, uninitialized
from softnpu.driver.graph_properties import (
    ArgumentMetadata,
    ArgumentProperties3,
    GraphProperties3,
    GraphPropertyFlag,
    InitStage,
    argument_metadata,
    argument_properties,
)
from softnpu.driver.graph_source import GraphSource
from softnpu.driver.handle import Handle
from softnpu.driver.memory import MemoryPool, MemoryRef
from softnpu.emulator.blob.argument_bounds import sparse_sizes
from softnpu.emulator.blob.container import ArgumentMeta, BlobReader, GraphMeta
from softnpu.emulator.blob.weights import Placement
from softnpu.emulator.interface import messages as msg
from softnpu.emulator.interface.commands import MAX_DIMS
from softnpu.emulator.interface.messages import GraphFlag

if TYPE_CHECKING:
    from softnpu.driver.connection import Connection
    from softnpu.driver.context_base import ContextBase

__all__ = ["BoundArgument", "Graph", "GraphSource"]

_ORIGINS = {
    "compiled": GraphPropertyFlag.COMPILED,
    "cache": GraphPropertyFlag.LOADED_FROM_CACHE,
    "native": GraphPropertyFlag.PRE_COMPILED,
}


class BoundArgument(NamedTuple):
    """Memory of an argument; `strides` in elements, innermost first, None for a dense tensor."""

    block: Block
    offset: int
    strides: tuple[int, ...] | None = None


class DeviceGraph:
    """The graph on the device. Lives as long as its handle, or a list or submission that executes it."""

    __slots__ = ("__weakref__", "handle")

    def __init__(self, connection: Connection, memory: MemoryPool, handle: int) -> None:
        self.handle = handle
        end = weakref.finalize(self, connection.defer, partial(_destroy, connection, memory, handle))
        end.atexit = False


class Graph(Handle):
    """A compiled model. `meta` describes its arguments: inputs, then outputs, with a global index.

    Created by `graph_creation`. `build_log` holds the compiler's messages, `flags` the creation flags.
    """

    def __init__(self, context: ContextBase, created: msg.GraphCreated, blob: int, flags: GraphFlag) -> None:
        self.context = context
        self._on_device = DeviceGraph(context._connection, context._memory, created.graph)
        self.handle = created.graph
        self.compile_ms = created.compile_ms
        self.build_log = created.log
        self.origin = created.origin
        self.flags = flags
        self.load_ms = 0.0
        self.shared = False
        self._arguments: dict[int, BoundArgument] = {}
        self._register(context, context._connection, self._arguments.clear)
        self._initialized = False
        self._lock = threading.Lock()
        self._native: memoryview | None = None
        self.meta: GraphMeta = _read_meta(blob, created.blob_length)
        context._memory.sparse_sizes |= sparse_sizes(self.meta.arguments, self.meta.config)

    def _drop_references(self) -> None:
        del self._on_device

    # ------------------------------------------------------------ properties

    @property
    def profiled(self) -> bool:
        """Whether its inferences write a profile; every execute then needs a query."""
        return self.meta.config.get("PERF_COUNT") == "YES"

    @property
    def _keeps_strides(self) -> bool:
        """Whether strides survive an argument value without strides (creation flag of 1.18)."""
        return bool(self.flags & GraphFlag.OPTIMIZE_FOR_DYNAMIC_SHAPES)

    def get_properties(self) -> GraphProperties3:
        """`pfnGetProperties`, 2 and 3."""
        self._check("pfnGetProperties3")
        flags = _ORIGINS.get(self.origin, GraphPropertyFlag.NONE)
        if self.flags & GraphFlag.INPUT_GRAPH_PERSISTENT:
            # the program's data was copied regardless: it need not keep it
            flags |= GraphPropertyFlag.NO_STANDARD_ALLOCATION
        if self.profiled:
            flags |= GraphPropertyFlag.PROFILING_ENABLED
        return GraphProperties3(
            num_graph_args=len(self.meta.arguments), init_stage_required=InitStage.INITIALIZE, flags=flags
        )

    def get_argument_properties(self, index: int) -> ArgumentProperties3:
        """`pfnGetArgumentProperties`, 2 and 3. INVALID_ARGUMENT for an unknown index."""
        return argument_properties(self._argument("pfnGetArgumentProperties3", index), self.meta.config)

    def get_argument_metadata(self, index: int) -> ArgumentMetadata:
        """`pfnGraphGetArgumentMetadata`. INVALID_ARGUMENT for an unknown index."""
        return argument_metadata(self._argument("pfnGraphGetArgumentMetadata", index))

    # ------------------------------------------------------------ its blob

    def get_native_binary(self) -> bytes:
        """`pfnGetNativeBinary`: a copy of `get_native_binary2`."""
        return bytes(self._native_binary("pfnGetNativeBinary"))

    def get_native_binary2(self) -> memoryview:
        """`pfnGetNativeBinary2`: a blob with all weights inside, valid as long as the graph lives.

        It is made at the first call. A graph made of these bytes needs no weights.
        """
        return self._native_binary("pfnGetNativeBinary2")

    def write_native_binary(self, fd: int, offset: int = 0) -> int:
        """Write the bytes of `get_native_binary2` into a file at `offset`, without keeping them.

        The compiler writes the file, so weights do not enter this process. Returns the size.
        Raises `ZeError` with the reason, also when the disk is full; bytes written by then stay.
        """
        call = "pfnGetNativeBinary2"
        self._check(call)
        request = msg.GraphExport(graph=self.handle, offset=offset)
        answer, _ = self.context._connection.request(call, request, msg.GraphExported, [fd])
        return answer.blob_length

    def get_weightless_blob(self) -> tuple[bytes, Placement | None]:
        """Return the blob without external weights, and their placement in the weights space.

        With the same weights both recreate the graph: see `graph_creation.import_blob`.
        """
        call = "pfnGetNativeBinary2"
        self._check(call)
        answer, fds = self.context._connection.request(
            call, msg.GraphBlob(graph=self.handle), msg.GraphBlobAnswer
        )
        try:
            blob = os.pread(fds[0], answer.blob_length, 0)
            if not answer.placement_length:
                return blob, None
            return blob, Placement.decode(os.pread(fds[1], answer.placement_length, 0))
        finally:
            for fd in fds:
                os.close(fd)

    def _native_binary(self, call: str) -> memoryview:
        self._check(call)
        with self._lock:
            if self._native is None:
                request = msg.GraphExport(graph=self.handle)
                answer, (fd,) = self.context._connection.request(call, request, msg.GraphExported)
                try:
                    self._native = memoryview(mmap.mmap(fd, answer.blob_length, prot=mmap.PROT_READ))
                finally:
                    os.close(fd)
            return self._native

    # ------------------------------------------------------------ on the device

    def initialize(self, hint: bytes = b"") -> None:
        """`pfnGraphInitialize`: load the graph onto the device; idempotent.

        `hint` is that of `graph_creation.expect`.
        Raises `ZeError` with MODULE_BUILD_FAILURE when the device cannot load it.
        """
        self._load("pfnGraphInitialize", hint)

    def _load(self, call: str, hint: bytes = b"") -> None:
        """Load the graph onto the device unless it is loaded."""
        self._check(call)
        if self._initialized:
            return
        with self._lock:
            if not self._initialized:
                answer, _ = self.context._connection.request(
                    call, msg.GraphInitialize(graph=self.handle, hint=hint), msg.GraphInitialized
                )
                self.load_ms, self.shared = answer.load_ms, answer.shared
                self._initialized = True

    def evict(self) -> None:
        """`pfnEvict`: a no-op, because the device keeps whatever fits."""
        self._check("pfnEvict")

    # ------------------------------------------------------------ arguments

    def set_argument_value(self, index: int, memory: MemoryRef) -> None:
        """`pfnSetArgumentValue`: bind dense memory to argument `index`, from the next append on.

        An argument with dynamic dimensions may use the rest of the allocation, up to its bound.
        Raises `ZeError`: INVALID_ARGUMENT for an unknown index, foreign memory, or too few bytes.
        """
        self._arguments[index] = self._bound("pfnSetArgumentValue", index, memory, None)

    def set_argument_value2(
        self, index: int, memory: MemoryRef = None, strides: Sequence[int] | None = None
    ) -> None:
        """`pfnSetArgumentValue2`: memory, strides (in elements, innermost first), or both.

        Strides alone apply to the memory that is set. Memory without strides is dense, unless the graph was
        optimised for dynamic shapes.
        Raises `ZeError` as `set_argument_value`, and INVALID_ARGUMENT for strides of an argument not compiled
        to take them.
        """
        call = "pfnSetArgumentValue2"
        argument = self._argument(call, index)
        if memory is None and strides is None:
            raise invalid_argument(
                call, self._name(index), found="nothing to set", expected="memory or strides"
            )
        now = self._arguments.get(index)
        chosen = None if strides is None else self._checked_strides(call, index, argument, strides)
        if chosen is None and now is not None and self._keeps_strides:
            chosen = now.strides
        if memory is not None:
            self._arguments[index] = self._bound(call, index, memory, chosen)
            return
        if now is None:
            raise uninitialized(
                call, self._name(index), found="strides only", expected="memory that was set before"
            )
        self._check_room(call, index, now.block.size - now.offset, chosen)
        self._arguments[index] = now._replace(strides=chosen)

    def _bound_arguments(self, call: str) -> list[BoundArgument]:
        """Return all current arguments; reject an unset one by name."""
        arguments = []
        for index in range(len(self.meta.arguments)):
            memory = self._arguments.get(index)
            if memory is None:
                raise uninitialized(
                    call,
                    self._name(index),
                    found="not set",
                    expected="memory",
                    hint="call set_argument_value first",
                )
            arguments.append(memory)
        return arguments

    def _bound(
        self, call: str, index: int, memory: MemoryRef, strides: tuple[int, ...] | None
    ) -> BoundArgument:
        pool = self.context._memory
        resolve = pool.resolve if self._argument(call, index).input else pool.resolve_target
        block, offset = resolve(call, memory)
        self._check_room(call, index, block.size - offset, strides)
        return BoundArgument(block, offset, strides)

    def _check_room(self, call: str, index: int, room: int, strides: tuple[int, ...] | None) -> None:
        argument = self.meta.arguments[index]
        if argument.is_dynamic:
            return  # the size depends on the shape, which each execution sets
        needed = argument.byte_size if strides is None else _extent(argument, strides)
        if room < needed:
            raise invalid_argument(
                call, self._name(index), found=f"{room} bytes of memory", expected=f"{needed} bytes at least"
            )

    def _checked_strides(
        self, call: str, index: int, argument: ArgumentMeta, strides: Sequence[int]
    ) -> tuple[int, ...]:
        rank = len(argument.shape)
        if not argument.strides:
            raise invalid_argument(
                call,
                self._name(index),
                found="strides",
                expected="an argument that the graph was compiled to take strides for",
                hint=f'add NPU_ENABLE_STRIDES_FOR="{argument.name}" to the build flags',
            )
        if not rank <= len(strides) <= MAX_DIMS or not all(0 < step < 2**32 for step in strides[:rank]):
            raise invalid_argument(
                call,
                self._name(index),
                found=f"strides {list(strides)}",
                expected=f"{rank} strides of at least 1, innermost first",
            )
        return tuple(strides[:rank])

    def _argument(self, call: str, index: int) -> ArgumentMeta:
        self._check(call)
        arguments = self.meta.arguments
        check_type(call, "argument index", index, int)
        if not 0 <= index < len(arguments):
            raise invalid_argument(
                call,
                f"graph '{self.meta.name}'",
                found=f"argument {index}",
                expected=f"0 to {len(arguments) - 1}",
            )
        return arguments[index]

    def _name(self, index: int) -> str:
        return f"graph '{self.meta.name}', argument {index} '{self.meta.arguments[index].name}'"


def _extent(argument: ArgumentMeta, strides: tuple[int, ...]) -> int:
    """Return the bytes from the first element to the end of the last."""
    steps = zip(reversed(argument.shape), strides, strict=True)
    return (1 + sum((dim - 1) * step for dim, step in steps)) * argument.alignment


def _read_meta(blob: int, length: int) -> GraphMeta:
    """Read the metadata of a blob and close its descriptor."""
    try:
        with mmap.mmap(blob, length, prot=mmap.PROT_READ) as data:
            view = memoryview(data)
            try:
                return BlobReader(view).metadata()
            finally:
                view.release()
    finally:
        os.close(blob)


def _destroy(connection: Connection, memory: MemoryPool, handle: int) -> None:
    # the daemon has destroyed the graphs of a destroyed context
    if not memory.closed and not connection.is_lost():
        connection.request("pfnDestroy", msg.GraphDestroy(graph=handle), msg.Ok)
