"""The compiler worker: blobs and their metadata, properties, refusals, the process."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import openvino as ov
import pytest
from openvino import opset15 as ops

from softnpu.emulator.compiler import options
from softnpu.emulator.interface.messages import CacheOptions, Failed, Progress, WeightSource, encode
from softnpu.emulator.interface.result import ZeResult
from softnpu.emulator.links.compiler import ExportJob
from softnpu.emulator.platforms import PLATFORMS
from tests.support.compiler import (
    DEADLINE_S,
    PLATFORM,
    Files,
    Worker,
    WriteFiles,
    elementwise,
    import_job,
    result,
)

ENGINE_CONFIG = {
    "INFERENCE_PRECISION_HINT": "f32",
    "PERFORMANCE_HINT": "LATENCY",
    "INFERENCE_NUM_THREADS": "0",
    "EXECUTION_MODE_HINT": "ACCURACY",
    "PERF_COUNT": "NO",
}

pytestmark = pytest.mark.quick


@pytest.fixture
def cache(tmp_path: Path) -> CacheOptions:
    return CacheOptions(directory=str(tmp_path / "cache"), limit=1 << 30)


def test_a_blob_describes_the_model_and_every_stage_is_reported(worker: Worker, static: Files) -> None:
    made = worker.blob(static.job(), static.fds)
    stages = list(dict.fromkeys(progress.stage for progress in worker.progress))
    assert stages == ["receive", "read", "shape", "check", "weights", "pack"]
    done = [progress.done for progress in worker.progress]
    assert done == sorted(done)
    assert 0 <= done[0] < done[-1] <= 1
    meta = made.meta
    assert (meta.name, meta.platform, meta.precision) == ("digits", PLATFORM, "f32")
    assert meta.config == ENGINE_CONFIG
    assert meta.operations == 5
    assert meta.openvino == ov.get_version()
    assert meta.compiler == "softnpu-compiler 1.10"
    (image,), (scores,) = meta.inputs, meta.outputs
    assert (image.name, image.names, image.element_type) == ("image", ("image", "pixels"), "f32")
    assert (image.shape, image.layout, image.byte_size) == ((1, 3, 16, 16), "[N,C,H,W]", 4 * 3 * 16 * 16)
    assert (scores.name, scores.shape, scores.layout) == ("scores", (1, 4, 14, 14), "")
    assert scores.byte_size == 4 * 4 * 14 * 14
    assert (made.answer.log, made.answer.origin) == ("", "compiled")


def test_arguments_with_equal_tensor_names_get_distinct_names(worker: Worker, write: WriteFiles) -> None:
    tensor = ops.parameter([2], np.float32, name="x")
    tensor.output(0).set_names({"x"})
    relu = ops.relu(tensor)
    relu.output(0).set_names({"r"})
    files = write(ov.Model([relu, relu, tensor], [tensor], "shared"))
    made = worker.blob(files.job(weights=()), [files.xml])
    names = [argument.name for argument in made.meta.arguments]
    assert names[:2] == ["x", "r"]
    assert len(set(names)) == len(names) == 4


def test_a_name_in_the_compilers_style_is_used_only_without_an_alternative(
    worker: Worker, write: WriteFiles
) -> None:
    for prefix in ("vpux_ie_shape_", "vpux_ie_read_value_", "vpux_ie_assign_"):
        tensor = ops.parameter([2], np.float32, name="input")
        tensor.output(0).set_names({f"{prefix}x", "x"})
        output = ops.result(ops.relu(tensor), name="output")
        output.input_value(0).set_names({f"{prefix}y"})
        files = write(ov.Model([output], [tensor], "odd"))
        made = worker.blob(files.job(weights=()), [files.xml])
        assert [argument.name for argument in made.meta.arguments] == ["x", "output"]
        assert made.meta.arguments[0].names == (f"{prefix}x", "x")


def test_an_output_that_is_an_input_is_not_named_in_the_compilers_style(
    worker: Worker, tmp_path: Path
) -> None:
    tensor = ops.parameter([2], np.float32, name="input")
    tensor.output(0).set_names({"x"})
    files = Files(tmp_path, ov.Model([ops.result(tensor, name="vpux_ie_shape_x")], [tensor], "through"))
    made = worker.blob(files.job(weights=()), [files.xml])
    assert [argument.name for argument in made.meta.arguments] == ["x", "x:1"]
    files.close()


def test_shapes_are_applied_and_dynamic_ones_reported(worker: Worker, dynamic: Files) -> None:
    meta = worker.blob(dynamic.job(shapes={"pixels": (2, 3, 10, 12)}), dynamic.fds).meta
    assert [argument.shape for argument in meta.arguments] == [(2, 3, 10, 12), (2, 4, 8, 10)]
    assert [argument.model_shape for argument in meta.arguments] == [(-1, 3, -1, -1), (-1, 4, -1, -1)]


def test_given_values_are_recorded(worker: Worker, static: Files) -> None:
    given = {
        "PERFORMANCE_HINT": "THROUGHPUT",
        "INFERENCE_NUM_THREADS": "002",
        "EXECUTION_MODE_HINT": "PERFORMANCE",
        "PERF_COUNT": "YES",
        "NPU_PLATFORM": "4000",
        "NPU_TILES": "2",
        "LOG_LEVEL": "LOG_WARNING",
    }
    made = worker.blob(static.job(config=given), static.fds)
    assert made.meta.config == {
        "INFERENCE_PRECISION_HINT": "f32",
        "PERFORMANCE_HINT": "THROUGHPUT",
        "INFERENCE_NUM_THREADS": "2",
        "EXECUTION_MODE_HINT": "PERFORMANCE",
        "PERF_COUNT": "YES",
        "NPU_TILES": "2",
    }


def test_bf16_is_honoured_or_refused_depending_on_the_host(worker: Worker, static: Files) -> None:
    job = static.job(config={"INFERENCE_PRECISION_HINT": "bf16"})
    if "BF16" in ov.Core().get_property("CPU", "OPTIMIZATION_CAPABILITIES"):
        assert worker.blob(job, static.fds).meta.precision == "bf16"
    else:
        info = worker.info(job, static.fds)
        assert result(info) == ZeResult.ERROR_UNSUPPORTED_FEATURE
        assert "bf16" in info.found
        assert "f32 or f16" in info.expected


@pytest.mark.parametrize("hint", ["f16", "i8"])
def test_a_precision_in_build_flags_sets_the_arithmetic_of_the_device(
    worker: Worker, static: Files, cache: CacheOptions, hint: str
) -> None:
    worker.blob(static.job(cache=cache), static.fds)
    job = static.job(build_flags=f'--config INFERENCE_PRECISION_HINT="{hint}"', cache=cache)
    made = worker.blob(job, static.fds)
    assert made.answer.origin == "compiled", "it has a key of its own"
    assert made.meta.precision == made.meta.config["INFERENCE_PRECISION_HINT"] == "f16"
    assert ("INFERENCE_PRECISION_HINT i8: f16" in made.answer.log) is (hint == "i8")


_LIST = "compute-layers-with-higher-precision"


def test_a_blob_in_f16_records_everything_its_numbers_depend_on(worker: Worker, static: Files) -> None:
    def blob(**config: str) -> tuple[dict[str, str], bytes]:
        made = worker.blob(static.job(config={**config}), static.fds)
        return made.meta.config, made.answer.blob_digest

    hint = {"INFERENCE_PRECISION_HINT": "f16"}
    plain, digest = blob(**hint)
    assert plain["NPU_F16_OVERFLOW"] == "SATURATE"
    found, infinite = blob(**hint, NPU_F16_OVERFLOW="INFINITY")
    assert found["NPU_F16_OVERFLOW"] == "INFINITY"
    listed = [
        blob(**hint, NPU_COMPILATION_MODE_PARAMS=text)
        for text in (f"{_LIST}=Sqrt,MatMul", f"optimization-level=2 {_LIST}=MatMul,Sqrt,MatMul")
    ]
    assert listed[0] == listed[1], "one list in two spellings"
    assert listed[0][0]["NPU_COMPILATION_MODE_PARAMS"] == f"{_LIST}=MatMul,Sqrt"
    assert len({digest, infinite, listed[0][1]}) == 3
    in_f32, _ = blob(NPU_F16_OVERFLOW="INFINITY", NPU_COMPILATION_MODE_PARAMS=f"{_LIST}=Sqrt")
    assert in_f32 == blob()[0], "they mean nothing in f32"


def test_tiles_match_the_platform(worker: Worker, static: Files) -> None:
    assert {number: platform.tiles for number, platform in PLATFORMS.items()} == options.PLATFORMS
    for number, tiles in options.PLATFORMS.items():
        config = {"NPU_PLATFORM": number, "NPU_TILES": str(tiles)}
        assert worker.blob(static.job(config=config), static.fds).meta.config["NPU_TILES"] == str(tiles)
        info = worker.info(static.job(config={**config, "NPU_TILES": str(tiles + 1)}), static.fds)
        assert result(info) == ZeResult.ERROR_INVALID_ARGUMENT
        assert f"at most {tiles}" in info.expected


# ---------------------------------------------------------------- refusals

_BAD, _UNSUPPORTED = ZeResult.ERROR_INVALID_ARGUMENT, ZeResult.ERROR_UNSUPPORTED_FEATURE
_SIZE = ZeResult.ERROR_INVALID_SIZE


REFUSED: tuple[tuple[dict[str, object], ZeResult, list[str]], ...] = (
    ({"shapes": {"imgae": (1, 3, 8, 8)}}, _BAD, ["'imgae'", "'image'"]),
    ({"shapes": {"image": (1, 4, 8, 8)}}, _BAD, ["[1,4,8,8]", "channel count (4)", "[?,3,?,?]"]),
    ({"shapes": {"image": (1, 3, 8)}}, _BAD, ["[1,3,8]", "not compatible"]),
    ({"shapes": {"image": (1, 3, 0, 8)}}, _BAD, ["[1,3,0,8]", "dimensions from 1"]),
    ({"shapes": {"image": (1, 3, -1, 8)}}, _BAD, ["[1,3,-1,8]", "dimensions from 1"]),
    ({"shapes": {"image": (2**62, 3, 8, 8)}}, _BAD, ["dimensions from 1"]),
    ({"shapes": {"image": (1, 3, 8, 8), "pixels": (1, 3, 9, 9)}}, _BAD, ["two shapes"]),
    ({"shapes": {"image": (1, 3, 2**30, 2**30)}}, ZeResult.ERROR_UNSUPPORTED_SIZE, ["bytes"]),
    ({"config": {"INFERENCE_PRECISION_HINT": "i8"}}, _BAD, ["INFERENCE_PRECISION_HINT", "'i8'"]),
    ({"config": {"NPU_F16_OVERFLOW": "WRAP"}}, _BAD, ["NPU_F16_OVERFLOW", "'WRAP'", "SATURATE or INFINITY"]),
    (
        {
            "config": {
                "INFERENCE_PRECISION_HINT": "f16",
                "NPU_COMPILATION_MODE_PARAMS": "compute-layers-with-higher-precision=Power,Squrt",
            }
        },
        _BAD,
        ["NPU_COMPILATION_MODE_PARAMS", "'Squrt'", "ReduceMean"],
    ),
    ({"config": {"INFERENCE_NUM_THREADS": "-1"}}, _BAD, ["INFERENCE_NUM_THREADS", "'-1'"]),
    ({"config": {"INFERENCE_NUM_THREADS": "99999999999"}}, _BAD, ["'99999999999'"]),
    ({"config": {"INFERENCE_NUM_THREADS": "٣"}}, _BAD, ["'٣'"]),
    ({"config": {"EXECUTION_MODE_HINT": ""}}, _BAD, ["EXECUTION_MODE_HINT", "''"]),
    ({"config": {"NPU_PLATFORM": "NPU3721"}}, _BAD, ["'NPU3721'"]),
    ({"config": {"NPU_TILES": "0"}}, _BAD, ["NPU_TILES", "'0'"]),
    ({"config": {"PERFORMANCE_HINTS": "x"}}, _UNSUPPORTED, ["Did you mean PERFORMANCE_HINT or"]),
    ({"config": {"PERF_COUNT": "NO"}, "build_flags": '--config PERF_COUNT="YES"'}, _BAD, ["one value"]),
    ({"flags": 64}, ZeResult.ERROR_INVALID_ENUMERATION, ["0x40"]),
    ({"must": ("quantum",)}, _UNSUPPORTED, ["quantum"]),
    ({"weights": (WeightSource(offset=0, length=1 << 40),)}, _SIZE, ["weights"]),
    ({"weights": (WeightSource(offset=2**63, length=2**63),)}, _SIZE, ["weights"]),
    ({"weights": (WeightSource(offset=-1, length=10),)}, _SIZE, ["weights"]),
    ({"weights": (WeightSource(offset=0, length=-1),)}, _SIZE, ["weights"]),
    ({"build_flags": '--inputs_precisions="nope:FP16"'}, _BAD, ["input 'nope'", "'image'"]),
    ({"build_flags": '--outputs_precisions="2:FP16"'}, _BAD, ["output '2'", "one of"]),
    ({"build_flags": '--inputs_layouts="image:NC"'}, _BAD, ["NC", "4 dimensions"]),
    ({"build_flags": '--inputs_precisions="image:U4"'}, _UNSUPPORTED, ["u4"]),
    ({"build_flags": '--config NPU_ENABLE_STRIDES_FOR="nope"'}, _BAD, ["'nope'"]),
)


def test_an_invalid_job_is_refused(worker: Worker, dynamic: Files) -> None:
    for changes, expected, words in REFUSED:
        job = dynamic.job(**changes)
        info = worker.info(job, [dynamic.xml, *[dynamic.bin] * len(job.weights)])
        assert result(info) == expected, info
        assert [word for word in words if word not in str(info)] == [], info
        assert ".cpp" not in str(info)
        assert "\n" not in str(info)


def test_an_element_type_that_no_tensor_can_carry_is_refused(worker: Worker, write: WriteFiles) -> None:
    for element_type in ("string", "u1", "u3", "f4e2m1"):
        files = write(elementwise(getattr(ov.Type, element_type), [2, 8]))
        info = worker.info(files.job(weights=()), [files.xml])
        assert result(info) == ZeResult.ERROR_UNSUPPORTED_FEATURE
        assert info.object == "model 'digits', input 'data'"
        assert info.found == f"element type {element_type}"


def test_operations_that_cannot_run_are_refused_by_name(worker: Worker, write: WriteFiles) -> None:
    tensor = ops.parameter([2, 8], np.float32, name="x")
    odd = ops.convert(tensor, "u3", name="to_three_bits")
    files = write(ov.Model([ops.relu(ops.convert(odd, "f32"))], [tensor], "odd"))
    info = worker.info(files.job(weights=()), [files.xml])
    assert result(info) == ZeResult.ERROR_UNSUPPORTED_FEATURE
    assert info.object == "model 'digits', operation 'to_three_bits'"
    assert "type Convert" in info.found
    assert "one of 2" in info.found


UNREADABLE: tuple[Callable[[bytes], bytes], ...] = (
    lambda _: b"garbage",
    lambda xml: b"\x08\x0a" + xml,
    lambda xml: xml[: len(xml) // 2],
    lambda xml: xml.replace(b'type="ReLU"', b'type="Rulu"'),
    lambda xml: xml.replace(b'version="11"', b'version="99"'),
    lambda xml: xml.replace(b"f32", b"f\xff2"),
    lambda _: b"<?xml version='1.0'?><net name='a' version='11'><layers/></net>",
)


def test_an_ir_that_cannot_be_read_is_refused(worker: Worker, static: Files) -> None:
    for spoil in UNREADABLE:
        xml = spoil(static.xml_data)
        info = worker.info(static.job(xml_length=len(xml)), [xml, static.bin])
        assert result(info) == ZeResult.ERROR_INVALID_ARGUMENT
        assert info.object.startswith("model 'digits'")
        assert ".cpp" not in info.found


def test_malformed_job_messages_and_descriptors_are_refused(worker: Worker, static: Files) -> None:
    reader, writer = os.pipe()
    for fds in ([reader, static.bin], [static.xml, reader]):
        info = worker.info(static.job(), fds)
        assert result(info) == ZeResult.ERROR_INVALID_ARGUMENT
        assert info.found == "a pipe"
    os.close(reader)
    os.close(writer)
    for count in (0, 1, 3):
        info = worker.info(static.job(), [static.xml] * count)
        assert result(info) == ZeResult.ERROR_INVALID_ARGUMENT
        assert f"{count} descriptors" in info.found
    for body in (b"", b"\xc1", b"\x80", b"\x91" * 5000, encode(Progress(stage="x", done=0))):
        assert result(worker.info(body, static.fds)) == ZeResult.ERROR_INVALID_ARGUMENT


def test_an_error_fits_a_frame_with_names_of_any_length(worker: Worker, static: Files) -> None:
    info = worker.info(static.job(name="n" * 30000, config={"X" * 30000: ""}), static.fds)
    assert result(info) == ZeResult.ERROR_UNSUPPORTED_FEATURE
    assert len(encode(Failed(info=info))) < 10000


# ---------------------------------------------------------------- the cache


def test_a_hit_does_not_need_openvino(worker: Worker, static: Files, cache: CacheOptions) -> None:
    made = worker.blob(static.job(cache=cache), static.fds)
    assert worker.mappings("libopenvino") > 0
    fresh = Worker()
    os.kill(fresh.fork_server, signal.SIGSTOP)  # where OpenVINO is, or will be
    try:
        assert fresh.blob(static.job(cache=cache), static.fds).blob == made.blob
        maps = Path(f"/proc/{fresh.process.pid}/maps").read_text()
    finally:
        os.kill(fresh.fork_server, signal.SIGCONT)
        fresh.close()
    assert "libopenvino" not in maps
    assert "numpy" not in maps


def test_a_hash_does_not_vouch_for_other_weights(worker: Worker, static: Files, cache: CacheOptions) -> None:
    """Otherwise a client could bring wrong weights under the name of a blob shared with other clients."""
    job = static.job(cache=cache, input_hash=7)
    worker.blob(job, static.fds)
    content = bytearray(bytes(static.lead) + static.weights)
    content[-1] ^= 1
    assert worker.blob(job, [static.xml, bytes(content)]).answer.origin == "compiled"


# ---------------------------------------------------------------- the process


def test_two_hundred_jobs_leave_nothing_behind(worker: Worker, static: Files, tmp_path: Path) -> None:
    made = worker.blob(static.job(), static.fds)
    blob, placement = made.blob, made.placement
    imported = import_job(made, static.sources)
    cut = msgspec.structs.replace(imported, blob_length=len(made.blob) - 1)
    short = (WeightSource(offset=0, length=1),)
    export = ExportJob(blob_length=len(blob), placement_length=len(placement), weights=static.sources)
    rounds: list[Callable[[], object]] = [
        lambda: worker.blob(static.job(), static.fds),
        lambda: worker.info(static.job(xml_length=13), [b"<?xml garbage", static.bin]),
        lambda: worker.info(static.job(shapes={"image": (1, 9, 9, 9)}), static.fds),
        lambda: worker.info(static.job(config={"NOPE": "1"}), static.fds),
        lambda: worker.info(static.job(), static.fds * 3),
        lambda: worker.blob(imported, [blob, placement, static.bin]),
        lambda: worker.info(cut, [blob, placement, static.bin]),
        lambda: worker.info(import_job(made, short), [blob, placement, static.bin]),
        lambda: worker.content(export, [blob, placement, static.bin]),
    ]
    for job in rounds:
        job()
    before = worker.fd_count()
    for _ in range(200 // len(rounds)):
        for job in rounds:
            job()
    assert worker.fd_count() == before
    assert worker.mappings(str(tmp_path)) == worker.mappings("memfd:softnpu") == 0


def test_the_worker_dies_with_its_parent() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    code = (
        "import os, subprocess, sys; fd = int(sys.argv[1]);"
        "command = [sys.executable, '-m', 'softnpu.emulator.compiler', str(fd), str(os.getpid())];"
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


def test_wrong_arguments_are_reported() -> None:
    for arguments in ([], ["99", "1"]):
        done = subprocess.run(
            [sys.executable, "-m", "softnpu.emulator.compiler", *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
        assert done.returncode == 2
        assert "usage: " in done.stderr
