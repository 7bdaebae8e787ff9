"""The compiler worker: canonical blobs, constants of a model, foreign blobs."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from html import unescape

import msgspec
import numpy as np
import openvino as ov
import pytest
from openvino import opset15 as ops

from softnpu.emulator.blob.container import BlobReader, Section, WeightsReference
from softnpu.emulator.blob.weights import Placement, SpaceLayout, const_layers, with_offsets
from softnpu.emulator.common import linux
from softnpu.emulator.compiler import constants
from softnpu.emulator.compiler.constants import serialize_ir
from softnpu.emulator.interface.messages import Failed, GraphExported, WeightSource
from softnpu.emulator.interface.result import ErrorInfo, Refused, ZeResult
from softnpu.emulator.links.compiler import Compiled, ExportJob, ImportJob
from tests.support.compiler import PLATFORM, Files, Made, Worker, WriteFiles, altered, result, with_meta

pytestmark = pytest.mark.quick


def two_constants() -> ov.Model:
    """x * large + small, where `large` and `again` have the same content and `small` has 16 bytes."""
    x = ops.parameter([4, 64], np.float32, name="x")
    values = np.arange(256, dtype=np.float32).reshape(4, 64)
    large = ops.constant(values, name="large")
    again = ops.constant(values.copy(), name="again")
    small = ops.constant(np.arange(4, dtype=np.float32).reshape(4, 1), name="small")
    total = ops.add(ops.add(ops.multiply(x, large), again), small)
    return ov.Model([total], [x], "two")


def reference(made: Made) -> WeightsReference:
    found = made.reader.weights_reference()
    assert found is not None
    return found


@pytest.fixture
def two(write: WriteFiles) -> Files:
    return write(two_constants(), name="two")


def test_the_blob_does_not_depend_on_the_location_of_weights(worker: Worker, two: Files) -> None:
    plain = worker.blob(two.job(), two.fds)
    layers = const_layers(two.xml_data)
    # in two files, the second range beginning in the middle of a page
    first = WeightSource(offset=0, length=len(two.weights))
    lead = 4096 * 3 + 123
    second = WeightSource(offset=lead, length=len(two.weights))
    starts = SpaceLayout([first, second]).starts
    offsets = [layer.offset + starts[(number + 1) % 2] for number, layer in enumerate(layers)]
    xml = with_offsets(two.xml_data, layers, offsets)
    job = two.job(xml_length=len(xml), weights=(first, second))
    split = worker.blob(job, [xml, two.bin, bytes(lead) + two.weights])
    assert split.blob == plain.blob
    assert split.offsets != plain.offsets


def test_small_constants_are_embedded_on_request(worker: Worker, two: Files) -> None:
    made = worker.blob(two.job(config={"NPU_WEIGHTS_EMBED_THRESHOLD": "17"}), two.fds)
    small = next(constant for constant in reference(made).constants if constant.length == 16)
    assert [constant.length for constant in reference(made).outside] == [1024]
    assert len(made.offsets) == 1
    section = bytes(made.reader.read(Section.WEIGHTS))
    assert np.frombuffer(section[small.embedded : small.embedded + 16], np.float32).tolist() == [0, 1, 2, 3]
    everything = worker.blob(two.job(config={"NPU_WEIGHTS_EMBED_THRESHOLD": "100000"}), two.fds)
    assert everything.placement == b""
    assert reference(everything).outside == ()


def test_a_constant_in_the_gap_between_two_sources_is_refused(worker: Worker, two: Files) -> None:
    layers = const_layers(two.xml_data)
    sources = (WeightSource(offset=0, length=len(two.weights)),) * 2
    xml = with_offsets(two.xml_data, layers, [len(two.weights) - 8] * len(layers))
    info = worker.info(two.job(xml_length=len(xml), weights=sources), [xml, two.bin, two.bin])
    assert result(info) == ZeResult.ERROR_UNSUPPORTED_FEATURE
    assert "reach beyond" in info.found


def test_text_constants_are_refused_by_name(worker: Worker, write: WriteFiles) -> None:
    x = ops.parameter([2], np.float32, name="x")
    packed = np.frombuffer(struct.pack("<4I4s", 2, 0, 1, 4, b"abcd"), np.uint8)
    files = write(ov.Model([ops.relu(x), ops.constant(packed, name="words")], [x], "text"))
    xml = files.xml_data.replace(b'element_type="u8" shape="20"', b'element_type="string" shape="2"')
    xml = xml.replace(b'precision="U8"', b'precision="STRING"').replace(b"<dim>20</dim>", b"<dim>2</dim>")
    assert xml != files.xml_data
    info = worker.info(files.job(xml_length=len(xml)), [xml, files.bin])
    assert result(info) == ZeResult.ERROR_UNSUPPORTED_FEATURE
    assert "string" in str(info)


def test_rt_info_does_not_change_the_blob(worker: Worker, write: WriteFiles) -> None:
    noted = two_constants()
    plain = write(noted, name="two")
    for key in ("is_new_api", "use_indices_for_io_metadata", "ws_bin_offset_0"):
        noted.set_rt_info("true", key)
    files = write(noted, name="two")
    assert worker.blob(files.job(), files.fds).blob == worker.blob(plain.job(), plain.fds).blob


NAMES = ("plain", 'we"ird <&> name', "dup", "dup", "tab\tand\nline", "größe", "in a branch", "in the other")


def _model() -> tuple[ov.Model, dict[bytes, str]]:
    """Constants of one size and many names, also in branches; each name by its content."""
    values = [np.full(4, number, np.float32) for number in range(len(NAMES))]
    nodes = [ops.constant(value, name=name) for name, value in zip(NAMES, values, strict=True)]
    x = ops.parameter([4], ov.Type.f32, name="x")
    flag = ops.parameter([], ov.Type.boolean, name="flag")
    total = x
    for node in nodes[:-2]:
        total = ops.add(ops.relu(total), node)
    choice = ops.if_op(flag)
    for node, body in zip(nodes[-2:], ("then", "else"), strict=True):
        inner = ops.parameter([4], ov.Type.f32)
        branch = ov.Model([ops.result(ops.multiply(inner, node))], [inner], body)
        getattr(choice, f"set_{body}_body")(branch)
    choice.set_input(total.output(0), *(choice.get_function(at).get_parameters()[0] for at in range(2)))
    results = [choice.get_function(at).get_results()[0] for at in range(2)]
    out = choice.set_output(*results)
    named = {value.tobytes(): name for name, value in zip(NAMES, values, strict=True)}
    return ov.Model([ops.result(out)], [x, flag], "many"), named


def test_each_layer_gets_the_constant_of_its_name() -> None:
    model, named = _model()
    xml, nodes, layers = serialize_ir(model, "model 'many'")
    assert layers == const_layers(xml)
    assert [unescape(layer.name.decode()) for layer in layers] == [node.name for node in nodes]
    assert [named[bytes(node.view())] for node in nodes] == [node.name for node in nodes]
    assert sorted(node.name for node in nodes) == sorted(NAMES)


def test_constants_that_differ_between_model_and_xml_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "bodies_of", lambda _operation: [])
    model, _ = _model()
    with pytest.raises(Refused, match="6 constants in the model, 8 in its XML, 6 of both") as caught:
        serialize_ir(model, "model 'many'")
    assert caught.value.info.result == ZeResult.ERROR_MODULE_BUILD_FAILURE


def test_constants_without_elements_have_no_size() -> None:
    x = ops.parameter([1], ov.Type.f32, name="x")
    scalar = ops.reshape(x, ops.constant(np.zeros(0, np.int64)), False)
    _, (node,), layers = serialize_ir(ov.Model([ops.result(scalar)], [x], "empty"), "model 'empty'")
    assert [layer.size for layer in layers] == [node.length] == [0]


# ---------------------------------------------------------------- foreign blobs


def ask(worker: Worker, job: ImportJob | ExportJob, files: list[int | bytes]) -> Made | ErrorInfo:
    """Return the worker's answer: a blob, or why it refuses these files."""
    outcome, answered = worker.ask(job, files)
    if isinstance(outcome, Failed):
        return outcome.info
    data = [os.pread(fd, os.fstat(fd).st_size, 0) for fd in answered]
    for fd in answered:
        os.close(fd)
    assert isinstance(outcome, Compiled | GraphExported)
    return Made(outcome, data[0], data[1] if len(data) > 1 else b"")  # type: ignore[arg-type]


