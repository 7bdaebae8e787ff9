"""The compiled-model container: its bytes, its versions, and that damage is always noticed."""

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
from softnpu.emulator.blob.container import (
    ArgumentMeta,
    BlobReader,
    ConstantReference,
    GraphMeta,
    Section,
    StateMeta,
    WeightsReference,
)
from softnpu.emulator.interface.result import Refused, ZeResult

_VECTORS: dict[str, Any] = json.loads((Path(__file__).parent / "vectors.json").read_text())
_META = GraphMeta(
    name="net",
    platform="4000",
    precision="f32",
    config={"INFERENCE_PRECISION_HINT": "f32"},
    arguments=(
        ArgumentMeta(
            name="image",
            names=("image", "input:0"),
            input=True,
            element_type="f32",
            shape=(1, 2),
            layout="NC",
            byte_size=8,
            friendly_name="input",
            model_type="f16",
            model_shape=(-1, 2),
            strides=True,
        ),
        ArgumentMeta(
            name="result", names=(), input=False, element_type="u8", shape=(), layout="", byte_size=1
        ),
    ),
    operations=3,
    openvino="2026.0.0",
    compiler="softnpu 0.1.0",
    states=(StateMeta(variable="h", input=1, output=3, initial=bytes(4)),),
)
_REFERENCE = WeightsReference(
    size=100,
    constants=(
        ConstantReference(name="w", offset=0, length=60, digest=bytes(range(16))),
        ConstantReference(name="b", offset=64, length=36, digest=bytes(range(16, 32)), embedded=0),
    ),
)
_SECTIONS: dict[Section, bytes] = {
    Section.IR: b"<net/>",
    Section.METADATA: msgspec.msgpack.encode(_META),
    Section.WEIGHTS: bytes(range(64)),
    Section.WEIGHTS_REFERENCE: msgspec.msgpack.encode(_REFERENCE),
}
_BLOB = container.pack(_SECTIONS)
_HEADER_SIZE = _ENTRY_SIZE = 64


def _frozen(name: str = "blob") -> bytes:
    data = bytearray(_VECTORS[name]["size"])
    for offset, text in _VECTORS[name]["pieces"].items():
        piece = bytes.fromhex(text)
        data[int(offset) : int(offset) + len(piece)] = piece
    return bytes(data)


def _refusal(data: bytes) -> Refused:
    with pytest.raises(Refused) as caught:
        BlobReader(data)
    assert caught.value.info.result == ZeResult.ERROR_INVALID_NATIVE_BINARY
    return caught.value


def _assert_refused_or_same(data: bytes) -> None:
    """Nothing but a refusal may come out of a damaged blob, unless nothing that is read has changed."""
    with contextlib.suppress(Refused):
        reader = BlobReader(data)
        assert {section: bytes(reader.read(section)) for section in Section} == _SECTIONS
        assert (reader.metadata(), reader.weights_reference()) == (_META, _REFERENCE)


def _resealed(data: bytes | bytearray) -> bytes:
    """The blob with a right header checksum, as an attacker or a newer writer would make it."""
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


def test_a_blob_keeps_its_bytes() -> None:
    assert _frozen() == _BLOB


def test_a_blob_reads_back_from_its_bytes() -> None:
    reader = BlobReader(_frozen())
    assert reader.metadata() == _META
    assert reader.weights_reference() == _REFERENCE
    assert {section: bytes(reader.read(section)) for section in Section} == _SECTIONS


def test_section_types_keep_their_numbers() -> None:
    assert {section.name: section.value for section in Section} == {
        "METADATA": 1,
        "IR": 2,
        "WEIGHTS": 3,
        "WEIGHTS_REFERENCE": 4,
    }


def test_the_metadata_comes_first_and_every_section_starts_on_a_page() -> None:
    sections = BlobReader(_BLOB).sections
    assert sections[0][:2] == (Section.METADATA, 4096)
    assert all(offset % 4096 == 0 for _, offset, _ in sections)


def test_sections_are_read_without_a_copy() -> None:
    shared = bytearray(_BLOB)
    data = BlobReader(memoryview(shared)).read(Section.IR)
    shared[shared.index(b"<net/>")] = ord("[")
    assert bytes(data) == b"[net/>"


def test_inputs_and_outputs_keep_their_order() -> None:
    meta = BlobReader(_BLOB).metadata()
    assert [argument.name for argument in meta.inputs] == ["image"]
    assert [argument.name for argument in meta.outputs] == ["result"]


@pytest.mark.parametrize(
    ("shape", "byte_size", "alignment"),
    [((1, 2), 8, 4), ((), 8, 8), ((3,), 3, 1), ((16,), 8, 1), ((2, 0), 0, 1)],
    ids=["f32", "f64 scalar", "u8", "u4", "empty"],
)
def test_an_argument_starts_at_a_multiple_of_its_element(
    shape: tuple[int, ...], byte_size: int, alignment: int
) -> None:
    argument = msgspec.structs.replace(_META.arguments[0], shape=shape, byte_size=byte_size)
    assert argument.alignment == alignment


def test_a_missing_section_is_refused_by_name() -> None:
    reader = BlobReader(container.pack({Section.METADATA: _SECTIONS[Section.METADATA]}))
    assert not reader.has(Section.WEIGHTS)
    assert reader.weights_reference() is None
    with pytest.raises(Refused, match="section WEIGHTS: missing"):
        reader.read(Section.WEIGHTS)


