"""Where constants of a model may be found: a weights file, or the model itself.

A pool knows names and sizes from a header or an XML, not the content: what it gives is compared with the
digests in the blob by whoever loads it.
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
from blake3 import blake3

from softnpu.driver import GraphSource, WeightFile
from softnpu.driver.process_memory import Piece, gather
from softnpu.emulator.blob.constant_digests import CONSTANT_DIGEST
from softnpu.emulator.blob.weights import SpaceLayout, const_layers
from softnpu.emulator.compiler.constants import constant_nodes
from softnpu.emulator.interface.messages import WeightSource
from softnpu.emulator.interface.result import Refused
from softnpu.plugin.errors import ModelError, NpuError, translated
from softnpu.plugin.openvino_runtime import runtime
from softnpu.plugin.safetensors import ITEM_SIZES, SafetensorsError, tensor_ranges

_CHUNK = 4 << 20
_RAW = {".bin", ".data", ".weights", ""}


@dataclass(frozen=True)
class Entry:
    """One array of numbers: bytes `offset` to `offset + length` of the file `file` of the pool."""

    name: str
    file: int
    offset: int
    length: int


@dataclass
class Pool:
    """Files, whose descriptors belong to the pool, and what is in them. A context manager.

    `name` is for messages. `raw` says that the file is only bytes: where a constant lies has to be known.
    """

    name: str
    fds: list[int] = field(default_factory=list)
    entries: list[Entry] = field(default_factory=list)
    raw: bool = False
    _by_name: dict[str, list[Entry]] = field(default_factory=lambda: defaultdict(list))
    _by_length: dict[int, list[Entry]] = field(default_factory=lambda: defaultdict(list))
    _digests: dict[Entry, bytes] = field(default_factory=dict)

    def add(self, entries: Iterable[Entry]) -> None:
        """More arrays in the files of the pool."""
        for entry in entries:
            self.entries.append(entry)
            self._by_name[_plain(entry.name)].append(entry)
            self._by_length[entry.length].append(entry)

    def named(self, name: str, length: int) -> Entry | None:
        """The array of this name and size, if there is exactly one."""
        found = [entry for entry in self._by_name.get(_plain(name), ()) if entry.length == length]
        return found[0] if len(found) == 1 else None

    def with_digest(self, digest: bytes, length: int) -> Entry | None:
        """An array with this content. Reads those of the same size, once each."""
        return next((each for each in self._by_length.get(length, ()) if self._digest(each) == digest), None)

    def equal(self, data: memoryview, name: str) -> Entry | None:
        """An array with this very content, the one of this name first."""
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
            hasher = blake3(max_threads=blake3.AUTO)
            # read, not mapped: pages of weights that are looked at only once should not stay in this process
            for at in range(entry.offset, entry.offset + entry.length, _CHUNK):
                hasher.update(
                    os.pread(self.fds[entry.file], min(_CHUNK, entry.offset + entry.length - at), at)
                )
            self._digests[entry] = hasher.digest(CONSTANT_DIGEST)
        return self._digests[entry]

    def _view(self, entry: Entry) -> memoryview:
        start = entry.offset - entry.offset % mmap.ALLOCATIONGRANULARITY
        lead = entry.offset - start
        whole = mmap.mmap(self.fds[entry.file], lead + entry.length, prot=mmap.PROT_READ, offset=start)
        return memoryview(whole)[lead:]


def pool_of_file(path: Path) -> Pool:
    """The pool of a weights file: safetensors, the .bin of an IR, or a model that OpenVINO reads.

    Raises `ModelError` for a file that cannot be read as what it is.
    """
    if path.suffix == ".xml":
        path = path.with_suffix(".bin")
    elif path.suffix not in {".safetensors", *_RAW}:
        return pool_of_model(_read(path), f"model {path}")
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
    """The constants of a model in memory: those that are mapped from files by descriptor, copies of others.

    Raises `ModelError` for constants that cannot be had.
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
        _placed(node.name, place, node.length, layout)
        for node, place in zip(nodes, gathered.offsets, strict=True)
    )
    return pool


def pool_of_source(source: GraphSource) -> Pool:
    """The constants of a model on its way to the compiler."""
    xml = os.pread(source.xml_fd, source.xml_length, 0)
    layout = SpaceLayout(source.sources)
    pool = Pool(f"model '{source.name}'", [os.dup(file.fd) for file in source.weights])
    pool.add(
        _placed(unescape(layer.name.decode(errors="replace")), layer.offset, layer.size, layout)
        for layer in const_layers(xml)
        if layer.size and layout.holds(layer.offset, layer.size)
    )
    return pool


def _placed(name: str, place: int, length: int, layout: SpaceLayout) -> Entry:
    """An array at `place` of a weights space."""
    index = max(number for number, start in enumerate(layout.starts) if start <= place)
    return Entry(name, index, place - layout.starts[index] + layout.sources[index].offset, length)


def files_for(pool: Pool, entries: Iterable[Entry]) -> tuple[list[WeightFile], list[int]]:
    """Ranges of the pool's files that hold some arrays, and the offset of each in their weights space."""
    chosen = list(entries)
    begins: dict[int, int] = {}
    ends: dict[int, int] = {}
    for entry in chosen:
        begins[entry.file] = min(entry.offset, begins.get(entry.file, entry.offset))
        ends[entry.file] = max(entry.offset + entry.length, ends.get(entry.file, 0))
    files = [WeightFile(pool.fds[each], begins[each], ends[each] - begins[each]) for each in begins]
    starts = SpaceLayout([WeightSource(offset=file.offset, length=file.length) for file in files]).starts
    start_of = dict(zip(begins, starts, strict=True))
    return files, [start_of[entry.file] + entry.offset - begins[entry.file] for entry in chosen]


def _plain(name: str) -> str:
    """A name without what OpenVINO's PyTorch frontend and its compression put around it."""
    return name.removeprefix("self.").removeprefix("__module.").removesuffix("_compressed")


def _tensors(fd: int, path: Path) -> list[Entry]:
    try:
        places = tensor_ranges(fd)
    except SafetensorsError as failure:
        raise ModelError(f"weights {path}: {failure}; expected a whole safetensors file") from failure
    return [
        Entry(name, 0, place.offset, place.length)
        for name, place in places.items()
        if place.length and not place.offset % ITEM_SIZES[place.dtype]
    ]


def _layers(fd: int, xml: Path) -> list[Entry]:
    """The constants of the IR beside a .bin, if there is one; they may not reach beyond the file."""
    try:
        text = xml.read_bytes()
    except OSError:
        return []
    size = os.fstat(fd).st_size
    return [
        Entry(unescape(layer.name.decode(errors="replace")), 0, layer.offset, layer.size)
        for layer in const_layers(text)
        if layer.size and layer.offset + layer.size <= size
    ]


def _read(path: Path) -> ov.Model:
    if not path.exists():
        raise ModelError(f"weights {path}: no such file; expected weights, or a model that OpenVINO reads")
    try:
        return runtime().read_model(path)
    except RuntimeError as failure:
        lines = [line.strip() for line in str(failure).splitlines() if line.strip()]
        raise ModelError(
            f"weights {path}: OpenVINO cannot read it: {lines[-1] if lines else ''}"
        ) from failure
