"""Pools of constants, for looking up those of an exported model: a weights file, or a model.

A pool has names and sizes from a header or an XML, not the content: the device checks that against the
digests in the blob when it loads the model.
"""

from __future__ import annotations

import mmap
import os
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from html import unescape
from pathlib import Path

import openvino as ov

from softnpu.driver import GraphSource, WeightFile
from softnpu.driver.process_memory import Piece, gather
from softnpu.emulator.blob.constant_digests import CONSTANT_DIGEST
from softnpu.emulator.blob.weights import SpaceLayout, const_layers
from softnpu.emulator.common import model_texts
from softnpu.emulator.compiler.constants import constant_nodes
from softnpu.emulator.interface.messages import WeightSource
from softnpu.emulator.interface.result import Refused
from softnpu.plugin.errors import ModelError, NpuError, translated
from softnpu.plugin.files import digest_of_range
from softnpu.plugin.models.safetensors import ITEM_SIZES, SafetensorsError, tensor_ranges
from softnpu.plugin.openvino_runtime import read_model

_RAW = {".bin", ".data", ".weights", ""}


@dataclass(frozen=True)
class Entry:
    """One constant: bytes `offset` to `offset + length` of the file with index `file`."""

    name: str
    file: int
    offset: int
    length: int


@dataclass
class Pool:
    """Constants in files, whose descriptors belong to the pool. A context manager.

    `name` is for messages. `raw`: the file has no header, so only recorded offsets locate all constants.
    """

    name: str
    fds: list[int] = field(default_factory=list)
    entries: list[Entry] = field(default_factory=list)
    raw: bool = False
    _by_name: dict[str, list[Entry]] = field(default_factory=lambda: defaultdict(list))
    _by_length: dict[int, list[Entry]] = field(default_factory=lambda: defaultdict(list))
    _digests: dict[Entry, bytes] = field(default_factory=dict)

    def add(self, entries: Iterable[Entry]) -> None:
        """Add constants in the files of the pool."""
        for entry in entries:
            self.entries.append(entry)
            self._by_name[_plain(entry.name)].append(entry)
            self._by_length[entry.length].append(entry)

    def named(self, name: str, length: int) -> Entry | None:
        """Return the constant with this name and size, if there is exactly one."""
        matches = [entry for entry in self._by_name.get(_plain(name), ()) if entry.length == length]
        return matches[0] if len(matches) == 1 else None

    def with_digest(self, digest: bytes, length: int) -> Entry | None:
        """Return a constant with this content. Reads those of the same size, once each."""
        return next((each for each in self._by_length.get(length, ()) if self._digest(each) == digest), None)

    def equal(self, data: memoryview, name: str) -> Entry | None:
        """Return a constant with exactly this content, preferably with this name."""
        first = self.named(name, len(data))
        others = self._by_length.get(len(data), ())
        candidates = [*([first] if first else []), *others]
        return next((entry for entry in candidates if self._view(entry) == data), None)

    def close(self) -> None:
        for fd in self.fds:
            os.close(fd)
        self.fds.clear()

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _digest(self, entry: Entry) -> bytes:
        if entry not in self._digests:
            fd = self.fds[entry.file]
            self._digests[entry] = digest_of_range(fd, entry.offset, entry.length, CONSTANT_DIGEST)
        return self._digests[entry]

    def _view(self, entry: Entry) -> memoryview:
        start = entry.offset - entry.offset % mmap.ALLOCATIONGRANULARITY
        lead = entry.offset - start
        whole = mmap.mmap(self.fds[entry.file], lead + entry.length, prot=mmap.PROT_READ, offset=start)
        return memoryview(whole)[lead:]


def pool_of_file(path: Path) -> Pool:
    """Return the pool of a weights file: safetensors, the .bin of an IR, or a model that OpenVINO reads.

    Raises `ModelError` for an unreadable or invalid file.
    """
    if path.suffix == ".xml":
        path = path.with_suffix(".bin")
    elif path.suffix not in {".safetensors", *_RAW}:
        return pool_of_model(read_model(path), f"model {path}")
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError as failure:
        raise ModelError(f"weights {path}: {failure.strerror}; expected a readable file") from failure
    pool = Pool(f"weights {path}", [fd])
    try:
        if path.suffix == ".safetensors":
            pool.add(_tensors(fd, path))
        else:
            pool.raw = True
            pool.add(_layers(fd, path.with_suffix(".xml")))
    except BaseException:
        pool.close()
        raise
    return pool


