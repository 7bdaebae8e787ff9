"""The compiled-model container: its bytes, its versions, and detection of all damage."""

from __future__ import annotations

import contextlib
import json
import struct
from pathlib import Path
from typing import Any

import msgspec
import pytest
from blake3 import blake3
from hypothesis import given, settings
from hypothesis import strategies as st

from softnpu.emulator.blob import container
from softnpu.emulator.blob.container import BlobReader, GraphMeta, Section, WeightsReference
from softnpu.emulator.interface.result import Refused, ZeResult

pytestmark = pytest.mark.quick

_VECTORS: dict[str, Any] = json.loads((Path(__file__).parent / "vectors.json").read_text())
_HEADER_SIZE = _ENTRY_SIZE = 64


def _frozen(name: str = "blob") -> bytes:
    data = bytearray(_VECTORS[name]["size"])
    for offset, text in _VECTORS[name]["pieces"].items():
        piece = bytes.fromhex(text)
        data[int(offset) : int(offset) + len(piece)] = piece
    return bytes(data)


_BLOB = _frozen()
_SECTIONS = {
    section: bytes(BlobReader(_BLOB).read(section)) for section in Section if BlobReader(_BLOB).has(section)
}
_META = BlobReader(_BLOB).metadata()
_REFERENCE = BlobReader(_BLOB).weights_reference()


def _refusal(data: bytes) -> Refused:
    with pytest.raises(Refused) as caught:
        BlobReader(data)
    assert caught.value.info.result == ZeResult.ERROR_INVALID_NATIVE_BINARY
    return caught.value


def _resealed(data: bytes | bytearray) -> bytes:
    """Return the blob with a valid header checksum, as an attacker or a newer writer would make it."""
    changed = bytearray(data)
    count = struct.unpack_from("<I", changed, 12)[0]
    table_end = min(_HEADER_SIZE + count * _ENTRY_SIZE, len(changed))
    changed[32:64] = bytes(32)
    changed[32:64] = blake3(bytes(changed[:table_end])).digest()
    return bytes(changed)


def _changed(at: int, layout: str, *values: int) -> bytes:
    data = bytearray(_BLOB)
    struct.pack_into(layout, data, at, *values)
    return _resealed(data)


def _sections_of(reader: BlobReader) -> dict[Section, bytes]:
    return {section: bytes(reader.read(section)) for section in Section if BlobReader(_BLOB).has(section)}


def test_a_blob_keeps_its_bytes_field_by_field() -> None:
    assert container.pack(_SECTIONS) == _BLOB
    for section, record, cls in (
        (Section.METADATA, _META, GraphMeta),
        (Section.WEIGHTS_REFERENCE, _REFERENCE, WeightsReference),
    ):
        assert msgspec.msgpack.encode(record) == _SECTIONS[section]
        plain = msgspec.msgpack.decode(_SECTIONS[section])
        assert plain.keys() == {field.name for field in msgspec.structs.fields(cls)}
        for name, value in plain.items():
            assert msgspec.msgpack.decode(msgspec.msgpack.encode(getattr(record, name))) == value, name


@pytest.mark.parametrize("minor", [0, 1])
def test_blobs_of_earlier_versions_are_still_read(minor: int) -> None:
    # 1.0 has neither states nor dynamic dimensions, 1.1 no names of operations
    reader = BlobReader(_frozen(f"blob 1.{minor}"))
    arguments = tuple(msgspec.structs.replace(argument, node_name="") for argument in _META.arguments)
    states = _META.states if minor else ()
    assert reader.metadata() == msgspec.structs.replace(_META, arguments=arguments, states=states)
    assert _sections_of(reader) | {Section.METADATA: b""} == _SECTIONS | {Section.METADATA: b""}


def test_the_metadata_comes_first_and_every_section_starts_on_a_page() -> None:
    sections = BlobReader(_BLOB).sections
    assert sections[0][:2] == (Section.METADATA, 4096)
    assert all(offset % 4096 == 0 for _, offset, _ in sections)


def test_sections_are_read_without_a_copy() -> None:
    shared = bytearray(_BLOB)
    data = BlobReader(memoryview(shared)).read(Section.IR)
    shared[shared.index(b"<net/>")] = ord("[")
    assert bytes(data) == b"[net/>"


def test_an_argument_starts_at_a_multiple_of_its_element() -> None:
    for shape, byte_size, alignment in (
        ((1, 2), 8, 4),
        ((), 8, 8),
        ((3,), 3, 1),
        ((16,), 8, 1),
        ((2, 0), 0, 1),
    ):
        argument = msgspec.structs.replace(_META.arguments[0], shape=shape, byte_size=byte_size)
        assert argument.alignment == alignment
    assert [argument.name for argument in _META.inputs + _META.outputs] == ["image", "result"]


