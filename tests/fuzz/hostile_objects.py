"""The fuzzer's inputs to the daemon: models, blobs, and every kind of descriptor."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import openvino as ov
from openvino import opset15 as ops

from softnpu.emulator.blob.container import BlobReader, GraphMeta
from softnpu.emulator.common import linux
from softnpu.emulator.interface import messages as msg
from softnpu.emulator.interface.messages import WeightSource
from tests.fuzz.connection import Connection

_HUGETLB = 4
_SPARSE = 1 << 40


@dataclass
class Model:
    """A model: its XML and weights, and its compiled forms: contents, and sealed files."""

    name: str
    xml: bytes
    weights: bytes
    blob: bytes = b""
    placement: bytes = b""
    native: bytes = b""
    xml_fd: int = -1
    weights_fd: int = -1
    blob_fd: int = -1
    placement_fd: int = -1

    @property
    def meta(self) -> GraphMeta:
        return BlobReader(self.blob).metadata()

    @property
    def sources(self) -> tuple[WeightSource, ...]:
        return (WeightSource(offset=0, length=len(self.weights)),) if self.weights else ()

    @property
    def weight_fds(self) -> list[int]:
        return [self.weights_fd] if self.weights else []

    @property
    def import_fds(self) -> list[int]:
        return [self.blob_fd, *([self.placement_fd] if self.placement else []), *self.weight_fds]

    def import_request(self, context: int) -> msg.GraphImport:
        return msg.GraphImport(
            context=context,
            blob_length=len(self.blob),
            placement_length=len(self.placement),
            weights=self.sources,
        )


def _scale() -> ov.Model:
    data = ops.parameter([16], ov.Type.f32, name="data")
    product = ops.multiply(data, ops.constant(np.arange(16, dtype=np.float32), name="factors"))
    product.output(0).set_names({"scaled"})
    return ov.Model([product], [data], "scale")


def _many_dimensions() -> ov.Model:
    data = ops.parameter([1, 2, 1, 2, 1, 2], ov.Type.f32, name="data")
    return ov.Model([ops.relu(data)], [data], "many")


def _dynamic() -> ov.Model:
    data = ops.parameter(ov.PartialShape("[?,1..8]"), ov.Type.f32, name="x")
    data.output(0).set_names({"x"})
    result = ops.relu(data)
    result.output(0).set_names({"y"})
    return ov.Model([result], [data], "dynamic")


def make_models(folder: Path, connection: Connection) -> list[Model]:
    """Make small models with all forms of their blobs, compiled by the connection's daemon."""
    answer, fds = connection.ask(msg.ContextCreate(device=0))
    assert isinstance(answer, msg.ContextCreated)
    os.close(fds[0])
    models = []
    for source in (_scale(), _many_dimensions(), _dynamic()):
        path = folder / f"{source.friendly_name}.xml"
        ov.serialize(source, path)
        model = Model(source.friendly_name, path.read_bytes(), path.with_suffix(".bin").read_bytes())
        model.xml_fd = linux.sealed_copy("xml", model.xml)
        if model.weights:
            model.weights_fd = linux.sealed_copy("weights", model.weights)
        _compile(model, answer.context, connection)
        models.append(model)
    connection.ask(msg.ContextDestroy(context=answer.context))
    return models


def _compile(model: Model, context: int, connection: Connection) -> None:
    request = msg.GraphCreate(
        context=context, name=model.name, xml_length=len(model.xml), weights=model.sources
    )
    created, (fd,) = connection.ask(request, [model.xml_fd, *model.weight_fds])
    assert isinstance(created, msg.GraphCreated), created
    model.blob, model.blob_fd = os.pread(fd, created.blob_length, 0), fd
    told, fds = connection.ask(msg.GraphBlob(graph=created.graph))
    assert isinstance(told, msg.GraphBlobAnswer), told
    if told.placement_length:
        model.placement, model.placement_fd = os.pread(fds[1], told.placement_length, 0), fds[1]
    os.close(fds[0])
    exported, (fd,) = connection.ask(msg.GraphExport(graph=created.graph))
    assert isinstance(exported, msg.GraphExported), exported
    model.native = os.pread(fd, exported.blob_length, 0)
    os.close(fd)


class Descriptors:
    """Descriptors that are invalid in a request, by kind; open until this is closed."""

    def __init__(self, folder: Path) -> None:
        self.by_kind: dict[str, int] = {}
        self._also: list[int] = []
        add = self.by_kind.__setitem__
        reader, writer = os.pipe()
        add("pipe to read", reader)
        add("pipe to write", writer)
        ours, theirs = socket.socketpair()
        add("socket", ours.detach())
        self._also.append(theirs.detach())
        add("directory", os.open(folder, os.O_RDONLY))
        add("device without end", os.open("/dev/zero", os.O_RDWR))
        add("device without content", os.open("/dev/null", os.O_RDWR))
        add("path only", os.open(folder, os.O_PATH))
        add("eventfd", os.eventfd(0, os.EFD_CLOEXEC))
        add("pidfd", os.pidfd_open(os.getpid()))
        add("file of the kernel", os.open("/proc/self/status", os.O_RDONLY))
        full = folder / "full"
        full.write_bytes(bytes(8192))
        add("file", os.open(full, os.O_RDWR))
        add("file to read", os.open(full, os.O_RDONLY))
        add("file to write", os.open(full, os.O_WRONLY))
        (folder / "empty").touch()
        add("empty file", os.open(folder / "empty", os.O_RDWR))
        add("sparse file", os.open(folder / "sparse", os.O_RDWR | os.O_CREAT))
        os.ftruncate(self.by_kind["sparse file"], _SPARSE)
        self._memory_files()

    def _memory_files(self) -> None:
        add = self.by_kind.__setitem__
        add("open memory", linux.memfd("open", 4096))
        add("empty memory", self._sealed(0, linux.SEALS_FIXED_SIZE))
        add("odd memory", self._sealed(4095, linux.SEALS_FIXED_SIZE))
        add("memory of another", self._sealed(8192, linux.SEALS_FIXED_SIZE))
        add("immutable memory", self._sealed(4096, linux.SEALS_IMMUTABLE))
        writable = self._sealed(4096, linux.SEALS_FIXED_SIZE)
        add("memory to read", os.open(f"/proc/self/fd/{writable}", os.O_RDONLY))
        self._also.append(writable)
        add("endless memory", self._sealed(1 << 60, linux.SEALS_FIXED_SIZE))
        try:
            huge = os.memfd_create("huge", os.MFD_ALLOW_SEALING | _HUGETLB)
            os.ftruncate(huge, 1 << 21)
            linux.seal(huge, linux.SEALS_FIXED_SIZE)
        except OSError:
            return  # a kernel without huge pages
        add("memory without pages", huge)

    def _sealed(self, size: int, seals: int) -> int:
        fd = linux.memfd("sealed", size)
        linux.seal(fd, seals)
        return fd

    def close(self) -> None:
        for fd in (*self.by_kind.values(), *self._also):
            os.close(fd)


NO_ROOM = ("immutable memory", "memory to read", "memory without pages", "open memory", "empty memory")
"""Kinds that `mem_import` must refuse: no engine could write to them, or their size may change."""