def pool_of_model(model: ov.Model, name: str) -> Pool:
    """Return the constants of a model in memory: by descriptor if they are mapped from files, else copied.

    Raises `ModelError` for constants of strings.
    """
    try:
        # as the compiler gets it: a Pad without a value gets a constant when it is copied
        cloned = model.clone()
        nodes = [node for node in constant_nodes(cloned, name) if node.length]
    except Refused as refused:
        raise ModelError(str(refused.info)) from refused
    with translated(name, NpuError):
        gathered = gather([Piece(node.name, node.address, node.length) for node in nodes], "pfnCreate2")
    sources = [WeightSource(offset=file.offset, length=file.length) for file in gathered.files]
    pool = Pool(name, [file.fd for file in gathered.files])
    layout = SpaceLayout(sources)
    pool.add(
        _entry_at(node.name, offset, node.length, layout)
        for node, offset in zip(nodes, gathered.offsets, strict=True)
    )
    return pool


def pool_of_source(source: GraphSource) -> Pool:
    """Return the constants of a model that is being compiled."""
    xml = os.pread(source.xml_fd, source.xml_length, 0)
    layout = SpaceLayout(source.sources)
    pool = Pool(f"model '{source.name}'", [os.dup(file.fd) for file in source.weights])
    pool.add(
        _entry_at(unescape(model_texts.text(layer.name)), layer.offset, layer.size, layout)
        for layer in const_layers(xml)
        if layer.size and layout.holds(layer.offset, layer.size)
    )
    return pool


def _entry_at(name: str, offset: int, length: int, layout: SpaceLayout) -> Entry:
    """Return a constant at `offset` in a weights space."""
    index = max(number for number, start in enumerate(layout.starts) if start <= offset)
    return Entry(name, index, offset - layout.starts[index] + layout.sources[index].offset, length)


def files_for(pool: Pool, entries: Iterable[Entry]) -> tuple[list[WeightFile], list[int]]:
    """Return ranges of the pool's files with these constants, and their offsets in the weights space."""
    entries = list(entries)
    begins: dict[int, int] = {}
    ends: dict[int, int] = {}
    for entry in entries:
        begins[entry.file] = min(entry.offset, begins.get(entry.file, entry.offset))
        ends[entry.file] = max(entry.offset + entry.length, ends.get(entry.file, 0))
    files = [WeightFile(pool.fds[file], begins[file], ends[file] - begins[file]) for file in begins]
    starts = SpaceLayout([WeightSource(offset=file.offset, length=file.length) for file in files]).starts
    start_of = dict(zip(begins, starts, strict=True))
    return files, [start_of[entry.file] + entry.offset - begins[entry.file] for entry in entries]


def _plain(name: str) -> str:
    """Return a name without the prefixes and suffixes of OpenVINO's PyTorch frontend and compression."""
    return name.removeprefix("self.").removeprefix("__module.").removesuffix("_compressed")


def _tensors(fd: int, path: Path) -> list[Entry]:
    try:
        tensors = tensor_ranges(fd)
    except SafetensorsError as failure:
        raise ModelError(f"weights {path}: {failure}; expected a whole safetensors file") from failure
    return [
        Entry(name, 0, tensor.offset, tensor.length)
        for name, tensor in tensors.items()
        if tensor.length and not tensor.offset % ITEM_SIZES[tensor.dtype]
    ]


def _layers(fd: int, xml: Path) -> list[Entry]:
    """Return the constants of a .bin's IR, if it exists; those beyond the file are omitted."""
    try:
        text = xml.read_bytes()
    except OSError:
        return []
    size = os.fstat(fd).st_size
    return [
        Entry(unescape(model_texts.text(layer.name)), 0, layer.offset, layer.size)
        for layer in const_layers(text)
        if layer.size and layer.offset + layer.size <= size
    ]
