"""The metadata of an exported model: read from the end of the file, versioned, and checked."""

from __future__ import annotations

import io
import itertools
import os
import random
import re
import struct
import zipfile
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from blake3 import blake3
from hypothesis import given, settings
from hypothesis import strategies as st

from softnpu.emulator.blob.container import BlobReader, Section
from softnpu.plugin import BlobError, Core
from softnpu.plugin.exported import metadata
from softnpu.plugin.exported.blob_file import BlobFile
from softnpu.plugin.exported.metadata import BlobPart, Metadata, WeightsOrigin
from softnpu.plugin.loaded_model import OriginSource
from softnpu.plugin.signature import PortSpec, Signature
from tests.plugin import data
from tests.support.cases import case

DATA = Path(data.__file__).parent
INPUT = np.arange(6, dtype=np.float32).reshape(2, 3)
SCHEMA = "1.1 e460e913"
"""Version and a digest of the fields. After a change, raise `metadata.MINOR`, write a file of the new
version with `python -m tests.plugin.data.write`, and record both here."""


_MODULE = re.compile(r"softnpu\.[\w.]+\.")  # a type keeps its digest when its module moves


def schema() -> str:
    """The current version, and a digest of everything in the metadata."""
    kinds = (Metadata, BlobPart, OriginSource, WeightsOrigin, Signature, PortSpec)
    fields = [
        f"{kind.__name__}.{field.encode_name}: {re.sub(_MODULE, '', str(field.type))}"
        for kind in kinds
        for field in msgspec.structs.fields(kind)
    ]
    return f"{metadata.MAJOR}.{metadata.MINOR} {blake3(chr(10).join(fields).encode()).hexdigest(4)}"


@pytest.fixture(scope="module")
def exported() -> bytes:
    """The file of the current version, as committed."""
    return (DATA / f"metadata_{metadata.MAJOR}_{metadata.MINOR}.blob").read_bytes()


def _refusal(core: Core, content: bytes) -> str:
    with pytest.raises(BlobError) as caught:
        core.import_model(content)
    return str(caught.value)


# ---------------------------------------------------------------- layout


def test_the_metadata_is_at_the_end_behind_whole_pages(exported: bytes) -> None:
    with BlobFile.open(exported) as file:
        found = file.metadata()
    (part,) = found.blobs
    assert exported[:8] == b"SNPUBLOB"
    assert exported[-8:] == b"SNPUMETA"
    assert (part.kind, part.offset) == ("main", 0)
    BlobReader(exported[: part.size])
    begin = metadata.page_up(part.size)
    assert not any(exported[part.size : begin])
    assert msgspec.msgpack.decode(exported[begin : -metadata.TRAILER_SIZE], type=Metadata) == found


def test_it_is_read_without_the_blob(exported: bytes, tmp_path: Path) -> None:
    with BlobFile.open(exported) as file:
        expected = file.metadata()
    path = tmp_path / "blob.gone"
    tail = len(exported) - metadata.page_up(expected.blobs[0].size)
    with path.open("wb") as file_without:
        file_without.seek(len(exported) - tail)  # a hole in place of the blob
        file_without.write(exported[-tail:])
    with BlobFile.open(path) as file:
        assert file.metadata() == expected


def test_it_reports_versions_ports_and_properties(exported: bytes) -> None:
    with BlobFile.open(exported) as file:
        found = file.metadata()
    assert found.openvino
    assert found.plugin
    assert found.compiler.startswith("softnpu-compiler")
    assert [port.name for port in found.signature.inputs] == ["left", "right"]
    assert found.signature.outputs[0].names == ("sum", "total")
    assert found.signature.inputs[0].shape == "[2,3]"
    assert found.properties["INFERENCE_PRECISION_HINT"] == "f32"
    assert found.requirements.startswith("platform=4000;")


def test_changed_fields_require_a_new_version() -> None:
    assert schema() == SCHEMA


# ---------------------------------------------------------------- versions


VERSIONS = sorted(DATA.glob("metadata_*_*.blob"))


def test_a_file_of_every_version_exists() -> None:
    names = [f"metadata_{metadata.MAJOR}_{minor}" for minor in range(metadata.MINOR + 1)]
    assert [path.stem for path in VERSIONS] == names


def test_a_file_of_an_older_version_loads(shared_core: Core) -> None:
    for path in VERSIONS:
        with case(path):
            imported = shared_core.import_model(path)
            results = imported({"left": INPUT, "right": 10 * INPUT})
            np.testing.assert_array_equal(results["total"], 11 * INPUT)
            np.testing.assert_array_equal(results[1], 2 * INPUT)


def _with_version(content: bytes, major: int, minor: int) -> bytes:
    """The file as another version of the plugin would have written it, with a valid checksum."""
    length, total, _, _, _, magic = struct.unpack("<QQHH4x32s8s", content[-64:])
    body = content[-64 - length : -64]

    def trailer(digest: bytes) -> bytes:
        return struct.pack("<QQHH4x32s8s", length, total, major, minor, digest, magic)

    return content[:-64] + trailer(blake3(body + trailer(bytes(32))).digest())


def test_an_incompatible_version_is_refused_naming_both(shared_core: Core, exported: bytes) -> None:
    for version in [(metadata.MAJOR, metadata.MINOR + 1), (metadata.MAJOR + 1, 0), (0, 9)]:
        with case(version):
            told = _refusal(shared_core, _with_version(exported, *version))
            assert f"metadata of version {version[0]}.{version[1]}" in told
            assert f"expected {metadata.MAJOR}.0 to {metadata.MAJOR}.{metadata.MINOR}" in told
            assert ("Update softnpu" in told) == (version[0] > 0)