def imported(
    worker: Worker,
    blob: bytes,
    placement: bytes = b"",
    sources: tuple[WeightSource, ...] = (),
    *weights: int | bytes,
) -> Made | ErrorInfo:
    job = ImportJob(
        platform=PLATFORM, blob_length=len(blob), placement_length=len(placement), weights=sources
    )
    return ask(worker, job, [blob, *([placement] if placement else []), *weights])


def refused(outcome: Made | ErrorInfo, expected: ZeResult = ZeResult.ERROR_INVALID_NATIVE_BINARY) -> str:
    assert isinstance(outcome, ErrorInfo), "it was accepted"
    assert result(outcome) == expected, outcome
    return str(outcome)


@pytest.fixture
def made(worker: Worker, static: Files) -> Made:
    return worker.blob(static.job(), static.fds)


@pytest.fixture
def native(worker: Worker, static: Files, made: Made) -> bytes:
    """The blob with all weights inside."""
    job = ExportJob(blob_length=len(made.blob), placement_length=len(made.placement), weights=static.sources)
    exported = ask(worker, job, [made.blob, made.placement, static.bin])
    assert isinstance(exported, Made)
    return exported.blob


def test_an_exported_blob_needs_no_weights_and_has_every_constant(
    worker: Worker, static: Files, native: bytes
) -> None:
    reader = BlobReader(native)
    reference = reader.weights_reference()
    assert reference is not None
    (kernels,) = reference.constants
    weights = bytes(reader.read(Section.WEIGHTS))
    assert weights[kernels.embedded : kernels.embedded + kernels.length] == static.weights
    padded = native + bytes(-len(native) % 4096)  # zeros up to the next page are not part of a blob
    for content in (native, padded):
        again = imported(worker, content)
        assert isinstance(again, Made)
        assert (again.blob, again.placement) == (native, b"")
    for spoilt in (padded[:-1] + b"\x01", padded + bytes(4096), padded[:-1]):
        refused(imported(worker, spoilt))


