"""The compiler worker: native blobs from outside, with and without their weights."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import openvino as ov
import pytest
from openvino import opset15 as ops

from softnpu.emulator.blob.container import BlobReader, Section
from softnpu.emulator.blob.weights import Placement
from softnpu.emulator.common import linux
from softnpu.emulator.interface.messages import WeightSource
from softnpu.emulator.interface.result import ErrorInfo, ZeResult
from softnpu.emulator.links.compiler import ExportJob, ImportJob
from tests.support.compiler import (
    PLATFORM,
    Files,
    Made,
    Worker,
    altered,
    import_job,
    memory_file,
    result,
    with_meta,
)


def imported(
    worker: Worker, blob: bytes, placement: bytes, sources: tuple[WeightSource, ...], fds: list[int]
) -> Made | ErrorInfo:
    """What an import of these contents gives."""
    made = [memory_file(blob)] + ([memory_file(placement)] if placement else [])
    job = ImportJob(
        platform=PLATFORM, blob_length=len(blob), placement_length=len(placement), weights=sources
    )
    try:
        return worker.blob(job, made + fds)
    except AssertionError:
        return worker.info(job, made + fds)
    finally:
        for fd in made:
            os.close(fd)


def refused(worker: Worker, blob: bytes, files: Files, placement: bytes = b"") -> ErrorInfo:
    outcome = imported(worker, blob, placement, files.sources, [files.bin])
    assert isinstance(outcome, ErrorInfo), "it was accepted"
    return outcome


def native(worker: Worker, files: Files) -> bytes:
    """The blob of `files` with all weights inside."""
    made = worker.blob(files.job(), files.fds)
    blob, placement = memory_file(made.blob), memory_file(made.placement)
    job = ExportJob(blob_length=len(made.blob), placement_length=len(made.placement), weights=files.sources)
    content = worker.content(job, [blob, placement, files.bin])[1]
    os.close(blob)
    os.close(placement)
    return content


def test_an_own_blob_is_imported_with_its_weights(worker: Worker, static: Files) -> None:
    made = worker.blob(static.job(), static.fds)
    again = imported(worker, made.blob, made.placement, static.sources, [static.bin])
    assert isinstance(again, Made)
    assert (again.blob, again.placement) == (made.blob, made.placement)
    assert again.answer == msgspec.structs.replace(made.answer, origin="native")


def test_an_immutable_blob_is_handed_back_and_any_other_is_copied(worker: Worker, static: Files) -> None:
    content = native(worker, static)
    for fd, same in ((linux.sealed_copy("test", content), True), (memory_file(content), False)):
        _, (answer,) = worker.ask(import_job(content), [fd])
        assert (os.fstat(answer).st_ino == os.fstat(fd).st_ino) is same
        os.close(answer)
        os.close(fd)


def test_an_exported_blob_needs_no_weights_and_has_every_constant(worker: Worker, static: Files) -> None:
    content = native(worker, static)
    reader = BlobReader(content)
    reference = reader.weights_reference()
    assert reference is not None
    assert [constant.name for constant in reference.constants] == ["kernels"]
    (kernels,) = reference.constants
    weights = bytes(reader.read(Section.WEIGHTS))
    assert weights[kernels.embedded : kernels.embedded + kernels.length] == static.weights
    again = imported(worker, content, b"", (), [])
    assert isinstance(again, Made)
    assert (again.blob, again.placement, again.answer.origin) == (content, b"", "native")


def test_zeros_up_to_the_next_page_are_no_part_of_a_blob(worker: Worker, static: Files) -> None:
    content = native(worker, static)
    padded = content + bytes(-len(content) % 4096)
    again = imported(worker, padded, b"", (), [])
    assert isinstance(again, Made)
    assert again.blob == content
    for spoilt in (padded[:-1] + b"\x01", padded + bytes(4096), padded[:-1]):
        info = imported(worker, spoilt, b"", (), [])
        assert isinstance(info, ErrorInfo)
        assert result(info) == ZeResult.ERROR_INVALID_NATIVE_BINARY


def test_without_a_placement_constants_lie_at_their_canonical_offsets(worker: Worker, static: Files) -> None:
    made = worker.blob(static.job(), static.fds)
    fd = memory_file(static.weights)
    again = imported(worker, made.blob, b"", (WeightSource(offset=0, length=len(static.weights)),), [fd])
    os.close(fd)
    assert isinstance(again, Made)
    assert again.offsets == (0,)


def test_other_weights_are_refused_by_the_first_constant_that_differs(worker: Worker, tmp_path: Path) -> None:
    value = data = ops.parameter([64], np.float32, name="data")
    for number in range(4):
        constant = ops.constant(np.arange(64, dtype=np.float32) + number, name=f"step{number}")
        value = ops.add(ops.multiply(value, constant), data)
    files = Files(tmp_path, ov.Model([value], [data], "steps"))
    made = worker.blob(files.job(), files.fds)
    reference = made.reader.weights_reference()
    assert reference is not None
    wrong = bytearray(files.weights)
    for constant, offset in zip(reference.outside, made.offsets, strict=True):
        if constant.name in ("step2", "step3"):
            wrong[offset + 5] ^= 1
    fd = memory_file(bytes(wrong))
    info = imported(worker, made.blob, made.placement, files.sources, [fd])
    assert isinstance(info, ErrorInfo)
    assert result(info) == ZeResult.ERROR_INVALID_ARGUMENT
    first = next(constant for constant in reference.outside if constant.name in ("step2", "step3"))
    assert f"'{first.name}'" in info.object
    assert first.digest.hex() in info.expected
    assert first.digest.hex() not in info.found
    os.close(fd)
    files.close()


def test_too_few_weights_and_none_are_told_apart(worker: Worker, static: Files) -> None:
    made = worker.blob(static.job(), static.fds)
    short = imported(worker, made.blob, made.placement, (WeightSource(offset=0, length=5),), [static.bin])
    assert isinstance(short, ErrorInfo)
    assert (result(short), "'kernels'" in short.object) == (ZeResult.ERROR_INVALID_ARGUMENT, True)
    missing = imported(worker, made.blob, made.placement, (), [])
    assert isinstance(missing, ErrorInfo)
    assert "none came" in missing.found


@pytest.mark.parametrize(
    "placement",
    [
        b"\xc1",
        Placement(offsets=()).encode(),
        Placement(offsets=(0, 0)).encode(),
        Placement(offsets=(-1,)).encode(),
        Placement(offsets=(2**63,)).encode(),
        Placement(offsets=(4096,)).encode(),
    ],
    ids=["garbage", "too few", "too many", "negative", "huge", "behind the end"],
)
def test_a_bad_placement_is_refused(worker: Worker, static: Files, placement: bytes) -> None:
    made = worker.blob(static.job(), static.fds)
    info = refused(worker, made.blob, static, placement)
    assert result(info) == ZeResult.ERROR_INVALID_ARGUMENT


@pytest.mark.parametrize(
    ("spoil", "word"),
    [
        (lambda _: b"ELF" * 100, "magic"),
        (lambda blob: blob[:-1], "total size"),
        (lambda blob: blob[:8] + b"\x02" + blob[9:], "version"),
        (lambda blob: blob[:-1] + bytes([blob[-1] ^ 1]), "checksum"),
        (lambda blob: with_meta(blob, platform="3720"), "platform"),
        (lambda blob: with_meta(blob, precision="bf16"), "precision"),
        (lambda blob: with_meta(blob, config={}), "config"),
        (lambda blob: with_meta(blob, arguments=BlobReader(blob).metadata().inputs), "arguments"),
        (lambda blob: altered(blob, METADATA=b"\x93"), "METADATA"),
        (lambda blob: altered(blob, IR=b"<net/>"), "IR"),
        (lambda blob: altered(blob, drop=(Section.IR,)), "IR"),
        (lambda blob: altered(blob, WEIGHTS_REFERENCE=b"\x93"), "WEIGHTS_REFERENCE"),
    ],
)
def test_a_bad_blob_is_refused_naming_what_is_wrong(
    worker: Worker, static: Files, spoil: Callable[[bytes], bytes], word: str
) -> None:
    made = worker.blob(static.job(), static.fds)
    info = refused(worker, spoil(made.blob), static, made.placement)
    assert result(info) == ZeResult.ERROR_INVALID_NATIVE_BINARY
    assert word in info.object + info.found


@pytest.mark.parametrize(("more", "word"), [({"WEIGHTS": b"alone"}, "weights"), ({}, "IR")])
def test_constants_that_the_blob_does_not_list_are_refused(
    worker: Worker, static: Files, more: dict[str, bytes], word: str
) -> None:
    made = worker.blob(static.job(), static.fds)
    info = refused(worker, altered(made.blob, drop=(Section.WEIGHTS_REFERENCE,), **more), static)
    assert result(info) == ZeResult.ERROR_INVALID_NATIVE_BINARY
    assert word in info.object


def test_constants_that_leave_their_section_are_refused(worker: Worker, static: Files) -> None:
    content = native(worker, static)
    reference = BlobReader(content).weights_reference()
    assert reference is not None
    for embedded in (1, 2**40, 2**63):
        moved = msgspec.structs.replace(reference.constants[0], embedded=embedded)
        forged = msgspec.structs.replace(reference, constants=(moved,))
        spoilt = altered(content, WEIGHTS_REFERENCE=msgspec.msgpack.encode(forged))
        info = imported(worker, spoilt, b"", (), [])
        assert isinstance(info, ErrorInfo)
        assert result(info) == ZeResult.ERROR_INVALID_NATIVE_BINARY


def test_a_forged_argument_size_is_refused(worker: Worker, static: Files) -> None:
    made = worker.blob(static.job(), static.fds)
    image, scores = made.meta.arguments
    forged = msgspec.structs.replace(scores, byte_size=16)
    info = refused(worker, with_meta(made.blob, arguments=(image, forged)), static, made.placement)
    assert result(info) == ZeResult.ERROR_INVALID_NATIVE_BINARY
    assert "argument 1" in info.found
    assert "16 bytes" in info.found


def test_an_empty_blob_and_a_sparse_one_larger_than_the_host_are_refused(worker: Worker) -> None:
    empty = linux.memfd("empty")
    info = worker.info(ImportJob(platform=PLATFORM, blob_length=0), [empty])
    assert result(info) == ZeResult.ERROR_INVALID_SIZE
    os.close(empty)
    size = 1 << 50
    fd = linux.memfd("sparse", size)
    info = worker.info(ImportJob(platform=PLATFORM, blob_length=size), [fd])
    os.close(fd)
    assert result(info) == ZeResult.ERROR_OUT_OF_HOST_MEMORY