def test_empty_sections_are_kept() -> None:
    reader = BlobReader(container.pack({Section.METADATA: b"", Section.IR: b"x", Section.WEIGHTS: b""}))
    assert bytes(reader.read(Section.WEIGHTS)) == b""
    with pytest.raises(Refused, match="section METADATA"):
        reader.metadata()


def test_a_blob_of_version_1_0_is_still_read() -> None:
    # it has neither states nor dynamic dimensions
    reader = BlobReader(_frozen("blob 1.0"))
    assert {section: bytes(reader.read(section)) for section in Section if section != Section.METADATA} == {
        section: data for section, data in _SECTIONS.items() if section != Section.METADATA
    }
    assert reader.metadata() == msgspec.structs.replace(_META, states=())


@pytest.mark.parametrize(("major", "minor"), [(0, 0), (2, 0), (1, 2), (1, 0xFFFF)])
def test_another_version_is_refused_with_both_versions(major: int, minor: int) -> None:
    error = _refusal(_changed(8, "<HH", major, minor))
    assert (error.info.found, error.info.expected) == (f"{major}.{minor}", "1.0 to 1.1")


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


@pytest.mark.parametrize(
    ("offset", "size"),
    [
        (0, 10),
        (4097, 10),
        (4096, 4097),
        (4096, 2**64 - 1),
        (2**64 - 4096, 4096),
        (2**64 - 4096, 10),
        (4096 * 1000, 0),
    ],
)
def test_a_section_that_overlaps_or_leaves_the_blob_is_refused(offset: int, size: int) -> None:
    assert "section" in _refusal(_changed(_HEADER_SIZE + 8, "<QQ", offset, size)).info.object


def test_a_last_section_that_ends_one_byte_behind_the_blob_is_refused() -> None:
    entry = _HEADER_SIZE + (len(_SECTIONS) - 1) * _ENTRY_SIZE
    _, offset, size = BlobReader(_BLOB).sections[-1]
    assert offset + size == len(_BLOB)
    assert "section 3" in _refusal(_changed(entry + 16, "<Q", size + 1)).info.object


def test_an_unknown_section_is_skipped_and_an_unknown_required_one_is_refused() -> None:
    entry = _HEADER_SIZE + 2 * _ENTRY_SIZE
    reader = BlobReader(_changed(entry, "<II", 77, 0))
    assert reader.metadata() == _META
    assert len(reader.sections) == 3
    assert "required type 77" in _refusal(_changed(entry, "<II", 77, 1)).info.found


def test_metadata_of_another_shape_is_refused() -> None:
    reader = BlobReader(container.pack({Section.METADATA: msgspec.msgpack.encode({"name": 1})}))
    with pytest.raises(Refused, match="section METADATA") as caught:
        reader.metadata()
    assert "GraphMeta" in caught.value.info.expected


def test_metadata_of_a_newer_writer_may_have_more_fields() -> None:
    plain = msgspec.msgpack.decode(_SECTIONS[Section.METADATA])
    newer = msgspec.msgpack.encode(plain | {"colour": "red"})
    assert BlobReader(container.pack({Section.METADATA: newer})).metadata() == _META


@pytest.mark.parametrize("flip", [0x01, 0x80])
def test_every_flipped_bit_in_header_table_and_sections_is_noticed(flip: int) -> None:
    places = set(range(_HEADER_SIZE + len(_SECTIONS) * _ENTRY_SIZE))
    for _, offset, size in BlobReader(_BLOB).sections:
        places |= set(range(offset, offset + size))
    for at in sorted(places):
        damaged = bytearray(_BLOB)
        damaged[at] ^= flip
        with pytest.raises(Refused):
            _read_all(bytes(damaged))


def _read_all(data: bytes) -> None:
    reader = BlobReader(data)
    for section in Section:
        reader.read(section)


@settings(max_examples=200, deadline=None)
@given(st.integers(0, len(_BLOB) - 1), st.integers(1, 255))
def test_a_flipped_byte_is_refused_or_changes_nothing(at: int, flip: int) -> None:
    damaged = bytearray(_BLOB)
    damaged[at] ^= flip
    _assert_refused_or_same(bytes(damaged))


@settings(deadline=None)
@given(st.integers(0, len(_BLOB) - 1))
def test_a_truncated_blob_is_refused(length: int) -> None:
    _refusal(_BLOB[:length])


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 319), st.integers(0, 255)), min_size=1, max_size=6),
    st.integers(0, len(_BLOB)),
)
def test_a_forged_header_with_a_right_checksum_never_reads_outside(
    changes: list[tuple[int, int]], length: int
) -> None:
    data = bytearray(_BLOB)
    for at, value in changes:
        data[at] = value
    if length >= _HEADER_SIZE:
        struct.pack_into("<Q", data, 16, length)
        data = data[:length]
        data = bytearray(_resealed(data))
    try:
        reader = BlobReader(bytes(data))
    except Refused:
        return
    for kind, offset, size in reader.sections:
        assert offset + size <= len(data)
        with contextlib.suppress(Refused):
            assert len(reader.read(Section(kind))) == size


@given(st.binary(max_size=400))
def test_arbitrary_bytes_are_refused_and_nothing_else(data: bytes) -> None:
    _refusal(data)
    _refusal(b"SNPUBLOB" + data)
