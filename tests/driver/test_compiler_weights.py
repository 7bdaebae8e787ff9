"""The compiler worker: canonical blobs, which do not depend on where the weights come from."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import openvino as ov
import pytest
from blake3 import blake3
from openvino import opset15 as ops

from softnpu.emulator.blob.container import Section, WeightsReference
from softnpu.emulator.blob.weights import SpaceLayout, const_layers, with_offsets
from softnpu.emulator.interface.messages import WeightSource
from softnpu.emulator.interface.result import ZeResult
from tests.support.compiler import Files, Made, Worker, memory_file, result


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
def two(tmp_path: Path) -> Iterator[Files]:
    files = Files(tmp_path, two_constants(), name="two")
    yield files
    files.close()


def test_every_content_is_listed_once_with_its_digest_at_a_multiple_of_64(worker: Worker, two: Files) -> None:
    made = worker.blob(two.job(), two.fds)
    large, small = sorted(reference(made).constants, key=lambda constant: -constant.length)
    assert (large.length, small.length) == (1024, 16)
    assert large.name in ("large", "again")
    assert {large.offset % 64, small.offset % 64} == {0}
    assert reference(made).size == max(large.offset + 1024, small.offset + 16)
    offsets = dict(zip([c.name for c in reference(made).constants], made.offsets, strict=True))
    for constant in (large, small):
        content = two.weights[offsets[constant.name] : offsets[constant.name] + constant.length]
        assert constant.digest == blake3(content).digest(16)
    assert not made.reader.has(Section.WEIGHTS)


def test_the_ir_refers_to_canonical_offsets(worker: Worker, two: Files) -> None:
    made = worker.blob(two.job(), two.fds)
    listed = {constant.offset: constant.length for constant in reference(made).constants}
    layers = const_layers(bytes(made.reader.read(Section.IR)))
    assert len(layers) == 3
    assert all(listed[layer.offset] == layer.size for layer in layers)


def test_one_model_has_one_blob_wherever_its_weights_lie(worker: Worker, two: Files) -> None:
    plain = worker.blob(two.job(), two.fds)
    layers = const_layers(two.xml_data)
    # in two files, the second range beginning in the middle of a page
    first = WeightSource(offset=0, length=len(two.weights))
    lead = 4096 * 3 + 123
    other = memory_file(bytes(lead) + two.weights)
    second = WeightSource(offset=lead, length=len(two.weights))
    starts = SpaceLayout([first, second]).starts
    offsets = [layer.offset + starts[(number + 1) % 2] for number, layer in enumerate(layers)]
    xml = with_offsets(two.xml_data, layers, offsets)
    fd = memory_file(xml)
    split = worker.blob(two.job(xml_length=len(xml), weights=(first, second)), [fd, two.bin, other])
    assert split.blob == plain.blob
    assert split.offsets != plain.offsets
    os.close(fd)
    os.close(other)


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


def test_constants_that_the_compiler_makes_are_embedded(worker: Worker, tmp_path: Path) -> None:
    """A constant that the shapes decide: reshaping folds it, so it is not among the weights any more."""
    x = ops.parameter([-1, 3], np.float32, name="x")
    shape = ops.shape_of(x)
    ones = ops.broadcast(ops.constant(np.float32(2.0), name="two"), shape)
    files = Files(tmp_path, ov.Model([ops.multiply(x, ones)], [x], "folded"))
    made = worker.blob(files.job(shapes={"x": (5, 3)}), files.fds)
    assert made.meta.outputs[0].shape == (5, 3)
    files.close()


def test_a_constant_that_reaches_beyond_its_source_is_refused(worker: Worker, two: Files) -> None:
    for cut in (1, 15, len(two.weights) - 1):
        sources = (WeightSource(offset=0, length=len(two.weights) - cut),)
        info = worker.info(two.job(weights=sources), two.fds)
        assert result(info) == ZeResult.ERROR_UNSUPPORTED_FEATURE


def test_a_constant_in_the_gap_between_two_sources_is_refused(worker: Worker, two: Files) -> None:
    layers = const_layers(two.xml_data)
    sources = (
        WeightSource(offset=0, length=len(two.weights)),
        WeightSource(offset=0, length=len(two.weights)),
    )
    xml = with_offsets(two.xml_data, layers, [len(two.weights) - 8] * len(layers))
    fd = memory_file(xml)
    info = worker.info(two.job(xml_length=len(xml), weights=sources), [fd, two.bin, two.bin])
    os.close(fd)
    assert result(info) == ZeResult.ERROR_UNSUPPORTED_FEATURE
    assert "reach beyond" in info.found


def test_constants_of_nested_bodies_are_found(worker: Worker, tmp_path: Path) -> None:
    x, flag = ops.parameter([4], np.float32, name="x"), ops.parameter([], bool, name="flag")
    bodies = []
    for number in (1, 2):
        inner = ops.parameter([4], np.float32)
        constant = ops.constant(np.full(4, number, np.float32), name=f"body{number}")
        bodies.append((ov.Model([ops.add(inner, constant)], [inner]), inner))
    choice = ops.if_op(flag)
    choice.set_then_body(bodies[0][0])
    choice.set_else_body(bodies[1][0])
    choice.set_input(x.output(0), bodies[0][1], bodies[1][1])
    out = choice.set_output(bodies[0][0].results[0], bodies[1][0].results[0])
    last = ops.add(out, ops.constant(np.full(4, 9, np.float32), name="last"))
    files = Files(tmp_path, ov.Model([last], [x, flag], "nested"))
    made = worker.blob(files.job(), files.fds)
    assert {constant.name for constant in reference(made).constants} == {"body1", "body2", "last"}
    files.close()


def test_text_constants_are_refused_by_name(worker: Worker, tmp_path: Path) -> None:
    x = ops.parameter([2], np.float32, name="x")
    packed = np.frombuffer(struct.pack("<4I4s", 2, 0, 1, 4, b"abcd"), np.uint8)
    files = Files(tmp_path, ov.Model([ops.relu(x), ops.constant(packed, name="words")], [x], "text"))
    xml = files.xml_data.replace(b'element_type="u8" shape="20"', b'element_type="string" shape="2"')
    xml = xml.replace(b'precision="U8"', b'precision="STRING"').replace(b"<dim>20</dim>", b"<dim>2</dim>")
    assert xml != files.xml_data
    fd = memory_file(xml)
    info = worker.info(files.job(xml_length=len(xml)), [fd, files.bin])
    os.close(fd)
    files.close()
    assert result(info) == ZeResult.ERROR_UNSUPPORTED_FEATURE
    assert "string" in str(info)


def test_notes_of_programs_to_the_compiler_do_not_change_the_blob(worker: Worker, tmp_path: Path) -> None:
    noted = two_constants()
    plain = Files(tmp_path, noted, name="two")
    for key in ("is_new_api", "use_indices_for_io_metadata", "ws_bin_offset_0"):
        noted.set_rt_info("true", key)
    folder = tmp_path / "noted"
    folder.mkdir()
    files = Files(folder, noted, name="two")
    assert worker.blob(files.job(), files.fds).blob == worker.blob(plain.job(), plain.fds).blob
    files.close()
    plain.close()
