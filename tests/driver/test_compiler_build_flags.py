"""Build flags: parsing of the line, and its effect on the arguments of a model."""

from __future__ import annotations

import numpy as np
import openvino as ov
import pytest
from openvino import opset15 as ops

from softnpu.emulator.compiler.build_flags import BuildFlags, parse
from softnpu.emulator.interface.result import Refused, ZeResult
from softnpu.emulator.links.compiler import CompileJob
from tests.support.compiler import Files, Worker, WriteFiles

REAL = (
    '--inputs_precisions="0:FP32" --inputs_layouts="0:NC" --outputs_precisions="0:FP32"'
    ' --outputs_layouts="0:NC" --config NPU_MODEL_SERIALIZER_VERSION="NO_WEIGHTS_COPY" NPU_MAX_TILES="5"'
    ' NPU_STEPPING="0" NPU_BATCH_MODE="COMPILER" NPU_PLATFORM="4000" LOG_LEVEL="LOG_NONE"'
)


def refused(line: str) -> Refused:
    with pytest.raises(Refused) as error:
        parse(line, "model 'm'")
    assert error.value.info.result == ZeResult.ERROR_INVALID_ARGUMENT
    assert error.value.info.object.startswith("model 'm', build flags")
    return error.value


# ---------------------------------------------------------------- the line


def test_the_line_of_the_real_plugin_is_parsed() -> None:
    flags = parse(REAL, "model")
    assert flags.inputs_precisions == flags.outputs_precisions == {"0": "FP32"}
    assert flags.inputs_layouts == flags.outputs_layouts == {"0": "NC"}
    assert flags.config["NPU_MAX_TILES"] == "5"
    assert len(flags.config) == 6


OLDER = (
    '--config CACHE_DIR="/tmp/a b" ENABLE_CPU_PINNING="YES" EXCLUSIVE_ASYNC_REQUESTS="NO" NPU_TURBO="YES"'
    ' NPU_COMPILER_TYPE="DRIVER" NPU_CREATE_EXECUTOR="1" NPU_DPU_GROUPS="2" NPU_PROFILING_TYPE="INFER"'
    ' NPU_USE_ELF_COMPILER_BACKEND="YES" NUM_STREAMS="1"'
)
"""What the plugins of OpenVINO 2024.6 and 2025.0 send, if a program sets all these properties."""


def test_properties_of_older_plugins_are_checked_and_make_no_difference() -> None:
    assert parse(OLDER, "model").config == {"NPU_TURBO": "YES", "NPU_TILES": "2"}
    for line, words in {
        'NPU_COMPILER_TYPE="PLUGIN"': ("NPU_COMPILER_TYPE", "'PLUGIN'", "DRIVER"),
        'ENABLE_CPU_PINNING="MAYBE"': ("ENABLE_CPU_PINNING", "NO or YES"),
        'NUM_STREAMS="2"': ("NUM_STREAMS", "'2'", "1 or AUTO"),
        f'CACHE_DIR="{"x" * 4097}"': ("CACHE_DIR", "4096"),
        'NPU_TILES="2" NPU_DPU_GROUPS="3"': ("NPU_TILES", "'2' and '3'", "one value"),
    }.items():
        with pytest.raises(Refused) as error:
            parse(f"--config {line}", "model")
        assert error.value.info.result == ZeResult.ERROR_INVALID_ARGUMENT
        assert [word for word in words if word not in str(error.value)] == []


def test_tiles_by_their_former_name(worker: Worker, picture: Files) -> None:
    job = picture.job(weights=(), build_flags='--config NPU_DPU_GROUPS="2" EXCLUSIVE_ASYNC_REQUESTS="YES"')
    assert worker.blob(job, [picture.xml]).meta.config["NPU_TILES"] == "2"
    info = worker.info(picture.job(weights=(), build_flags='--config NPU_DPU_GROUPS="7"'), [picture.xml])
    assert "at most 6, the tiles of platform 4000" in str(info)


def test_every_part_may_be_missing_and_a_nul_may_end_it() -> None:
    assert parse("", "model") == parse(" \0", "model") == BuildFlags()
    assert parse('--config A="1"', "model") == BuildFlags(config={"A": "1"})
    assert parse("--config", "model") == BuildFlags()


def test_names_may_contain_blanks_and_colons_and_words_are_case_insensitive() -> None:
    line = '--inputs_precisions="my input:0:fp16 b:u8" --inputs_layouts="s:**scalar** my input:0:nchw"'
    flags = parse(line, "model")
    assert flags.inputs_precisions == {"my input:0": "FP16", "b": "U8"}
    assert flags.inputs_layouts == {"s": "**SCALAR**", "my input:0": "NCHW"}


def test_a_malformed_line_is_refused_with_the_position() -> None:
    for line, word in {
        '--inputs_precision="a:FP16"': "--inputs_precision",
        '--inputs_precisions="a:FP17"': "a:FP17",
        '--inputs_precisions="FP16"': "FP16",
        '--inputs_precisions="a:FP16 a:FP32"': "'a' as FP16 and as FP32",
        '--inputs_layouts="a:FP16"': "a:FP16",
        '--config A="1" A="2"': "'1' and '2'",
        "--config A=1": "A=1",
        "hello": "hello",
        '--inputs_precisions="a:FP16': "--inputs",
        "x" * 70000: "70000",
    }.items():
        assert word in str(refused(line))


# ---------------------------------------------------------------- arguments


@pytest.fixture
def picture(write: WriteFiles) -> Files:
    """pixels [1, 3, 4, 5] f32 -> scaled, the same shape; plus a second input for its name."""
    pixels = ops.parameter([1, 3, 4, 5], np.float32, name="pixels")
    pixels.output(0).set_names({"pixels", "image"})
    gain = ops.parameter([2, 3], np.float32, name="gain")
    scaled = ops.relu(pixels, name="scaled")
    scaled.output(0).set_names({"out"})
    rest = ops.negative(gain, name="rest")
    return write(ov.Model([scaled, rest], [pixels, gain], "picture"))


def job(files: Files, line: str) -> CompileJob:
    return files.job(weights=(), build_flags=line)


def test_precisions_change_arguments_but_not_the_model(worker: Worker, picture: Files) -> None:
    line = '--inputs_precisions="pixels:U8 1:FP16" --outputs_precisions="scaled:FP16 rest:I32"'
    meta = worker.blob(job(picture, line), [picture.xml]).meta
    assert [argument.element_type for argument in meta.arguments] == ["u8", "f16", "f16", "i32"]
    assert [argument.byte_size for argument in meta.arguments] == [60, 12, 120, 24]
    assert [argument.name for argument in meta.arguments][:2] == ["image", "gain"]
    assert [argument.node_name for argument in meta.arguments] == ["pixels", "gain", "scaled", "rest"]


def test_arguments_are_matched_by_index_alone_on_request(worker: Worker, write: WriteFiles) -> None:
    # an input named "1" must not be mistaken for input number 1
    first = ops.parameter([2], np.float32, name="1")
    second = ops.parameter([2], np.float32, name="second")
    model = ov.Model([ops.relu(first), ops.relu(second)], [first, second], "swapped")
    line = '--inputs_precisions="1:FP16"'
    files = write(model)
    meta = worker.blob(job(files, line), [files.xml]).meta
    assert [argument.element_type for argument in meta.inputs] == ["f16", "f32"]
    model.set_rt_info("true", "use_indices_for_io_metadata")
    files = write(model)
    meta = worker.blob(job(files, line), [files.xml]).meta
    assert [argument.element_type for argument in meta.inputs] == ["f32", "f16"]