def test_a_missing_section_is_refused_by_name_and_an_empty_one_is_kept() -> None:
    reader = BlobReader(container.pack({Section.METADATA: _SECTIONS[Section.METADATA], Section.IR: b""}))
    assert bytes(reader.read(Section.IR)) == b""
    assert not reader.has(Section.WEIGHTS)
    assert reader.weights_reference() is None
    with pytest.raises(Refused, match="section WEIGHTS: missing"):
        reader.read(Section.WEIGHTS)


@pytest.mark.parametrize(("major", "minor"), [(0, 0), (2, 0), (1, 3), (1, 0xFFFF)])
def test_another_version_is_refused_with_both_versions(major: int, minor: int) -> None:
    error = _refusal(_changed(8, "<HH", major, minor))
    assert (error.info.found, error.info.expected) == (f"{major}.{minor}", "1.0 to 1.2")


@pytest.mark.parametrize(
    ("data", "field"),
    [
        (b"", "header"),
        (_BLOB[:63], "header"),
        (b"GNPUBLOB" + _BLOB[8:], "magic"),
        (_BLOB[:-1], "total size"),
        (_BLOB + b"\0", "total size"),
        (_changed(16, "<Q", 2**64 - 1), "total size"),
        (_changed(12, "<I", 0), "section count"),
        (_changed(12, "<I", 33), "section count"),
        (_changed(12, "<I", 2**32 - 1), "section count"),
        (_changed(24, "<Q", 1), "header checksum"),
    ],
)
def test_a_bad_header_is_refused_by_field(data: bytes, field: str) -> None:
    assert _refusal(data).info.object == f"blob, {field}"


def test_an_overlapping_or_out_of_bounds_section_is_refused() -> None:
    wrong = [(0, 10), (4097, 10), (4096, 4097), (4096, 2**64 - 1), (2**64 - 4096, 4096), (4096 * 1000, 0)]
    for offset, size in wrong:
        assert "section" in _refusal(_changed(_HEADER_SIZE + 8, "<QQ", offset, size)).info.object
    last = _HEADER_SIZE + (len(_SECTIONS) - 1) * _ENTRY_SIZE
    _, offset, size = BlobReader(_BLOB).sections[-1]
    assert offset + size == len(_BLOB)
    assert "section 3" in _refusal(_changed(last + 16, "<Q", size + 1)).info.object


def test_an_unknown_section_is_skipped_and_an_unknown_required_one_is_refused() -> None:
    entry = _HEADER_SIZE + 2 * _ENTRY_SIZE
    reader = BlobReader(_changed(entry, "<II", 77, 0))
    assert reader.metadata() == _META
    assert len(reader.sections) == 3
    assert "required type 77" in _refusal(_changed(entry, "<II", 77, 1)).info.found


def test_metadata_may_have_more_fields_but_no_other_structure() -> None:
    plain = msgspec.msgpack.decode(_SECTIONS[Section.METADATA])
    newer = msgspec.msgpack.encode(plain | {"colour": "red"})
    assert BlobReader(container.pack({Section.METADATA: newer})).metadata() == _META
    for other in (b"", msgspec.msgpack.encode({"name": 1})):
        with pytest.raises(Refused, match="section METADATA") as caught:
            BlobReader(container.pack({Section.METADATA: other})).metadata()
        assert "GraphMeta" in caught.value.info.expected


def test_every_flipped_bit_in_header_table_and_sections_is_noticed() -> None:
    positions = set(range(_HEADER_SIZE + len(_SECTIONS) * _ENTRY_SIZE))
    for _, offset, size in BlobReader(_BLOB).sections:
        positions |= set(range(offset, offset + size))
    for at in sorted(positions):
        damaged = bytearray(_BLOB)
        damaged[at] ^= 0x80 if at % 2 else 0x01
        with pytest.raises(Refused):
            _sections_of(BlobReader(bytes(damaged)))


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 319), st.integers(0, 255)), min_size=1, max_size=6),
    st.integers(0, len(_BLOB)),
)
def test_a_forged_header_with_a_valid_checksum_never_reads_outside(
    changes: list[tuple[int, int]], length: int
) -> None:
    data = bytearray(_BLOB)
    for at, value in changes:
        data[at] = value
    if length >= _HEADER_SIZE:
        struct.pack_into("<Q", data, 16, length)
        data = bytearray(_resealed(data[:length]))
    with contextlib.suppress(Refused):
        reader = BlobReader(bytes(data))
        for kind, offset, size in reader.sections:
            assert offset + size <= len(data)
            assert len(reader.read(Section(kind))) == size


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=400), st.integers(0, len(_BLOB) - 1), st.integers(1, 255))
def test_damaged_bytes_are_refused_or_change_nothing(noise: bytes, at: int, flip: int) -> None:
    for data in (noise, b"SNPUBLOB" + noise, _BLOB[:at]):
        _refusal(data)
    damaged = bytearray(_BLOB)
    damaged[at] ^= flip
    with contextlib.suppress(Refused):
        assert _sections_of(BlobReader(bytes(damaged))) == _SECTIONS