def test_without_a_placement_constants_lie_at_their_canonical_offsets(
    worker: Worker, static: Files, made: Made
) -> None:
    source = WeightSource(offset=0, length=len(static.weights))
    again = imported(worker, made.blob, b"", (source,), static.weights)
    assert isinstance(again, Made)
    assert again.offsets == (0,)


def test_other_weights_are_refused_naming_the_constant(worker: Worker, static: Files, made: Made) -> None:
    wrong = bytearray(bytes(static.lead) + static.weights)
    wrong[-1] ^= 1
    outcome = imported(worker, made.blob, made.placement, static.sources, bytes(wrong))
    text = refused(outcome, ZeResult.ERROR_INVALID_ARGUMENT)
    (kernels,) = reference(made).constants
    assert "'kernels'" in text
    assert kernels.digest.hex() in text


def test_a_bad_placement_is_refused(worker: Worker, static: Files, made: Made) -> None:
    wrong = [Placement(offsets=offsets).encode() for offsets in ((), (0, 0), (-1,), (2**63,), (4096,))]
    for placement in (b"\xc1", *wrong):
        outcome = imported(worker, made.blob, placement, static.sources, static.bin)
        refused(outcome, ZeResult.ERROR_INVALID_ARGUMENT)


BAD_BLOBS: tuple[tuple[Callable[[bytes], bytes], str], ...] = (
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
    (lambda blob: altered(blob, drop=(Section.WEIGHTS_REFERENCE,)), "IR"),
    (lambda blob: altered(blob, drop=(Section.WEIGHTS_REFERENCE,), WEIGHTS=b"alone"), "weights"),
)


def test_a_bad_blob_is_refused_naming_the_error(worker: Worker, static: Files, made: Made) -> None:
    for spoil, word in BAD_BLOBS:
        blob = spoil(made.blob)
        listed = b"" if Section.WEIGHTS_REFERENCE not in _sections(blob) else made.placement
        assert word in refused(imported(worker, blob, listed, static.sources, static.bin))


def _sections(blob: bytes) -> set[int]:
    try:
        return {kind for kind, _, _ in BlobReader(blob).sections}
    except Refused:
        return {Section.WEIGHTS_REFERENCE}


def test_every_byte_of_header_and_table_is_checked(worker: Worker, native: bytes) -> None:
    for at in range(64 + 64 * 4):
        damaged = bytearray(native)
        damaged[at] ^= 0x40
        outcome = imported(worker, bytes(damaged))
        if isinstance(outcome, Made):
            assert outcome.blob == native  # bytes outside of the blob
        else:
            refused(outcome)


def test_overlapping_or_out_of_bounds_constants_are_refused(worker: Worker, native: bytes) -> None:
    """Also by an export, which writes as much as the reference says."""
    reference = BlobReader(native).weights_reference()
    assert reference is not None
    (one,) = reference.constants
    outside = [msgspec.structs.replace(one, embedded=place) for place in (1, 2**40, 2**63)]
    twice = (one, msgspec.structs.replace(one, name="again"))
    for forged_reference in (
        *(msgspec.structs.replace(reference, constants=(wrong,)) for wrong in outside),
        msgspec.structs.replace(reference, size=1 << 60),
        msgspec.structs.replace(reference, constants=twice),
    ):
        forged = altered(native, WEIGHTS_REFERENCE=msgspec.msgpack.encode(forged_reference))
        refused(imported(worker, forged))
        refused(ask(worker, ExportJob(blob_length=len(forged)), [forged]))


def test_an_empty_blob_and_a_sparse_one_larger_than_the_host_are_refused(worker: Worker) -> None:
    refused(imported(worker, b""), ZeResult.ERROR_INVALID_SIZE)
    fd = linux.memfd("sparse", 1 << 50)
    info = worker.info(ImportJob(platform=PLATFORM, blob_length=1 << 50), [fd])
    os.close(fd)
    assert result(info) == ZeResult.ERROR_OUT_OF_HOST_MEMORY
