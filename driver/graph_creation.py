"""Creation of graphs: compiled from a model, or from a native blob."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import msgspec

from softnpu.driver.build_log import BuildLog, cache_status, failure_text, set_last_log
from softnpu.driver.cache_options import cache_options_from_environment
from softnpu.driver.context_base import ContextBase
from softnpu.driver.errors import ZeError, check_type, error, invalid_argument, invalid_size, null_pointer
from softnpu.driver.graph import Graph
from softnpu.driver.graph_properties import GraphFormat
from softnpu.driver.graph_source import GraphSource, WeightFile
from softnpu.emulator.blob.container import BlobReader
from softnpu.emulator.blob.weights import Placement
from softnpu.emulator.common import linux
from softnpu.emulator.interface import messages as msg
from softnpu.emulator.interface.messages import GraphFlag
from softnpu.emulator.interface.result import Refused, ZeResult

ProgressCallback = Callable[[str, float], None]
_ALL_FLAGS = int(~GraphFlag.NONE)


class GraphDesc(msgspec.Struct, frozen=True):
    """`ze_graph_desc_2_t`, with its optional input hash.

    `input` must not change during the call; None is the null pointer.
    """

    format: int
    input: bytes | bytearray | memoryview | None
    build_flags: str | None = None
    flags: int = 0
    input_hash: int | None = None

    def _view(self, call: str) -> memoryview:
        """Return the input as bytes. INVALID_NULL_POINTER, INVALID_SIZE."""
        if self.input is None:
            raise null_pointer(call, "graph", found="pInput is null", expected="a model")
        view = memoryview(self.input).cast("B")
        if not len(view):
            raise invalid_size(call, "graph", found="inputSize is 0", expected="a model")
        return view


def compile_source(
    context: ContextBase,
    source: GraphSource,
    *,
    config: Mapping[str, str] | None = None,
    shapes: Mapping[str, Sequence[int]] | None = None,
    build_flags: str = "",
    flags: int = 0,
    input_hash: int | None = None,
    cache: msg.CacheOptions | None = None,
    progress: ProgressCallback | None = None,
    call: str = "pfnCreate2",
) -> Graph:
    """Compile `source`; the caller keeps its descriptors.

    `progress(stage, done)` reports progress; if it raises, the compilation is cancelled.
    Raises `ZeError` with the reason when the model cannot be compiled.
    """
    context._check(call)
    check_type(call, "graph source", source, GraphSource)
    request = msg.GraphCreate(
        context=context.handle,
        name=source.name,
        xml_length=source.xml_length,
        weights=source.sources,
        config=dict(config or {}),
        shapes={name: tuple(shape) for name, shape in (shapes or {}).items()},
        build_flags=build_flags,
        flags=flags,
        input_hash=input_hash,
        cache=cache,
        format=source.format,
        must=(msg.FORMAT,) if source.format else (),
    )
    return _request(context, request, source.fds, flags, progress, call)


def refuses_format(failure: ZeError) -> bool:
    """Return whether a model was refused in the format of its source, also by an older daemon."""
    return failure.info.property == msg.FORMAT or failure.info.found == f"required field {msg.FORMAT!r}"


def expect(context: ContextBase, hint: bytes) -> None:
    """Announce that a graph will soon be initialised with `hint`: 32 bytes used for the same graph before.

    The device may start loading it. Only the time changes: the graph is still found by content.
    """
    context._connection.post(msg.GraphExpected(context=context.handle, hint=hint))


def import_blob(
    context: ContextBase,
    blob: bytes | bytearray | memoryview,
    weights: Sequence[WeightFile] = (),
    placement: Placement | Mapping[int, int] | None = None,
    *,
    flags: int = 0,
    deferred: bool = False,
    progress: ProgressCallback | None = None,
    call: str = "pfnCreate2",
) -> Graph:
    """Create a graph from a native blob.

    A blob without its constants needs `weights` (the caller keeps the descriptors) and each constant's offset
    in their space: the placement that came with the blob, or a mapping of canonical offset to offset. By
    default every constant lies at its canonical offset. `deferred` leaves the weights unread until the graph
    is initialised.
    Raises `ZeError`: INVALID_NATIVE_BINARY unless this is a whole blob for this device, INVALID_ARGUMENT for
    wrong weights, naming the first that differs (`deferred`: when it is initialised).
    """
    context._check(call)
    if isinstance(placement, Mapping):
        placement = _placement(blob, placement, call)
    encoded = b"" if placement is None else placement.encode()
    fds = [linux.sealed_copy("native", memoryview(blob))]
    try:
        if encoded:
            fds.append(linux.sealed_copy("placement", encoded))
        request = msg.GraphImport(
            context=context.handle,
            blob_length=len(blob),
            placement_length=len(encoded),
            weights=tuple(msg.WeightSource(offset=file.offset, length=file.length) for file in weights),
            flags=flags,
            deferred=deferred,
        )
        return _request(context, request, [*fds, *(file.fd for file in weights)], flags, progress, call)
    finally:
        for fd in fds:
            os.close(fd)


def create(
    context: ContextBase,
    desc: GraphDesc | None,
    compiler: tuple[int, int],
    *,
    log: BuildLog | None = None,
    progress: ProgressCallback | None = None,
    call: str = "pfnCreate2",
) -> Graph:
    """`pfnCreate`, 2 and 3: create a graph from a descriptor, with the cache of the environment.

    `compiler` is the version reported by the device. `log` is filled in any case; a failure, or the cache
    status, is also kept for the calling thread.
    Raises `ZeError` as the calls above.
    """
    try:
        graph = _create(context, desc, compiler, progress, call)
    except ZeError as failure:
        text = failure_text(failure)
        set_last_log(text)
        if log is not None:
            log._set(text)
        raise
    set_last_log(cache_status(graph.build_log))
    if log is not None:
        log._set(graph.build_log)
    return graph


def _create(
    context: ContextBase,
    desc: GraphDesc | None,
    compiler: tuple[int, int],
    progress: ProgressCallback | None,
    call: str,
) -> Graph:
    if desc is None:
        raise null_pointer(call, "graph", found="desc is null", expected="a description")
    view = desc._view(call)
    if desc.flags < 0 or desc.flags & ~_ALL_FLAGS:
        raise error(
            call,
            ZeResult.ERROR_INVALID_ENUMERATION,
            "graph",
            found=f"flags {desc.flags:#x}",
            expected=f"bits of {_ALL_FLAGS:#x}",
        )
    if desc.format == GraphFormat.NATIVE:
        return import_blob(context, view, flags=desc.flags, progress=progress, call=call)
    if desc.format != GraphFormat.NGRAPH_LITE:
        raise invalid_argument(
            call,
            "graph",
            found=f"format {desc.format}",
            expected=" or ".join(f"{form.value} ({form.name})" for form in GraphFormat),
        )
    from softnpu.driver import serialized

    with serialized.parse(view, compiler, call) as source:
        return compile_source(
            context,
            source,
            build_flags=desc.build_flags or "",
            flags=desc.flags,
            input_hash=desc.input_hash,
            cache=cache_options_from_environment(os.environ),
            progress=progress,
            call=call,
        )


def _request(
    context: ContextBase,
    request: msg.GraphCreate | msg.GraphImport,
    fds: Sequence[int],
    flags: int,
    progress: ProgressCallback | None,
    call: str,
) -> Graph:
    report = None if progress is None else lambda event: progress(event.stage, event.done)
    connection = context._connection

    def on_late_answer(answer: msg.Answer, blobs: list[int]) -> None:
        """Destroy a graph whose caller has left."""
        for fd in blobs:
            os.close(fd)
        if isinstance(answer, msg.GraphCreated):
            connection.defer(partial(connection.post, msg.GraphDestroy(graph=answer.graph)))

    created, (blob,) = connection.request(call, request, msg.GraphCreated, fds, report, on_late_answer)
    return Graph(context, created, blob, GraphFlag(flags & _ALL_FLAGS))


def _placement(blob: bytes | bytearray | memoryview, offsets: Mapping[int, int], call: str) -> Placement:
    try:
        reference = BlobReader(memoryview(blob).cast("B")).weights_reference()
    except Refused as refused:
        raise ZeError(call, refused.info) from refused
    outside = reference.outside if reference is not None else ()
    missing = next((constant for constant in outside if constant.offset not in offsets), None)
    if missing is not None:
        raise invalid_argument(
            call,
            f"blob, constant '{missing.name}'",
            found=f"canonical offset {missing.offset} is not in the placement",
            expected="an offset for every constant outside of the blob",
        )
    return Placement(offsets=tuple(offsets[constant.offset] for constant in outside))