# ---------------------------------------------------------------- damage


def test_any_changed_byte_is_detected(shared_core: Core, exported: bytes) -> None:
    with BlobFile.open(exported) as file:
        reader = BlobReader(exported[: file.metadata().blobs[0].size])
        begin = metadata.page_up(file.metadata().blobs[0].size)
    chosen = random.Random(3)
    ends = [
        0,
        64,
        320,
        *(at for _, at, size in reader.sections for at in (at, at + size)),
        begin,
        len(exported),
    ]
    ends.sort()
    places = {
        at
        for low, high in itertools.pairwise(ends)
        if high > low
        for at in (low, high - 1, chosen.randrange(low, high))
    }
    for at in sorted(places):
        changed = bytearray(exported)
        changed[at] ^= 1 << chosen.randrange(8)
        with pytest.raises(BlobError, match="exported model") as caught:
            shared_core.import_model(bytes(changed))
        assert "expected" in str(caught.value), at


def test_a_truncated_file_is_refused(shared_core: Core, exported: bytes) -> None:
    for share in [0.0, 0.2, 0.5, 0.9, 0.999]:
        with case(share):
            told = _refusal(shared_core, exported[: max(1, int(len(exported) * share))])
            assert "no metadata" in told or "without metadata" in told


def test_a_file_with_a_missing_start_or_extra_bytes_is_refused(shared_core: Core, exported: bytes) -> None:
    assert f"expected {len(exported)}" in _refusal(shared_core, exported[4096:])
    assert f"expected {len(exported)}" in _refusal(shared_core, bytes(4096) + exported)
    assert "without metadata" in _refusal(shared_core, exported + b"\0")


def test_metadata_of_another_blob_is_refused(shared_core: Core, exported: bytes, digits: Path) -> None:
    other = (shared_core.compile_model(digits).export_model() or io.BytesIO()).getvalue()
    with BlobFile.open(exported) as file:
        mine = file.metadata()
    with BlobFile.open(other) as file:
        theirs = file.metadata()
    size = theirs.blobs[0].size
    begin = metadata.page_up(size)
    part = msgspec.structs.replace(mine.blobs[0], size=size)
    lying = metadata.encode(msgspec.structs.replace(mine, blobs=(part,)), begin)
    assert "is another one" in _refusal(shared_core, other[:begin] + lying)


def test_ports_that_the_graph_does_not_have_are_refused(shared_core: Core, exported: bytes) -> None:
    for argument in [-1, 7]:
        with case(argument):
            with BlobFile.open(exported) as file:
                found = file.metadata()
            port = msgspec.structs.replace(found.signature.inputs[0], argument=argument)
            signature = msgspec.structs.replace(found.signature, inputs=(port, *found.signature.inputs[1:]))
            begin = metadata.page_up(found.blobs[0].size)
            lying = metadata.encode(msgspec.structs.replace(found, signature=signature), begin)
            assert f"input 'left' is argument {argument}" in _refusal(shared_core, exported[:begin] + lying)


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=300))
def test_random_bytes_are_never_metadata(content: bytes) -> None:
    for end in (
        content,
        content + b"SNPUMETA",
        content + struct.pack("<QQHH4x32s8s", 8, 80, 1, 0, b"", b"SNPUMETA"),
    ):
        if not end:
            continue
        with BlobFile.open(end) as file, pytest.raises(BlobError):
            file.metadata()


# ---------------------------------------------------------------- foreign files


def _zip() -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        archive.writestr("model.xml", "x" * 1000)
    return stream.getvalue()


FOREIGN: dict[str, tuple[bytes, str]] = {
    "elf": (b"\x7fELF" + bytes(5000), "an ELF file"),
    "real device": (b"\x7fELF" + bytes(5000) + b"\x02\0\0\0OVNPU", "a blob for the real device"),
    "zip": (_zip(), "a zip archive"),
    "ir": (b'<?xml version="1.0"?>\n<net name="m"></net>', "an OpenVINO IR"),
    "text": (b"hello", "begins with b'hello'"),
    "random": (random.Random(1).randbytes(20_000), "no metadata"),
}


def test_a_foreign_file_is_named_by_its_format(shared_core: Core, private_dir: Path) -> None:
    for kind, (content, told) in FOREIGN.items():
        with case(kind):
            path = private_dir / "foreign.blob"
            path.write_bytes(content)
            for source in (path, content):
                with pytest.raises(BlobError, match="export_model") as caught:
                    shared_core.import_model(source)
                assert told in str(caught.value)


def test_a_refused_file_leaves_nothing_on_the_device(
    shared_core: Core, exported: bytes, shared_daemon: Any
) -> None:
    before = shared_daemon.engine()
    changed = bytearray(exported)
    with BlobFile.open(exported) as file:
        place = BlobReader(exported[: file.metadata().blobs[0].size]).extent(Section.WEIGHTS)
    assert place is not None
    changed[place[0]] ^= 1
    assert "constant" in _refusal(shared_core, bytes(changed))
    after = shared_daemon.engine()
    assert (after.graphs, after.images) == (before.graphs, before.images)
    assert os.path.exists(shared_daemon.socket)
