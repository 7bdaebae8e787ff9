"""The compiled-model container ("blob"): a header, a table of sections, the sections, each on a page.

The first page tells an inspector everything about the model. A reader accepts the same major and a minor up
to its own; a section of an unknown type is skipped unless flag 1 (required) is set.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TypeVar

import msgspec
from blake3 import blake3

from softnpu.emulator.interface.layout import Layout
from softnpu.emulator.interface.records import PAGE
from softnpu.emulator.interface.result import Refused, ZeResult, refuse

MAGIC = b"SNPUBLOB"
_ELF = b"\x7fELF"
MAJOR = 1
MINOR = 3
HEADER_LAYOUT = Layout(
    """
    magic       char[8]
    major       u16
    minor       u16
    sections    u32  # how many
    total_size  u64
    reserved    8
    digest      u8[32]  # blake3 of header and table, with this field zero
    """
)
_HEADER = HEADER_LAYOUT.struct
ENTRY_LAYOUT = Layout(
    """
    type      u32
    flags     u32
    offset    u64  # from the start of the blob
    size      u64
    reserved  8
    digest    u8[32]  # blake3 of the section
    """
)
_ENTRY = ENTRY_LAYOUT.struct
HEADER_SIZE = _HEADER.size
REQUIRED = 1
"""The flag of a section that a reader must know."""
MAX_SECTIONS = 32

SECURE = "NPU_SECURE_COMPILE"
"""The property of a model that no engine may keep on disk."""
READ_VALUE = "vpux_ie_read_value_"
"""Prefix of an input that is the state of a variable; its id follows."""
ASSIGN = "vpux_ie_assign_"
"""Prefix of an output that is the new value of a variable."""
SHAPE_TENSOR = "vpux_ie_shape_"
"""Prefix of an argument that holds the shape of one with dynamic dimensions."""

S = TypeVar("S")


class Section(enum.IntEnum):
    """The types of sections."""

    METADATA = 1  # msgpack of GraphMeta
    IR = 2  # OpenVINO IR, the XML
    WEIGHTS = 3  # the constants inside the blob
    WEIGHTS_REFERENCE = 4  # msgpack of WeightsReference: all constants of the IR
    KERNELS = 5  # msgpack of KernelPlan: own kernels and how they take part, only if there are any


_ORDER = [
    Section.METADATA, Section.WEIGHTS, Section.IR, Section.WEIGHTS_REFERENCE, Section.KERNELS,
]  # fmt: skip
"""The order of the compiler: it writes constants while the IR is not yet known."""


def in_order(sections: Mapping[Section, S]) -> dict[Section, S]:
    """Return sections in the compiler's order: an exported blob, stripped, is the one that it made."""
    return {section: sections[section] for section in sorted(sections, key=_ORDER.index)}


