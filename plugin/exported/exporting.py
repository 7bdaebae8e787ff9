"""`CompiledModel.export_model`: the driver's blob and the plugin's metadata in one file.

The compiler writes weights straight into a file. Data for another stream passes through a memory file that
frees its pages as they are read, so that the weights are never in memory twice.
"""

from __future__ import annotations

import ctypes
import io
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openvino as ov

from softnpu.driver import Graph, ZeError, ZeResult
from softnpu.emulator.blob import container, kernel_plan
from softnpu.emulator.blob.container import BlobReader
from softnpu.emulator.blob.weights import Placement
from softnpu.emulator.common import linux
from softnpu.emulator.kernels import description as kernel_description
from softnpu.plugin.errors import NpuError, translated
from softnpu.plugin.exported import encryption
from softnpu.plugin.exported import metadata as meta
from softnpu.plugin.exported.compatibility import requirements_of
from softnpu.plugin.exported.metadata import BlobPart, Metadata, WeightsOrigin
from softnpu.plugin.files import regular_file_of, replacing
from softnpu.plugin.loaded_model import LoadedModel
from softnpu.plugin.version import plugin_version

_CHUNK = 16 << 20
_PUNCH_HOLE = 0x03  # FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE
_fallocate = ctypes.CDLL(None, use_errno=True).fallocate
_fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long)


@dataclass(frozen=True)
class _Export:
    """A model and the content of its file: `extra` texts; `weightless` omits constants, `raw` metadata."""

    model: LoadedModel
    extra: Mapping[str, str]
    weightless: bool
    raw: bool

    @property
    def subject(self) -> str:
        return f"model '{self.model.graph.meta.name}', export"


def export_model(model: LoadedModel, extra: Mapping[str, str], target: Any = None) -> io.BytesIO | None:
    """Write the model to `target`, a binary stream or a path; without a target, return a stream.

    `extra` texts are added to the metadata. An existing file is replaced after a complete write, and is
    unchanged after an error. A stream is rewound at the end, as in OpenVINO.
    Raises `NpuError`, and `OSError` if the file cannot be written.
    """
    properties = model.properties
    export = _Export(model, extra, properties["ENABLE_WEIGHTLESS"], properties["NPU_EXPORT_RAW_BLOB"])
    with translated(export.subject, NpuError):
        if target is None:
            stream = io.BytesIO()
            _to_stream(export, stream)
            return stream
        if isinstance(target, str | os.PathLike):
            _to_path(export, Path(target))
        elif (fd := regular_file_of(target, writing=True)) is not None:
            _to_open_file(export, target, fd)
        elif hasattr(target, "write"):
            _to_stream(export, target)
        else:
            raise TypeError(
                f"{export.subject}: {type(target).__name__} given; expected a path or a binary stream"
            )
    return None


def export_entry(model: LoadedModel, extra: Mapping[str, str], weightless: bool, path: Path) -> None:
    """Write the model into a cache file, replacing whatever has that name without following links.

    Raises `NpuError`, and `OSError` if the file cannot be written.
    """
    export = _Export(model, extra, weightless, raw=False)
    with translated(export.subject, NpuError):
        _replace(export, path, 0o644)


def requirements(graph: Graph) -> str:
    """Return RUNTIME_REQUIREMENTS of a compiled model."""
    return requirements_of(BlobReader(graph.get_weightless_blob()[0]))


# ---------------------------------------------------------------- targets


def _to_path(export: _Export, path: Path) -> None:
    path = Path(os.path.realpath(path))
    if path.exists() and not path.is_file():  # a pipe, a device
        with path.open("wb", buffering=0) as stream:
            _to_stream(export, stream)
        return
    _replace(export, path, 0o666)


def _replace(export: _Export, path: Path, mode: int) -> None:
    with replacing(path, mode) as fd:
        _write(export, fd, 0)


def _to_open_file(export: _Export, stream: Any, fd: int) -> None:
    stream.flush()
    begin = stream.tell()
    before = os.fstat(fd).st_size
    try:
        _write(export, fd, begin)
    except BaseException:
        os.ftruncate(fd, before)
        raise
    stream.seek(0)


