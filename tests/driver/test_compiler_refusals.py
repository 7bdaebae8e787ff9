"""The compiler worker: models, descriptors and jobs that it refuses."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import openvino as ov
import pytest
from openvino import opset15 as ops

from softnpu.emulator.common import linux
from softnpu.emulator.interface.channel import Channel
from softnpu.emulator.interface.messages import Failed, Progress, WeightSource, encode
from softnpu.emulator.interface.result import ZeResult
from softnpu.emulator.links.compiler import outcome_decoder
from tests.support.compiler import DEADLINE_S, Files, Worker, elementwise, memory_file, result, worker_command


@pytest.mark.parametrize("element_type", ["string", "u1", "u4", "i4", "nf4", "f8e4m3"])
def test_an_element_type_that_no_tensor_can_carry_is_refused(
    worker: Worker, tmp_path: Path, element_type: str
) -> None:
    files = Files(tmp_path, elementwise(getattr(ov.Type, element_type), [2, 8]))
    info = worker.info(files.job(weights=()), [files.xml])
    assert result(info) == ZeResult.ERROR_UNSUPPORTED_FEATURE
    assert info.object == "model 'digits', input 'data'"
    assert info.found == f"element type {element_type}"
    files.close()


def test_operations_that_cannot_run_are_refused_by_name(worker: Worker, tmp_path: Path) -> None:
    tensor = ops.parameter([2, 8], np.float32, name="x")
    odd = ops.convert(tensor, "u3", name="to_three_bits")
    files = Files(tmp_path, ov.Model([ops.relu(ops.convert(odd, "f32"))], [tensor], "odd"))
    info = worker.info(files.job(weights=()), [files.xml])
    assert result(info) == ZeResult.ERROR_UNSUPPORTED_FEATURE
    assert info.object == "model 'digits', operation 'to_three_bits'"
    assert "type Convert" in info.found
    assert "one of 2" in info.found
    files.close()


@pytest.mark.parametrize(
    "spoil",
    [
        lambda _: b"garbage",
        lambda xml: b"\x08\x0a" + xml,
        lambda xml: xml[: len(xml) // 2],
        lambda xml: xml.replace(b'type="ReLU"', b'type="Rulu"'),
        lambda xml: xml.replace(b'version="11"', b'version="99"'),
        lambda xml: xml.replace(b"f32", b"f\xff2"),
        lambda xml: xml.replace(b'name="image"', b'name="im\xffge"').replace(b"image,pixels", b"im\xffge"),
        lambda _: b"<?xml version='1.0'?><net name='a' version='11'><layers/></net>",
    ],
)
def test_an_ir_that_cannot_be_read_is_refused(
    worker: Worker, static: Files, spoil: Callable[[bytes], bytes]
) -> None:
    xml = spoil(static.xml_data)
    fd = memory_file(xml)
    info = worker.info(static.job(xml_length=len(xml)), [fd, static.bin])
    os.close(fd)
    assert result(info) == ZeResult.ERROR_UNSUPPORTED_FEATURE
    assert info.object.startswith("model 'digits'")
    assert ".cpp" not in info.found


def test_weights_that_are_too_few_are_refused(worker: Worker, static: Files) -> None:
    few = (WeightSource(offset=static.lead, length=len(static.weights) // 2),)
    info = worker.info(static.job(weights=few), static.fds)
    assert result(info) == ZeResult.ERROR_UNSUPPORTED_FEATURE
    assert "weights" in info.found
    info = worker.info(static.job(weights=()), [static.xml])
    assert "the model came without weights" in info.hint


@pytest.mark.parametrize(
    ("offset", "length"), [(0, 1 << 40), (1 << 40, 1), (2**63, 2**63), (2**64 - 1, 2), (-1, 10), (0, -1)]
)
def test_a_weights_range_outside_the_file_is_refused(
    worker: Worker, static: Files, offset: int, length: int
) -> None:
    info = worker.info(static.job(weights=(WeightSource(offset=offset, length=length),)), static.fds)
    assert result(info) == ZeResult.ERROR_INVALID_SIZE
    assert info.object == "model 'digits', weights"


def test_a_truncated_weights_file_is_refused(worker: Worker, static: Files) -> None:
    fd = memory_file(bytes(static.lead) + static.weights[:-1])
    info = worker.info(static.job(), [static.xml, fd])
    os.close(fd)
    assert result(info) == ZeResult.ERROR_INVALID_SIZE
    assert str(static.lead + len(static.weights) - 1) in info.found


@pytest.mark.parametrize("length", [0, -1, 1 << 20, 2**63])
def test_an_xml_length_that_the_file_does_not_have_is_refused(
    worker: Worker, static: Files, length: int
) -> None:
    info = worker.info(static.job(xml_length=length), static.fds)
    assert result(info) == ZeResult.ERROR_INVALID_SIZE


def test_an_xml_above_the_limit_is_refused_unread(worker: Worker, static: Files) -> None:
    fd = linux.memfd("huge", 1 << 40)
    info = worker.info(static.job(xml_length=1 << 40), [fd, static.bin])
    os.close(fd)
    assert result(info) == ZeResult.ERROR_UNSUPPORTED_SIZE


@pytest.mark.parametrize("place", [0, 1])
def test_a_pipe_in_place_of_a_file_is_refused_at_once(worker: Worker, static: Files, place: int) -> None:
    reader, writer = os.pipe()
    fds = static.fds
    fds[place] = reader
    info = worker.info(static.job(), fds)
    os.close(reader)
    os.close(writer)
    assert result(info) == ZeResult.ERROR_INVALID_ARGUMENT
    assert info.found == "a pipe"


def test_a_file_that_cannot_be_read_is_a_failed_build(worker: Worker, static: Files, tmp_path: Path) -> None:
    (tmp_path / "locked").write_bytes(static.xml_data)
    fd = os.open(tmp_path / "locked", os.O_WRONLY)
    info = worker.info(static.job(), [fd, static.bin])
    os.close(fd)
    assert result(info) == ZeResult.ERROR_MODULE_BUILD_FAILURE


@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_wrong_number_of_descriptors_is_refused(worker: Worker, static: Files, count: int) -> None:
    info = worker.info(static.job(), [static.xml] * count)
    assert result(info) == ZeResult.ERROR_INVALID_ARGUMENT
    assert f"{count} descriptors" in info.found


@pytest.mark.parametrize("body", [b"", b"\xc1", b"\x80", b"\x91" * 5000, encode(Progress(stage="x", done=0))])
def test_a_body_that_is_no_job_is_refused(worker: Worker, static: Files, body: bytes) -> None:
    assert result(worker.info(body, static.fds)) == ZeResult.ERROR_INVALID_ARGUMENT


def test_a_required_field_that_is_unknown_is_refused_by_name(worker: Worker, static: Files) -> None:
    info = worker.info(static.job(must=("quantum",)), static.fds)
    assert result(info) == ZeResult.ERROR_UNSUPPORTED_FEATURE
    assert "quantum" in info.found


def test_a_fault_fits_a_frame_however_long_the_names_are(worker: Worker, static: Files) -> None:
    info = worker.info(static.job(name="n" * 30000, config={"X" * 30000: ""}), static.fds)
    assert result(info) == ZeResult.ERROR_UNSUPPORTED_FEATURE
    assert len(encode(Failed(info=info))) < 10000


def test_a_malformed_frame_is_answered_and_the_worker_goes_on(static: Files) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    command = worker_command(theirs.fileno())
    with subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL) as process:
        theirs.close()
        channel = Channel(ours)
        try:
            ours.send(b"not a frame")
            channel.send(7, encode(static.job()), [static.xml])
            for request in (0, 7):
                assert channel.wait_readable(DEADLINE_S)
                with channel.receive() or pytest.fail("closed") as packet:
                    assert packet.request == request
                    if request:
                        continue
                    assert isinstance(outcome_decoder.decode(packet.body), Failed)
        finally:
            channel.close()
            try:
                process.wait(DEADLINE_S)
            finally:
                process.kill()
