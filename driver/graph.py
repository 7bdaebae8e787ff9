"""`ze_graph_handle_t` of the graph extension: a compiled model, its arguments, and its blob."""

from __future__ import annotations

import mmap
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy.typing as npt

from softnpu.driver.errors import error
from softnpu.driver.handle import Handle
from softnpu.driver.memory import Allocation, Block
from softnpu.emulator.interface import linux
from softnpu.emulator.interface import messages as msg
from softnpu.emulator.interface.blob import BlobReader, GraphMeta
from softnpu.emulator.interface.result import ZeResult

if TYPE_CHECKING:
    from softnpu.driver.connection import Connection
    from softnpu.driver.context import Context


class BoundArgument(NamedTuple):
    """Where an argument lies; `strides` in elements, innermost first, None for a dense tensor."""

    block: Block
    offset: int
    strides: tuple[int, ...] | None = None


@dataclass
class GraphSource:
    """A model on its way to the compiler: descriptors of the IR's XML and of its weights.

    Nothing is copied: weights in a file go as the descriptor of that file. Owns the descriptors.
    """

    name: str
    xml_fd: int
    xml_length: int
    weights_fd: int | None = None
    weights: msg.WeightSource | None = None
    _open: bool = field(default=True, repr=False)

    @classmethod
    def from_ir(cls, xml: Path, weights: Path | None = None, name: str | None = None) -> GraphSource:
        """An IR in files. Without `weights`: the .bin beside the XML, if there is one.

        Raises `OSError` when a file cannot be opened.
        """
        beside = xml.with_suffix(".bin")
        chosen = weights if weights is not None else beside if beside.exists() else None
        xml_fd = os.open(xml, os.O_RDONLY | os.O_CLOEXEC)
        weights_fd = None
        try:
            if chosen is not None:
                weights_fd = os.open(chosen, os.O_RDONLY | os.O_CLOEXEC)
            return cls.from_descriptors(name or xml.stem, xml_fd, weights_fd)
        except BaseException:
            for fd in (xml_fd, weights_fd):
                if fd is not None:
                    os.close(fd)
            raise

    @classmethod
    def from_descriptors(cls, name: str, xml_fd: int, weights_fd: int | None) -> GraphSource:
        """An IR in descriptors, which now belong to the source; a memory file is used in place."""
        xml_length = os.fstat(xml_fd).st_size
        length = os.fstat(weights_fd).st_size if weights_fd is not None else 0
        if weights_fd is not None and not length:
            os.close(weights_fd)
            weights_fd = None
        weights = msg.WeightSource(offset=0, length=length) if weights_fd is not None else None
        return cls(name, xml_fd, xml_length, weights_fd, weights)

    @classmethod
    def from_xml(cls, name: str, xml: bytes, weights_fd: int | None = None) -> GraphSource:
        """An IR whose XML is in memory."""
        return cls.from_descriptors(name, linux.sealed_copy("ir", xml), weights_fd)

    @property
    def fds(self) -> list[int]:
        return [self.xml_fd] if self.weights_fd is None else [self.xml_fd, self.weights_fd]

    def close(self) -> None:
        """Closes the descriptors; harmless when repeated."""
        if self._open:
            self._open = False
            for fd in self.fds:
                os.close(fd)

    def __enter__(self) -> GraphSource:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Graph(Handle):
    """A compiled model. `meta` describes its arguments: all inputs, then all outputs, index is global."""

    def __init__(
        self,
        context: Context,
        source: GraphSource,
        config: Mapping[str, str],
        shapes: Mapping[str, Sequence[int]],
        progress: Callable[[str, float], None] | None,
    ) -> None:
        self.context = context
        request = msg.GraphCreate(
            context=context.handle,
            name=source.name,
            xml_length=source.xml_length,
            weights=source.weights,
            config=dict(config),
            shapes={name: tuple(shape) for name, shape in shapes.items()},
        )
        report = None if progress is None else lambda event: progress(event.stage, event.done)
        created, (blob,) = context.connection.request(
            "pfnCreate2", request, msg.GraphCreated, source.fds, report
        )
        self.handle: int = created.graph
        self.compile_ms = created.compile_ms
        self.build_log = created.log
        self._arguments: dict[int, BoundArgument] = {}
        self._owns(context, context.connection, _destroy, context.connection, self.handle, self._arguments)
        self.load_ms = 0.0
        self.shared = False
        try:
            with mmap.mmap(blob, created.blob_length, prot=mmap.PROT_READ) as data:
                view = memoryview(data)
                try:
                    self.meta: GraphMeta = BlobReader(view).metadata()
                finally:
                    view.release()
        finally:
            os.close(blob)
        self._initialized = False
        self._lock = threading.Lock()

    @property
    def profiled(self) -> bool:
        """Whether its inferences write a profile: every execute needs a query then."""
        return self.meta.config.get("PERF_COUNT") == "YES"

    def initialize(self) -> None:
        """`pfnGraphInitialize`: loads the graph onto the device; harmless when repeated.

        Raises `ZeError` with MODULE_BUILD_FAILURE when the device cannot load it.
        """
        call = "pfnGraphInitialize"
        self.check(call)
        with self._lock:
            if not self._initialized:
                answer, _ = self.context.connection.request(
                    call, msg.GraphInitialize(graph=self.handle), msg.GraphInitialized
                )
                self.load_ms, self.shared = answer.load_ms, answer.shared
                self._initialized = True

    def set_argument_value(self, index: int, place: Allocation | npt.NDArray[Any] | int) -> None:
        """`pfnSetArgumentValue`: argument `index` is the memory at `place` from the next append on.

        Raises `ZeError`: INVALID_ARGUMENT for an unknown index, foreign memory, or too few bytes.
        """
        call = "pfnSetArgumentValue"
        self.check(call)
        arguments = self.meta.arguments
        if not 0 <= index < len(arguments):
            raise error(
                call,
                ZeResult.ERROR_INVALID_ARGUMENT,
                f"graph '{self.meta.name}'",
                f"argument {index}",
                f"0 to {len(arguments) - 1}",
            )
        block, offset = self.context.memory.find(call, place)
        needed = arguments[index].byte_size
        if block.size - offset < needed:
            raise error(
                call,
                ZeResult.ERROR_INVALID_ARGUMENT,
                f"graph '{self.meta.name}', argument '{arguments[index].name}'",
                f"{block.size - offset} bytes of memory",
                f"{needed} bytes at least",
            )
        self._arguments[index] = BoundArgument(block, offset)

    def arguments_now(self, call: str) -> list[BoundArgument]:
        """The places of all arguments; refuses a missing one by name."""
        places = []
        for index, argument in enumerate(self.meta.arguments):
            place = self._arguments.get(index)
            if place is None:
                raise error(
                    call,
                    ZeResult.ERROR_UNINITIALIZED,
                    f"graph '{self.meta.name}', argument {index} '{argument.name}'",
                    "not set",
                    "memory",
                    "call set_argument_value first",
                )
            places.append(place)
        return places


def _destroy(connection: Connection, handle: int, arguments: dict[int, BoundArgument]) -> None:
    arguments.clear()
    if not connection.is_lost():
        connection.request("pfnDestroy", msg.GraphDestroy(graph=handle), msg.Ok)