def _to_stream(export: _Export, stream: Any) -> None:
    fd = linux.memfd("export")
    try:
        length = _write(export, fd, 0)
        for at in range(0, length, _CHUNK):
            size = min(_CHUNK, length - at)
            stream.write(os.pread(fd, size, at))
            _fallocate(fd, _PUNCH_HOLE, at, size)  # on failure the memory is freed at the end
    finally:
        os.close(fd)
    if hasattr(stream, "flush"):
        stream.flush()
    if not hasattr(stream, "seekable") or stream.seekable():
        stream.seek(0)


# ---------------------------------------------------------------- content


def _write(export: _Export, fd: int, begin: int) -> int:
    """Write the whole file from byte `begin` of `fd` on; return its length."""
    callbacks = export.model.properties[encryption.PROPERTY]
    if callbacks is None:
        return _write_plain(export, fd, begin)
    return _put(
        fd, begin, encryption.encrypted(lambda to: _write_plain(export, to, 0), callbacks, export.subject)
    )


def _check_travels(subject: str, reader: BlobReader) -> None:
    """Refuse a model with a kernel that is a function: it does not travel."""
    plan = kernel_plan.read(reader)
    name = "" if plan is None else kernel_description.function_in(plan.modules)
    if name:
        raise NpuError(
            f"{subject}: kernel {name} is a Python function, which does not travel;"
            " expected kernels in WebAssembly. 'softnpu kernel new' begins one"
        )


def _write_plain(export: _Export, fd: int, begin: int) -> int:
    model = export.model
    blob, placement = model.graph.get_weightless_blob()
    reader = BlobReader(blob)
    _check_travels(export.subject, reader)
    reference = reader.weights_reference()
    outside = () if reference is None else reference.outside
    weightless = export.weightless and bool(outside)
    size = _put(fd, begin, blob) if weightless or not outside else _native(model.graph, fd, begin)
    if export.raw:
        return size
    parts = [_part(meta.MAIN, fd, begin, 0, size)]
    end = _pad(fd, begin, size)
    if model.initial is not None:
        more = _native(model.initial, fd, begin + end)
        parts.append(_part(meta.INITIAL, fd, begin, end, more))
        end = _pad(fd, begin, end + more)
    embedded = () if reference is None else [c.offset for c in reference.constants if c.embedded >= 0]
    record = Metadata(
        openvino=ov.get_version(),
        plugin=plugin_version().build_number,
        compiler=model.graph.meta.compiler,
        signature=model.signature,
        properties=model.properties.of_compilation(),
        blobs=tuple(parts),
        requirements=requirements_of(reader),
        embedded=tuple(embedded),
        weights=_origin(model, placement) if weightless else None,
        extra=dict(export.extra),
    )
    return end + _put(fd, begin + end, meta.encode(record, end))


def _part(kind: str, fd: int, begin: int, offset: int, size: int) -> BlobPart:
    head = os.pread(fd, container.HEADER_SIZE, begin + offset)
    return BlobPart(kind=kind, offset=offset, size=size, digest=container.digest_of(head))


def _pad(fd: int, begin: int, size: int) -> int:
    """Write zeros up to the next page; return its offset."""
    end = meta.page_up(size)
    _put(fd, begin + size, bytes(end - size))
    return end


def _origin(model: LoadedModel, placement: Placement | None) -> WeightsOrigin:
    # a model with all weights in memory shares its image and placement with models whose weights are
    # elsewhere
    in_files = any(source.path for source in model.sources)
    offsets = placement.offsets if in_files and placement else ()
    return WeightsOrigin(sources=model.sources, offsets=offsets, model=model.file)


def _native(graph: Graph, fd: int, begin: int) -> int:
    """Have the compiler write the blob with all weights; return its size."""
    try:
        return graph.write_native_binary(fd, begin)
    except ZeError as failure:
        if failure.result != ZeResult.ERROR_UNSUPPORTED_SIZE:
            raise
    # the weights lie in so many files that a message has no room for the target's descriptor
    return _put(fd, begin, graph.get_native_binary2())


def _put(fd: int, begin: int, data: bytes | memoryview) -> int:
    view, at = memoryview(data), begin
    while view:
        done = os.pwrite(fd, view, at)
        view, at = view[done:], at + done
    return len(data)
