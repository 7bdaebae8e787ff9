"""The compiler worker, as a real process over a real channel."""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import numpy as np
import openvino as ov
import pytest
from blake3 import blake3
from openvino import opset15 as ops

from softnpu.emulator.interface import linux
from softnpu.emulator.interface.blob import (
    BlobReader,
    GraphMeta,
    Section,
    WeightsReference,
    pack,
)
from softnpu.emulator.interface.channel import Channel
from softnpu.emulator.interface.compiling import Compiled, CompileJob, ImportJob, Outcome, outcome_decoder
from softnpu.emulator.interface.messages import Failed, Message, Progress, WeightSource, encode
from softnpu.emulator.interface.result import Fault, ZeResult

DEADLINE_S = 30.0
PLATFORM = "NPU4000"
ENGINE_CONFIG = {
    "INFERENCE_PRECISION_HINT": "f32",
    "PERFORMANCE_HINT": "LATENCY",
    "INFERENCE_NUM_THREADS": "0",
    "EXECUTION_MODE_HINT": "ACCURACY",
    "PERF_COUNT": "NO",
}


class Worker:
    """A worker process and our end of its channel. Every wait has a deadline."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            command = [
                sys.executable,
                "-m",
                "softnpu.driver.compiler",
                str(theirs.fileno()),
                str(os.getpid()),
            ]
            self.process = subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
        self.channel = Channel(ours)
        self.progress: list[Progress] = []
        self._request = 0

    def close(self) -> None:
        self.channel.close()
        try:
            self.process.wait(DEADLINE_S)
        finally:
            self.process.kill()
            self.process.wait()

    def ask(self, body: bytes | Message, fds: list[int]) -> tuple[Outcome, list[int]]:
        """The outcome of one job and its descriptors; progress is kept in `progress`."""
        self._request += 1
        self.progress = []
        self.channel.send(self._request, body if isinstance(body, bytes) else encode(body), fds)
        deadline = time.monotonic() + DEADLINE_S
        while True:
            assert self.channel.wait_readable(deadline - time.monotonic()), "no answer in time"
            packet = self.channel.receive()
            assert packet is not None, "the worker closed the channel"
            with packet:
                assert packet.request == self._request
                outcome = outcome_decoder.decode(packet.body)
                if not isinstance(outcome, Progress):
                    return outcome, packet.take_fds(packet.fd_count)
                self.progress.append(outcome)

    def fault(self, body: bytes | Message, fds: list[int]) -> Fault:
        """The fault of a job that has to fail; it brings no descriptor."""
        outcome, answered = self.ask(body, fds)
        assert answered == []
        assert isinstance(outcome, Failed), outcome
        return outcome.fault

    def blob(self, body: Message, fds: list[int]) -> tuple[Compiled, bytes]:
        """The answer to a job that has to succeed, and the content of its blob, which must be immutable."""
        outcome, answered = self.ask(body, fds)
        assert isinstance(outcome, Compiled), outcome
        (fd,) = answered
        try:
            assert linux.has_seals(fd, linux.SEALS_IMMUTABLE)
            content = os.pread(fd, os.fstat(fd).st_size, 0)
        finally:
            os.close(fd)
        assert len(content) == outcome.blob_length
        assert blake3(content).digest() == outcome.blob_digest
        return outcome, content

    def fd_count(self) -> int:
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    def mappings(self, of: str) -> int:
        return Path(f"/proc/{self.process.pid}/maps").read_text().count(of)


class Files:
    """An IR on disk with open descriptors: `xml`, and `bin` with `lead` bytes before the weights."""

    def __init__(self, folder: Path, model: ov.Model, lead: int = 0, name: str = "digits") -> None:
        path = folder / f"{name}.xml"
        ov.serialize(model, path)
        self.xml_data = path.read_bytes()
        self.weights = path.with_suffix(".bin").read_bytes()
        path.with_suffix(".bin").write_bytes(bytes(lead) + self.weights)
        self.xml = os.open(path, os.O_RDONLY)
        self.bin = os.open(path.with_suffix(".bin"), os.O_RDONLY)
        self.lead = lead
        self.name = name

    @property
    def fds(self) -> list[int]:
        return [self.xml, self.bin]

    @property
    def source(self) -> WeightSource:
        return WeightSource(offset=self.lead, length=len(self.weights))

    def job(self, **changes: object) -> CompileJob:
        job = CompileJob(
            name=self.name, platform=PLATFORM, xml_length=len(self.xml_data), weights=self.source
        )
        return msgspec.structs.replace(job, **changes)

    def close(self) -> None:
        os.close(self.xml)
        os.close(self.bin)


def convolution(shape: list[int], kernels: int = 4) -> ov.Model:
    """image -> 3x3 convolution -> relu, seeded weights; one input and one output, both named."""
    image = ops.parameter(shape, np.float32, name="image")
    image.output(0).set_names({"image", "pixels"})
    image.layout = ov.Layout("NCHW")
    weights = np.random.default_rng(0).standard_normal((kernels, 3, 3, 3), np.float32)
    node = ops.convolution(image, ops.constant(weights), [1, 1], [0, 0], [0, 0], [1, 1])
    relu = ops.relu(node)
    relu.output(0).set_names({"scores"})
    return ov.Model([relu], [image], "digits")


def elementwise(element_type: ov.Type, shape: list[int]) -> ov.Model:
    tensor = ops.parameter(shape, element_type, name="data")
    return ov.Model([ops.convert(tensor, "f32")], [tensor], "elementwise")


def memory_file(content: bytes) -> int:
    fd = linux.memfd("test")
    os.write(fd, content)
    return fd


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    """One worker for all tests, as in service: a refused job must leave it able to do the next one."""
    worker = Worker()
    yield worker
    assert worker.process.poll() is None, "a job has killed the worker"
    worker.close()
    assert worker.process.returncode == 0


@pytest.fixture
def static(tmp_path: Path) -> Iterator[Files]:
    files = Files(tmp_path, convolution([1, 3, 16, 16]), lead=100)
    yield files
    files.close()


@pytest.fixture
def dynamic(tmp_path: Path) -> Iterator[Files]:
    files = Files(tmp_path, convolution([-1, 3, -1, -1]), name="pictures")
    yield files
    files.close()


def result(fault: Fault) -> ZeResult:
    assert fault.object
    assert fault.found
    return ZeResult(fault.result)


# ---------------------------------------------------------------- compilation


def test_a_blob_describes_the_model(worker: Worker, static: Files) -> None:
    answer, content = worker.blob(static.job(), static.fds)
    reader = BlobReader(content)
    meta = reader.metadata()
    assert (meta.name, meta.platform, meta.precision) == ("digits", PLATFORM, "f32")
    assert meta.config == ENGINE_CONFIG
    assert meta.shapes == {}
    assert meta.operations == 5
    assert meta.openvino == ov.get_version()
    assert meta.compiler == "softnpu-compiler 1.0"
    (image,), (scores,) = meta.inputs, meta.outputs
    assert (image.name, image.names, image.element_type) == ("image", ("image", "pixels"), "f32")
    assert (image.shape, image.layout, image.byte_size) == ((1, 3, 16, 16), "[N,C,H,W]", 4 * 3 * 16 * 16)
    assert (scores.name, scores.shape, scores.layout) == ("scores", (1, 4, 14, 14), "")
    assert scores.byte_size == 4 * 4 * 14 * 14
    assert answer.log == ""


def test_a_blob_holds_the_original_ir_and_refers_to_the_weights(worker: Worker, static: Files) -> None:
    answer, content = worker.blob(static.job(), static.fds)
    reader = BlobReader(content)
    digest = blake3(static.weights).digest()
    assert bytes(reader.read(Section.IR)) == static.xml_data
    assert not reader.has(Section.WEIGHTS)
    assert reader.weights_reference() == WeightsReference(length=len(static.weights), digest=digest)
    assert answer.weights_digest == digest


def test_the_same_job_gives_the_same_blob(worker: Worker, dynamic: Files) -> None:
    job = dynamic.job(shapes={"image": (1, 3, 8, 8)}, config={"PERF_COUNT": "YES"})
    assert worker.blob(job, dynamic.fds) == worker.blob(job, dynamic.fds)


def test_a_model_without_constants_needs_no_weights(worker: Worker, tmp_path: Path) -> None:
    files = Files(tmp_path, elementwise(ov.Type.i32, [2, 3]))
    answer, content = worker.blob(files.job(weights=None), [files.xml])
    assert answer.weights_digest == b""
    assert BlobReader(content).weights_reference() is None
    empty = files.job(weights=WeightSource(offset=0, length=0))
    assert worker.blob(empty, files.fds)[1] == content
    files.close()


def test_every_stage_is_told_and_progress_never_falls(worker: Worker, static: Files) -> None:
    worker.blob(static.job(), static.fds)
    stages = list(dict.fromkeys(progress.stage for progress in worker.progress))
    assert stages == ["receive", "read", "shape", "check", "weights", "pack"]
    done = [progress.done for progress in worker.progress]
    assert done == sorted(done)
    assert 0 <= done[0] < done[-1] <= 1


def test_a_log_level_gives_a_build_log_with_times(worker: Worker, static: Files) -> None:
    answer, _ = worker.blob(static.job(config={"LOG_LEVEL": "LOG_INFO"}), static.fds)
    assert "weights: " in answer.log
    assert " ms" in answer.log
    assert "5 operations" in answer.log


def test_arguments_that_share_their_tensor_names_get_names_of_their_own(
    worker: Worker, tmp_path: Path
) -> None:
    tensor = ops.parameter([2], np.float32, name="x")
    tensor.output(0).set_names({"x"})
    relu = ops.relu(tensor)
    relu.output(0).set_names({"r"})
    files = Files(tmp_path, ov.Model([relu, relu, tensor], [tensor], "shared"))
    _, content = worker.blob(files.job(weights=None), [files.xml])
    names = [argument.name for argument in BlobReader(content).metadata().arguments]
    assert names[:2] == ["x", "r"]
    assert len(set(names)) == len(names) == 4
    files.close()


# ---------------------------------------------------------------- shapes


def test_shapes_are_applied_and_recorded(worker: Worker, dynamic: Files) -> None:
    _, content = worker.blob(dynamic.job(shapes={"pixels": (2, 3, 10, 12)}), dynamic.fds)
    meta = BlobReader(content).metadata()
    assert meta.shapes == {"image": (2, 3, 10, 12)}
    assert [argument.shape for argument in meta.arguments] == [(2, 3, 10, 12), (2, 4, 8, 10)]
    assert bytes(BlobReader(content).read(Section.IR)) == dynamic.xml_data


def test_a_recorded_shape_gives_the_arguments_again(worker: Worker, dynamic: Files) -> None:
    _, content = worker.blob(dynamic.job(shapes={"image": (1, 3, 8, 8)}), dynamic.fds)
    meta = BlobReader(content).metadata()
    weights = ov.Tensor(np.frombuffer(dynamic.weights, np.uint8).copy(), shared_memory=True)
    model = ov.Core().read_model(bytes(BlobReader(content).read(Section.IR)), weights)
    wanted = {at: meta.shapes[arg.name] for at, arg in enumerate(meta.inputs) if arg.name in meta.shapes}
    model.reshape(wanted)
    shapes = [tuple(port.shape) for port in [*model.inputs, *model.outputs]]
    assert shapes == [argument.shape for argument in meta.arguments]


def test_a_shape_that_the_model_has_already_changes_nothing(worker: Worker, static: Files) -> None:
    shaped = static.job(shapes={"image": (1, 3, 16, 16)})
    assert worker.blob(shaped, static.fds)[1] == worker.blob(static.job(), static.fds)[1]


def test_inputs_without_tensor_names_go_by_their_friendly_name(worker: Worker, tmp_path: Path) -> None:
    files = Files(tmp_path, elementwise(ov.Type.f32, [-1, 3]))
    xml = files.xml_data.replace(b' names="data"', b"")
    fd = memory_file(xml)
    job = files.job(xml_length=len(xml), weights=None, shapes={"data": (5, 3)})
    _, content = worker.blob(job, [fd])
    assert BlobReader(content).metadata().shapes == {"data": (5, 3)}
    os.close(fd)
    files.close()


def test_a_dynamic_model_is_refused_with_the_way_out(worker: Worker, dynamic: Files) -> None:
    fault = worker.fault(dynamic.job(), dynamic.fds)
    assert result(fault) == ZeResult.ERROR_UNSUPPORTED_FEATURE
    assert fault.object == "model 'pictures', input 'image'"
    assert "[?,3,?,?]" in fault.found
    assert "--shape image=1,3,320,320" in fault.hint


def test_an_output_whose_size_depends_on_the_data_is_refused(worker: Worker, tmp_path: Path) -> None:
    tensor = ops.parameter([4, 4], np.float32, name="x")
    files = Files(tmp_path, ov.Model([ops.non_zero(tensor)], [tensor], "sparse"))
    fault = worker.fault(files.job(weights=None), [files.xml])
    assert result(fault) == ZeResult.ERROR_UNSUPPORTED_FEATURE
    assert "output" in fault.object
    assert "depends on the data" in fault.hint
    files.close()


@pytest.mark.parametrize(
    ("shapes", "words"),
    [
        ({"imgae": (1, 3, 8, 8)}, ["'imgae'", "'image'"]),
        ({"image": (1, 4, 8, 8)}, ["[1,4,8,8]", "channel count (4)", "[?,3,?,?]"]),
        ({"image": (1, 3, 8)}, ["[1,3,8]", "not compatible"]),
        ({"image": (1, 3, 0, 8)}, ["[1,3,0,8]", "dimensions from 1"]),
        ({"image": (1, 3, -1, 8)}, ["[1,3,-1,8]", "dimensions from 1"]),
        ({"image": (2**62, 3, 8, 8)}, ["dimensions from 1"]),
        ({"image": (1, 3, 8, 8), "pixels": (1, 3, 9, 9)}, ["two shapes"]),
    ],
)
def test_a_shape_that_cannot_be_is_refused(
    worker: Worker, dynamic: Files, shapes: dict[str, tuple[int, ...]], words: list[str]
) -> None:
    fault = worker.fault(dynamic.job(shapes=shapes), dynamic.fds)
    assert result(fault) == ZeResult.ERROR_INVALID_ARGUMENT
    assert all(word in str(fault) for word in words), fault
    assert "\n" not in str(fault)
    assert ".cpp" not in str(fault)


def test_an_argument_of_absurd_size_is_refused(worker: Worker, dynamic: Files) -> None:
    fault = worker.fault(dynamic.job(shapes={"image": (1, 3, 2**30, 2**30)}), dynamic.fds)
    assert result(fault) == ZeResult.ERROR_UNSUPPORTED_SIZE


# ---------------------------------------------------------------- configuration


def test_values_given_are_recorded(worker: Worker, static: Files) -> None:
    given = {
        "PERFORMANCE_HINT": "THROUGHPUT",
        "INFERENCE_NUM_THREADS": "002",
        "EXECUTION_MODE_HINT": "PERFORMANCE",
        "PERF_COUNT": "YES",
        "NPU_PLATFORM": "4000",
        "NPU_TILES": "2",
        "LOG_LEVEL": "LOG_WARNING",
    }
    _, content = worker.blob(static.job(config=given), static.fds)
    assert BlobReader(content).metadata().config == {
        "INFERENCE_PRECISION_HINT": "f32",
        "PERFORMANCE_HINT": "THROUGHPUT",
        "INFERENCE_NUM_THREADS": "2",
        "EXECUTION_MODE_HINT": "PERFORMANCE",
        "PERF_COUNT": "YES",
    }


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("INFERENCE_PRECISION_HINT", "i8"),
        ("PERFORMANCE_HINT", "latency"),
        ("INFERENCE_NUM_THREADS", "-1"),
        ("INFERENCE_NUM_THREADS", "99999999999"),
        ("INFERENCE_NUM_THREADS", "٣"),
        ("EXECUTION_MODE_HINT", ""),
        ("NPU_PLATFORM", "NPU3720"),
        ("LOG_LEVEL", "VERBOSE"),
        ("PERF_COUNT", "MAYBE"),
        ("NPU_TILES", "0"),
    ],
)
def test_a_bad_value_is_refused_with_what_is_allowed(
    worker: Worker, static: Files, name: str, value: str
) -> None:
    fault = worker.fault(static.job(config={name: value}), static.fds)
    assert result(fault) == ZeResult.ERROR_INVALID_ARGUMENT
    assert name in fault.object
    assert f"'{value}'" in fault.found
    assert fault.expected


def test_an_unknown_property_is_refused_with_near_names(worker: Worker, static: Files) -> None:
    fault = worker.fault(static.job(config={"PERFORMANCE_HINTS": "LATENCY"}), static.fds)
    assert result(fault) == ZeResult.ERROR_UNSUPPORTED_FEATURE
    assert "PERFORMANCE_HINTS" in fault.object
    assert "PERFORMANCE_HINT" in fault.hint


@pytest.mark.parametrize(("precision", "capability"), [("bf16", "BF16"), ("f16", "FP16")])
def test_a_precision_is_honoured_or_refused(
    worker: Worker, static: Files, precision: str, capability: str
) -> None:
    job = static.job(config={"INFERENCE_PRECISION_HINT": precision})
    if capability in ov.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES"):
        assert BlobReader(worker.blob(job, static.fds)[1]).metadata().precision == precision
    else:
        fault = worker.fault(job, static.fds)
        assert result(fault) == ZeResult.ERROR_UNSUPPORTED_FEATURE
        assert precision in fault.found
        assert "f32" in fault.expected


# ---------------------------------------------------------------- models that cannot be


@pytest.mark.parametrize("element_type", ["string", "u1", "u4", "i4", "nf4", "f8e4m3"])
def test_an_element_type_that_no_tensor_can_carry_is_refused(
    worker: Worker, tmp_path: Path, element_type: str
) -> None:
    files = Files(tmp_path, elementwise(getattr(ov.Type, element_type), [2, 8]))
    fault = worker.fault(files.job(weights=None), [files.xml])
    assert result(fault) == ZeResult.ERROR_UNSUPPORTED_FEATURE
    assert fault.object == "model 'digits', input 'data'"
    assert fault.found == f"element type {element_type}"
    files.close()


def test_operations_that_cannot_run_are_refused_by_name(worker: Worker, tmp_path: Path) -> None:
    tensor = ops.parameter([2, 8], np.float32, name="x")
    odd = ops.convert(tensor, "u3", name="to_three_bits")
    files = Files(tmp_path, ov.Model([ops.relu(ops.convert(odd, "f32"))], [tensor], "odd"))
    fault = worker.fault(files.job(weights=None), [files.xml])
    assert result(fault) == ZeResult.ERROR_UNSUPPORTED_FEATURE
    assert fault.object == "model 'digits', operation 'to_three_bits'"
    assert "type Convert" in fault.found
    assert "one of 2" in fault.found
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
    fault = worker.fault(static.job(xml_length=len(xml)), [fd, static.bin])
    os.close(fd)
    assert result(fault) == ZeResult.ERROR_UNSUPPORTED_FEATURE
    assert fault.object.startswith("model 'digits'")
    assert ".cpp" not in fault.found


def test_weights_that_are_too_few_are_refused(worker: Worker, static: Files) -> None:
    few = WeightSource(offset=static.lead, length=len(static.weights) // 2)
    fault = worker.fault(static.job(weights=few), static.fds)
    assert result(fault) == ZeResult.ERROR_UNSUPPORTED_FEATURE
    assert "weights" in fault.found
    fault = worker.fault(static.job(weights=None), [static.xml])
    assert "the model came without weights" in fault.hint


# ---------------------------------------------------------------- descriptors


@pytest.mark.parametrize(
    ("offset", "length"), [(0, 1 << 40), (1 << 40, 1), (2**63, 2**63), (2**64 - 1, 2), (-1, 10), (0, -1)]
)
def test_a_weights_range_outside_the_file_is_refused(
    worker: Worker, static: Files, offset: int, length: int
) -> None:
    fault = worker.fault(static.job(weights=WeightSource(offset=offset, length=length)), static.fds)
    assert result(fault) == ZeResult.ERROR_INVALID_SIZE
    assert fault.object == "model 'digits', weights"


def test_a_truncated_weights_file_is_refused(worker: Worker, static: Files) -> None:
    fd = memory_file(bytes(static.lead) + static.weights[:-1])
    fault = worker.fault(static.job(), [static.xml, fd])
    os.close(fd)
    assert result(fault) == ZeResult.ERROR_INVALID_SIZE
    assert str(static.lead + len(static.weights) - 1) in fault.found


@pytest.mark.parametrize("length", [0, -1, 1 << 20, 2**63])
def test_an_xml_length_that_the_file_does_not_have_is_refused(
    worker: Worker, static: Files, length: int
) -> None:
    fault = worker.fault(static.job(xml_length=length), static.fds)
    assert result(fault) == ZeResult.ERROR_INVALID_SIZE


def test_an_xml_above_the_limit_is_refused_unread(worker: Worker, static: Files) -> None:
    fd = linux.memfd("huge", 1 << 40)
    fault = worker.fault(static.job(xml_length=1 << 40), [fd, static.bin])
    os.close(fd)
    assert result(fault) == ZeResult.ERROR_UNSUPPORTED_SIZE


@pytest.mark.parametrize("place", [0, 1])
def test_a_pipe_in_place_of_a_file_is_refused_at_once(worker: Worker, static: Files, place: int) -> None:
    reader, writer = os.pipe()
    fds = static.fds
    fds[place] = reader
    fault = worker.fault(static.job(), fds)
    os.close(reader)
    os.close(writer)
    assert result(fault) == ZeResult.ERROR_INVALID_ARGUMENT
    assert fault.found == "a pipe"


def test_a_file_that_cannot_be_read_is_a_failed_build(worker: Worker, static: Files, tmp_path: Path) -> None:
    (tmp_path / "locked").write_bytes(static.xml_data)
    fd = os.open(tmp_path / "locked", os.O_WRONLY)
    fault = worker.fault(static.job(), [fd, static.bin])
    os.close(fd)
    assert result(fault) == ZeResult.ERROR_MODULE_BUILD_FAILURE


# ---------------------------------------------------------------- malformed jobs


@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_wrong_number_of_descriptors_is_refused(worker: Worker, static: Files, count: int) -> None:
    fault = worker.fault(static.job(), [static.xml] * count)
    assert result(fault) == ZeResult.ERROR_INVALID_ARGUMENT
    assert f"{count} descriptors" in fault.found


@pytest.mark.parametrize("body", [b"", b"\xc1", b"\x80", b"\x91" * 5000, encode(Progress(stage="x", done=0))])
def test_a_body_that_is_no_job_is_refused(worker: Worker, static: Files, body: bytes) -> None:
    assert result(worker.fault(body, static.fds)) == ZeResult.ERROR_INVALID_ARGUMENT


def test_a_required_field_that_is_unknown_is_refused_by_name(worker: Worker, static: Files) -> None:
    fault = worker.fault(static.job(must=("quantum",)), static.fds)
    assert result(fault) == ZeResult.ERROR_UNSUPPORTED_FEATURE
    assert "quantum" in fault.found


def test_a_fault_fits_a_frame_however_long_the_names_are(worker: Worker, static: Files) -> None:
    fault = worker.fault(static.job(name="n" * 30000, config={"X" * 30000: ""}), static.fds)
    assert result(fault) == ZeResult.ERROR_UNSUPPORTED_FEATURE
    assert len(encode(Failed(fault=fault))) < 10000


def test_a_malformed_frame_is_answered_and_the_worker_goes_on(static: Files) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    command = [sys.executable, "-m", "softnpu.driver.compiler", str(theirs.fileno()), str(os.getpid())]
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


# ---------------------------------------------------------------- import


def import_job(content: bytes, weights: WeightSource | None) -> ImportJob:
    return ImportJob(platform=PLATFORM, blob_length=len(content), weights=weights)


def altered(content: bytes, drop: tuple[Section, ...] = (), **sections: bytes) -> bytes:
    """The blob with other sections, by name; checksums are right again."""
    reader = BlobReader(content)
    kept = {
        Section(kind): bytes(reader.read(Section(kind)))
        for kind, _, _ in reader.sections
        if Section(kind) not in drop
    }
    return pack(kept | {Section[name]: data for name, data in sections.items()})


def with_meta(content: bytes, **changes: object) -> bytes:
    meta: GraphMeta = msgspec.structs.replace(BlobReader(content).metadata(), **changes)
    return altered(content, METADATA=msgspec.msgpack.encode(meta))


def import_fault(worker: Worker, content: bytes, files: Files) -> Fault:
    fd = memory_file(content)
    try:
        return worker.fault(import_job(content, files.source), [fd, files.bin])
    finally:
        os.close(fd)


def test_an_own_blob_is_imported_with_its_weights(worker: Worker, dynamic: Files) -> None:
    compiled, content = worker.blob(dynamic.job(shapes={"image": (1, 3, 8, 8)}), dynamic.fds)
    fd = memory_file(content)
    imported, again = worker.blob(import_job(content, dynamic.source), [fd, dynamic.bin])
    os.close(fd)
    assert again == content
    assert imported == msgspec.structs.replace(compiled, log="")


def test_an_immutable_blob_is_handed_back_and_any_other_is_copied(worker: Worker, static: Files) -> None:
    _, content = worker.blob(static.job(), static.fds)
    for fd, same in ((linux.sealed_copy("test", content), True), (memory_file(content), False)):
        outcome, (answer,) = worker.ask(import_job(content, static.source), [fd, static.bin])
        assert isinstance(outcome, Compiled)
        assert (os.fstat(answer).st_ino == os.fstat(fd).st_ino) is same
        os.close(answer)
        os.close(fd)


def test_a_blob_with_its_weights_inside_needs_none(worker: Worker, static: Files) -> None:
    _, content = worker.blob(static.job(), static.fds)
    whole = altered(content, drop=(Section.WEIGHTS_REFERENCE,), WEIGHTS=static.weights)
    fd = memory_file(whole)
    answer, again = worker.blob(import_job(whole, None), [fd])
    os.close(fd)
    assert again == whole
    assert answer.weights_digest == b""


def test_the_wrong_weights_file_is_refused_with_both_digests(worker: Worker, static: Files) -> None:
    _, content = worker.blob(static.job(), static.fds)
    wrong = static.weights[:-1] + bytes([static.weights[-1] ^ 1])
    blob, weights = memory_file(content), memory_file(wrong)
    source = WeightSource(offset=0, length=len(wrong))
    fault = worker.fault(import_job(content, source), [blob, weights])
    assert result(fault) == ZeResult.ERROR_INVALID_ARGUMENT
    assert blake3(wrong).hexdigest()[:16] in fault.found
    assert blake3(static.weights).hexdigest()[:16] in fault.expected
    assert "wrong weights file" in fault.hint
    short = worker.fault(import_job(content, WeightSource(offset=0, length=5)), [blob, weights])
    assert (result(short), short.found) == (ZeResult.ERROR_INVALID_ARGUMENT, "5 bytes")
    missing = worker.fault(import_job(content, None), [blob])
    assert "none came" in missing.found
    os.close(blob)
    os.close(weights)


@pytest.mark.parametrize(
    ("spoil", "word"),
    [
        (lambda _: b"", "bytes"),
        (lambda _: b"ELF" * 100, "magic"),
        (lambda blob: blob[:-1], "total size"),
        (lambda blob: blob[:8] + b"\x02" + blob[9:], "version"),
        (lambda blob: blob[:-1] + bytes([blob[-1] ^ 1]), "checksum"),
        (lambda blob: with_meta(blob, platform="NPU3720"), "platform"),
        (lambda blob: with_meta(blob, precision="bf16"), "precision"),
        (lambda blob: with_meta(blob, config={}), "config"),
        (lambda blob: with_meta(blob, arguments=BlobReader(blob).metadata().inputs), "arguments"),
        (lambda blob: altered(blob, METADATA=b"\x93"), "METADATA"),
        (lambda blob: altered(blob, IR=b"<net/>"), "IR"),
        (lambda blob: altered(blob, drop=(Section.IR,)), "IR"),
        (lambda blob: altered(blob, WEIGHTS=b"both"), "weights"),
    ],
)
def test_a_bad_blob_is_refused_naming_what_is_wrong(
    worker: Worker, static: Files, spoil: Callable[[bytes], bytes], word: str
) -> None:
    _, content = worker.blob(static.job(), static.fds)
    fault = import_fault(worker, spoil(content), static)
    expected = ZeResult.ERROR_INVALID_NATIVE_BINARY if spoil(content) else ZeResult.ERROR_INVALID_SIZE
    assert result(fault) == expected
    assert word in fault.object + fault.found


def test_a_forged_argument_size_is_refused(worker: Worker, static: Files) -> None:
    _, content = worker.blob(static.job(), static.fds)
    image, scores = BlobReader(content).metadata().arguments
    forged = msgspec.structs.replace(scores, byte_size=16)
    fault = import_fault(worker, with_meta(content, arguments=(image, forged)), static)
    assert result(fault) == ZeResult.ERROR_INVALID_NATIVE_BINARY
    assert "argument 1" in fault.found
    assert "16 bytes" in fault.found


def test_a_sparse_blob_larger_than_the_host_is_refused(worker: Worker) -> None:
    size = 1 << 50
    fd = linux.memfd("sparse", size)
    fault = worker.fault(ImportJob(platform=PLATFORM, blob_length=size), [fd])
    os.close(fd)
    assert result(fault) == ZeResult.ERROR_OUT_OF_HOST_MEMORY


# ---------------------------------------------------------------- life of the process


def test_two_hundred_jobs_leave_nothing_behind(worker: Worker, static: Files, tmp_path: Path) -> None:
    _, content = worker.blob(static.job(), static.fds)
    blob = memory_file(content)
    garbage = memory_file(b"<?xml garbage")
    rounds: list[Callable[[], object]] = [
        lambda: worker.blob(static.job(), static.fds),
        lambda: worker.fault(static.job(xml_length=13), [garbage, static.bin]),
        lambda: worker.fault(static.job(shapes={"image": (1, 9, 9, 9)}), static.fds),
        lambda: worker.fault(static.job(config={"NOPE": "1"}), static.fds),
        lambda: worker.fault(static.job(), static.fds * 3),
        lambda: worker.blob(import_job(content, static.source), [blob, static.bin]),
        lambda: worker.fault(import_job(content[:-1], static.source), [blob, static.bin]),
        lambda: worker.fault(import_job(content, WeightSource(offset=0, length=1)), [blob, static.bin]),
    ]
    for job in rounds:
        job()
    before = worker.fd_count()
    for _ in range(200 // len(rounds)):
        for job in rounds:
            job()
    assert worker.fd_count() == before
    assert worker.mappings(str(tmp_path)) == worker.mappings("memfd:softnpu") == 0
    os.close(blob)
    os.close(garbage)


def test_the_worker_ends_when_its_channel_closes() -> None:
    worker = Worker()
    worker.close()
    assert worker.process.returncode == 0


def test_the_worker_ends_when_the_channel_closes_in_the_middle_of_a_job(static: Files) -> None:
    worker = Worker()
    worker.channel.send(1, encode(static.job()), static.fds)
    worker.close()
    assert worker.process.returncode == 0


def test_the_worker_dies_with_its_parent() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    code = (
        "import os, subprocess, sys; fd = int(sys.argv[1]);"
        "command = [sys.executable, '-m', 'softnpu.driver.compiler', str(fd), str(os.getpid())];"
        "print(subprocess.Popen(command, pass_fds=[fd]).pid, flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", code, str(theirs.fileno())]
    pipe = subprocess.PIPE
    with ours, subprocess.Popen(command, pass_fds=[theirs.fileno()], stdin=pipe, stdout=pipe) as parent:
        theirs.close()
        assert parent.stdout is not None
        worker = os.pidfd_open(int(parent.stdout.readline()))
        parent.kill()
        try:
            assert select.select([worker], [], [], DEADLINE_S)[0], "the worker outlived its parent"
        finally:
            os.close(worker)


@pytest.mark.parametrize("arguments", [[], ["x", "1"], ["0", "1"], ["99", "1"]])
def test_wrong_arguments_are_told(arguments: list[str]) -> None:
    command = [sys.executable, "-m", "softnpu.driver.compiler", *arguments]
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=DEADLINE_S, check=False
    )
    assert done.returncode == 2
    assert "usage: " in done.stderr


def test_the_package_is_light_without_the_worker() -> None:
    code = "import sys, softnpu.driver.compiler.__main__; print('openvino' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=DEADLINE_S, check=True
    )
    assert done.stdout.strip() == "False"
