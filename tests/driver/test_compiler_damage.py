"""A native blob with a flipped byte, cut anywhere, or with forged sections: refused, or as it was."""

from __future__ import annotations

import os
from collections.abc import Iterator

import msgspec
import pytest
from blake3 import blake3
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from softnpu.emulator.blob.container import BlobReader, Section
from softnpu.emulator.interface.messages import Failed
from softnpu.emulator.interface.result import ZeResult
from softnpu.emulator.links.compiler import Compiled, ExportJob
from tests.support.compiler import Files, Worker, altered, convolution, import_job, memory_file

_PROPERTY = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.fixture(scope="module")
def native(worker: Worker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[bytes]:
    """A blob with its weights inside."""
    files = Files(tmp_path_factory.mktemp("native"), convolution([1, 3, 16, 16]))
    made = worker.blob(files.job(), files.fds)
    blob, placement = memory_file(made.blob), memory_file(made.placement)
    job = ExportJob(blob_length=len(made.blob), placement_length=len(made.placement), weights=files.sources)
    yield worker.content(job, [blob, placement, files.bin])[1]
    for fd in (blob, placement):
        os.close(fd)
    files.close()


def check(worker: Worker, damaged: bytes, original: bytes) -> None:
    """The worker refuses it with the documented code, or takes it for what it was."""
    if not damaged:
        return
    fd = memory_file(damaged)
    try:
        outcome, answered = worker.ask(import_job(damaged), [fd])
    finally:
        os.close(fd)
    try:
        if isinstance(outcome, Failed):
            assert outcome.info.result == ZeResult.ERROR_INVALID_NATIVE_BINARY, outcome
            assert outcome.info.object
            return
        assert isinstance(outcome, Compiled)
        assert outcome.blob_digest == blake3(original).digest()
    finally:
        for one in answered:
            os.close(one)


@_PROPERTY
@given(data=st.data())
def test_a_flipped_byte_is_refused(worker: Worker, native: bytes, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(native) - 1))
    damaged = bytearray(native)
    damaged[at] ^= data.draw(st.integers(1, 255))
    check(worker, bytes(damaged), native)


@_PROPERTY
@given(data=st.data())
def test_a_blob_that_is_cut_or_longer_is_refused(worker: Worker, native: bytes, data: st.DataObject) -> None:
    length = data.draw(st.integers(1, len(native) + 8192))
    check(worker, native[:length].ljust(length, b"\0"), native)


def test_every_byte_of_header_and_table_is_covered(worker: Worker, native: bytes) -> None:
    for at in range(64 + 64 * 4):
        damaged = bytearray(native)
        damaged[at] ^= 0x40
        check(worker, bytes(damaged), native)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_forged_sections_with_right_checksums_never_end_the_worker(
    worker: Worker, native: bytes, data: st.DataObject
) -> None:
    """What an attacker writes: the fixture proves at the end that the worker still lives."""
    section = data.draw(st.sampled_from([Section.METADATA, Section.IR, Section.WEIGHTS_REFERENCE]))
    content = bytearray(BlobReader(native).read(section))
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    forged = altered(native, (), **{section.name: bytes(content)})
    fd = memory_file(forged)
    outcome, answered = worker.ask(import_job(forged), [fd])
    for one in [fd, *answered]:
        os.close(one)
    assert isinstance(outcome, Failed | Compiled)


def test_constants_that_overlap_are_not_exported(worker: Worker, native: bytes) -> None:
    reference = BlobReader(native).weights_reference()
    assert reference is not None
    (one,) = reference.constants
    twice = msgspec.structs.replace(reference, constants=(one, msgspec.structs.replace(one, name="again")))
    forged = altered(native, WEIGHTS_REFERENCE=msgspec.msgpack.encode(twice))
    fd = memory_file(forged)
    info = worker.info(ExportJob(blob_length=len(forged)), [fd])
    os.close(fd)
    assert info.result == ZeResult.ERROR_INVALID_NATIVE_BINARY


def test_a_size_that_is_not_there_is_not_written(worker: Worker, native: bytes) -> None:
    """`size` of the reference decides how much an export writes."""
    reference = BlobReader(native).weights_reference()
    assert reference is not None
    huge = msgspec.structs.replace(reference, size=1 << 60)
    forged = altered(native, WEIGHTS_REFERENCE=msgspec.msgpack.encode(huge))
    fd = memory_file(forged)
    info = worker.info(ExportJob(blob_length=len(forged)), [fd])
    os.close(fd)
    assert info.result == ZeResult.ERROR_INVALID_NATIVE_BINARY