class ArgumentMeta(msgspec.Struct, frozen=True, kw_only=True):
    """One input or output. `shape` in elements, `byte_size` in bytes; dense, row-major.

    `friendly_name` is that of the input or of the result itself. `node_name` is Level Zero's name of the
    argument: the operation that computes its value, `name.1` for the second of several results. `model_shape`
    is the one before shapes were applied (but after build flags), -1 for a dynamic dimension, empty for a
    dynamic rank. `strides` says that an execution may give strides.

    With dynamic dimensions `partial_shape` has their bounds as OpenVINO writes them (`[1..8,?,64]`), `shape`
    and `byte_size` are the largest, or without a largest (`unbounded`) the smallest with 1 for 0. The
    argument that has its index as `shape_of` holds its shape at an execution: i32, innermost dimension first.
    """

    name: str
    names: tuple[str, ...]
    input: bool
    element_type: str
    shape: tuple[int, ...]
    layout: str
    byte_size: int
    friendly_name: str = ""
    node_name: str = ""
    model_shape: tuple[int, ...] = ()
    strides: bool = False
    partial_shape: str = ""
    unbounded: bool = False
    shape_of: int = -1

    @property
    def is_dynamic(self) -> bool:
        """Whether each execution sets its shape."""
        return bool(self.partial_shape)

    @property
    def alignment(self) -> int:
        """The required alignment in bytes: the size of one element."""
        elements = math.prod(self.shape)
        return max(1, self.byte_size // elements) if elements else 1


class StateMeta(msgspec.Struct, frozen=True, kw_only=True):
    """One variable. An execution writes to argument `output` what the next one reads from argument `input`.

    At first, and after a reset, `input` holds the bytes of `initial`, repeated. If `initial` is empty, the
    graph made with `NPU_STATES_INIT` has to compute it. `element_type` is that of the model's variable if the
    arguments have another one.
    """

    variable: str
    input: int
    output: int
    initial: bytes = b""
    element_type: str = ""


class GraphMeta(msgspec.Struct, frozen=True, kw_only=True):
    """The driver's description of a compiled model. Arguments: all inputs, then all outputs.

    The inputs and outputs of `states` are ordinary arguments, after those of the model.
    """

    name: str
    platform: str
    precision: str
    config: dict[str, str]
    arguments: tuple[ArgumentMeta, ...]
    operations: int
    openvino: str
    compiler: str
    states: tuple[StateMeta, ...] = ()

    @property
    def inputs(self) -> tuple[ArgumentMeta, ...]:
        return tuple(argument for argument in self.arguments if argument.input)

    @property
    def outputs(self) -> tuple[ArgumentMeta, ...]:
        return tuple(argument for argument in self.arguments if not argument.input)

    @property
    def dynamic_states(self) -> frozenset[int]:
        """The arguments that are states with a changing shape; all states of a graph, or none."""
        return frozenset(
            index
            for state in self.states
            for index in (state.input, state.output)
            if self.arguments[index].is_dynamic
        )

    @property
    def shape_tensors(self) -> dict[int, int]:
        """For each argument with dynamic dimensions the one that holds its shape, both by index."""
        return {
            argument.shape_of: index
            for index, argument in enumerate(self.arguments)
            if argument.shape_of >= 0
        }


class ConstantReference(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One constant. `offset` is its canonical offset in the IR, `digest` the first 16 bytes of blake3.

    `embedded` is its offset in the WEIGHTS section; -1: it is not in the blob. `name` is that of the first
    layer with this content.
    """

    name: str
    offset: int
    length: int
    digest: bytes
    embedded: int = -1


class WeightsReference(msgspec.Struct, frozen=True, kw_only=True):
    """The constants of the IR without duplicates, and their total bytes at canonical offsets."""

    size: int
    constants: tuple[ConstantReference, ...]

    @property
    def outside(self) -> tuple[ConstantReference, ...]:
        """Those outside the blob."""
        return tuple(constant for constant in self.constants if constant.embedded < 0)


Chunks = Iterable[bytes | memoryview]


def pack(sections: Mapping[Section, bytes | memoryview]) -> bytes:
    """Return a blob with these sections; the metadata is placed first."""
    return b"".join(parts_of({section: [data] for section, data in sections.items()}))


def parts_of(
    sections: Mapping[Section, Sequence[bytes | memoryview]], digests: Mapping[Section, bytes] | None = None
) -> list[bytes | memoryview]:
    """Return a blob with these sections, each in parts that are not copied; `digests`: those known."""
    parts: list[bytes | memoryview] = []
    contents = {section: (sum(map(len, data)), partial(iter, data)) for section, data in sections.items()}
    write(contents, parts.append, digests)
    return parts


def second_at(count: int, metadata: int) -> int:
    """Return where the second section begins, of a blob with `count` and this many bytes of metadata."""
    return _page_up(_page_up(_HEADER.size + count * _ENTRY.size) + metadata)


def write(
    sections: Mapping[Section, tuple[int, Callable[[], Chunks]]],
    put: Callable[[bytes | memoryview], object],
    digests: Mapping[Section, bytes] | None = None,
) -> int:
    """Write a blob piece by piece with `put`; return its size.

    A section is its size and a function that yields its content in chunks; the function is called twice, for
    the checksum and for the content, so only one chunk needs to be in memory. `digests` has the checksums
    that are known.
    """
    order = sorted(sections, key=lambda section: section != Section.METADATA)
    table_end = _HEADER.size + len(order) * _ENTRY.size
    offset = _page_up(table_end)
    entries, offsets, total = [], [], offset
    for section in order:
        size, chunks = sections[section]
        digest = (digests or {}).get(section) or digest_of_chunks(chunks())
        entries.append(_ENTRY.pack(section, REQUIRED, offset, size, digest))
        offsets.append(offset)
        total = offset + size
        offset = _page_up(total)
    table = b"".join(entries)
    digest = blake3(_header(len(order), total, bytes(32)) + table).digest()
    put(_header(len(order), total, digest) + table)
    at = table_end
    for section, offset in zip(order, offsets, strict=True):
        size, chunks = sections[section]
        put(bytes(offset - at))
        for chunk in chunks():
            put(chunk)
        at = offset + size
    return total


def digest_of_chunks(chunks: Chunks) -> bytes:
    """Return the checksum of a section."""
    hasher = blake3(max_threads=blake3.AUTO)
    for chunk in chunks:
        hasher.update(chunk)
    return hasher.digest()


class BlobReader:
    """Checked access to the sections of a blob in memory.

    Raises `Refused` with `ERROR_INVALID_NATIVE_BINARY`, naming the field, unless it is a whole, unchanged
    blob of a readable version. Section checksums are checked when a section is read.
    """

    def __init__(self, data: bytes | memoryview) -> None:
        self._data = memoryview(data)
        self._entries = _check(self._data)

    @property
    def data(self) -> memoryview:
        """The whole blob."""
        return self._data

    @property
    def sections(self) -> Sequence[tuple[int, int, int]]:
        """Type, offset and size of every section."""
        return [(kind, offset, size) for kind, (offset, size, _) in self._entries.items()]

    def has(self, section: Section) -> bool:
        """Return whether the blob has this section."""
        return section in self._entries

    def read(self, section: Section) -> memoryview:
        """Return the bytes of a section, without a copy."""
        entry = self._entries.get(section)
        if entry is None:
            raise _malformed(f"section {section.name}", found="missing", expected="present")
        offset, size, digest = entry
        data = self._data[offset : offset + size]
        if digest_of_chunks([data]) != digest:
            raise _malformed(
                f"section {section.name}", found="checksum differs", expected="the content that was written"
            )
        return data

    def unchecked(self, section: Section) -> memoryview:
        """Return the bytes of a section without checking its digest: for partial reads of a large one."""
        offset, size, _ = self._entries[section]
        return self._data[offset : offset + size]

    def extent(self, section: Section) -> tuple[int, int] | None:
        """Return offset and size of a section, unchecked but inside the blob; None when it is missing."""
        entry = self._entries.get(section)
        return None if entry is None else entry[:2]

    def metadata(self) -> GraphMeta:
        """Return the decoded metadata section."""
        return _decoded(self.read(Section.METADATA), GraphMeta, Section.METADATA)

    def weights_reference(self) -> WeightsReference | None:
        """Return the constants of the IR; None if there are none."""
        if not self.has(Section.WEIGHTS_REFERENCE):
            return None
        return _decoded(self.read(Section.WEIGHTS_REFERENCE), WeightsReference, Section.WEIGHTS_REFERENCE)


def unpadded_size(head: bytes, length: int) -> int:
    """Return a blob's own size if its file of `length` bytes is merely that, padded to whole pages.

    Programs store blobs in whole pages. Anything else: return `length`, and the reader refuses it. The caller
    checks that the padding is zero.
    """
    if len(head) < _HEADER.size or head[: len(MAGIC)] != MAGIC:
        return length
    total: int = _HEADER.unpack_from(head)[4]
    return total if total < length == _page_up(total) else length


def size_of(head: bytes) -> int | None:
    """Return a blob's size from its first `HEADER_SIZE` bytes, unchecked; None if it is not a blob."""
    if len(head) < _HEADER.size or head[: len(MAGIC)] != MAGIC:
        return None
    return int(_HEADER.unpack_from(head)[4])


def digest_of(head: bytes) -> bytes:
    """Return the digest in a blob's first `HEADER_SIZE` bytes: of header and table, hence of all sections."""
    return bytes(_HEADER.unpack_from(head)[5])


def version_of(head: bytes) -> tuple[int, int]:
    """Return major and minor from a blob's first `HEADER_SIZE` bytes."""
    _, major, minor, *_ = _HEADER.unpack_from(head)
    return int(major), int(minor)


def _header(count: int, total: int, digest: bytes) -> bytes:
    return _HEADER.pack(MAGIC, MAJOR, MINOR, count, total, digest)


def _page_up(size: int) -> int:
    return -(-size // PAGE) * PAGE


def _check(data: memoryview) -> dict[int, tuple[int, int, bytes]]:
    if len(data) < _HEADER.size:
        raise _malformed("header", found=f"{len(data)} bytes", expected=f"{_HEADER.size} at least")
    magic, major, minor, count, total, digest = _HEADER.unpack_from(data)
    if magic.startswith(_ELF):
        raise _malformed(
            "format",
            found="an ELF file, as Intel's NPU compiler makes it for the real device",
            expected="a blob of softnpu's compiler",
            hint="compile the model under 'softnpu run', which takes the place of the compiler beside"
            " OpenVINO, or with NPU_COMPILER_TYPE=DRIVER; import only blobs that softnpu has made",
        )
    if magic != MAGIC:
        raise _malformed("magic", found=f"{bytes(magic)!r}", expected=f"{MAGIC!r}")
    if major != MAJOR or minor > MINOR:
        raise _malformed(
            "version",
            found=f"{major}.{minor}",
            expected=f"{MAJOR}.0 to {MAJOR}.{MINOR}",
            hint="compile the model again",
        )
    if total != len(data):
        raise _malformed("total size", found=f"{total}, file has {len(data)}", expected="equal sizes")
    table_end = _HEADER.size + count * _ENTRY.size
    if not 0 < count <= MAX_SECTIONS or table_end > len(data):
        raise _malformed(
            "section count", found=f"{count}", expected=f"1 to {MAX_SECTIONS}, all inside the blob"
        )
    bare = _HEADER.pack(magic, major, minor, count, total, bytes(32)) + data[_HEADER.size : table_end]
    # packing zeroes the reserved bytes, so they are compared before the digest
    if bytes(data[:32]) != bare[:32] or blake3(bare).digest() != digest:
        raise _malformed("header checksum", found="differs", expected="the header that was written")
    return _entries(data, count, table_end)


def _entries(data: memoryview, count: int, end: int) -> dict[int, tuple[int, int, bytes]]:
    entries: dict[int, tuple[int, int, bytes]] = {}
    known = {int(section) for section in Section}
    for index in range(count):
        at = _HEADER.size + index * _ENTRY.size
        kind, flags, offset, size, digest = _ENTRY.unpack_from(data, at)
        name = f"section {index}"
        if offset != _page_up(end) or offset + size > len(data):
            raise _malformed(
                name,
                found=f"bytes {offset} to {offset + size}",
                expected=f"the page at {_page_up(end)}, inside the blob",
            )
        if data[end:offset] != bytes(offset - end):
            raise _malformed(name, found="padding before it is not zero", expected="zeros")
        if kind in entries or (index == 0) != (kind == Section.METADATA):
            raise _malformed(name, found=f"type {kind}", expected="the metadata first, and each type once")
        end = offset + size
        if kind in known:
            entries[kind] = (offset, size, digest)
        elif flags & REQUIRED:
            raise _malformed(name, found=f"required type {kind}", expected="a type that this version knows")
    if end != len(data):
        raise _malformed("end", found=f"{len(data) - end} bytes after the last section", expected="none")
    return entries


def _decoded(data: memoryview, kind: type[S], section: Section) -> S:
    try:
        return msgspec.msgpack.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _malformed(
            f"section {section.name}", found=str(error), expected=f"a {kind.__name__}"
        ) from error


def _malformed(field: str, found: str, expected: str, hint: str = "") -> Refused:
    return refuse(
        ZeResult.ERROR_INVALID_NATIVE_BINARY, f"blob, {field}", found=found, expected=expected, hint=hint
    )
