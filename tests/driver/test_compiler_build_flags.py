"""Build flags: how the line is read, and what it does to the arguments of a model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import openvino as ov
import pytest
from openvino import opset15 as ops

from softnpu.emulator.blob.container import Section
from softnpu.emulator.blob.weights import SpaceLayout, offsets_in_space, placed
from softnpu.emulator.compiler.build_flags import BuildFlags, parse
from softnpu.emulator.interface.result import Refused, ZeResult
from softnpu.emulator.links.compiler import CompileJob
from tests.support.compiler import Files, Worker, result

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


def test_the_line_of_the_real_plugin_is_read() -> None:
    flags = parse(REAL, "model")
    assert flags.inputs_precisions == flags.outputs_precisions == {"0": "FP32"}
    assert flags.inputs_layouts == flags.outputs_layouts == {"0": "NC"}
    assert flags.config["NPU_MAX_TILES"] == "5"
    assert len(flags.config) == 6


def test_every_part_may_be_missing_and_a_nul_may_end_it() -> None:
    assert parse("", "model") == parse(" \0", "model") == BuildFlags()
    assert parse('--config A="1"', "model") == BuildFlags(config={"A": "1"})
    assert parse("--config", "model") == BuildFlags()


def test_names_may_contain_blanks_and_colons_and_words_go_in_either_case() -> None:
    line = '--inputs_precisions="my input:0:fp16 b:u8" --inputs_layouts="s:**scalar** my input:0:nchw"'
    flags = parse(line, "model")
    assert flags.inputs_precisions == {"my input:0": "FP16", "b": "U8"}
    assert flags.inputs_layouts == {"s": "**SCALAR**", "my input:0": "NCHW"}


def test_parts_are_the_same_for_equal_flags() -> None:
    assert (
        parse('--inputs_precisions="a:FP16 b:u8"', "m").parts()
        == parse('--inputs_precisions="b:U8  a:fp16"', "m").parts()
        == {"flags.inputs_precisions": "a:FP16 b:U8"}
    )


@pytest.mark.parametrize(
    ("line", "word"),
    [
        ('--inputs_precision="a:FP16"', "--inputs_precision"),
        ('--inputs_precisions="a:FP17"', "a:FP17"),
        ('--inputs_precisions="FP16"', "FP16"),
        ('--inputs_precisions="a:FP16 a:FP32"', "'a' as FP16 and as FP32"),
        ('--inputs_layouts="a:FP16"', "a:FP16"),
        ('--config A="1" A="2"', "'1' and '2'"),
        ("--config A=1", "A=1"),
        ("hello", "hello"),
        ('--inputs_precisions="a:FP16', "--inputs"),
        ("x" * 70000, "70000"),
    ],
)
def test_a_line_that_cannot_be_read_is_refused_by_the_place(line: str, word: str) -> None:
    assert word in str(refused(line))


def test_an_endless_line_is_refused_quickly() -> None:
    refused('--inputs_precisions="' + "a" * 60000 + '"')
    refused('--inputs_precisions="' + "a:" * 30000 + '"')
    refused("--config A" * 5000)


# ---------------------------------------------------------------- arguments


@pytest.fixture
def picture(tmp_path: Path) -> Iterator[Files]:
    """pixels [1, 3, 4, 5] f32 -> scaled, the same shape; plus a second input for its name."""
    pixels = ops.parameter([1, 3, 4, 5], np.float32, name="pixels")
    pixels.output(0).set_names({"pixels", "image"})
    gain = ops.parameter([2, 3], np.float32, name="gain")
    scaled = ops.relu(pixels, name="scaled")
    scaled.output(0).set_names({"out"})
    rest = ops.negative(gain, name="rest")
    files = Files(tmp_path, ov.Model([scaled, rest], [pixels, gain], "picture"))
    yield files
    files.close()


def job(files: Files, line: str) -> CompileJob:
    return files.job(weights=(), build_flags=line)


def test_precisions_change_the_memory_and_not_the_model(worker: Worker, picture: Files) -> None:
    line = '--inputs_precisions="pixels:U8 1:FP16" --outputs_precisions="scaled:FP16 rest:I32"'
    meta = worker.blob(job(picture, line), [picture.xml]).meta
    assert [argument.element_type for argument in meta.arguments] == ["u8", "f16", "f16", "i32"]
    assert {argument.model_type for argument in meta.arguments} == {"f32"}
    assert [argument.byte_size for argument in meta.arguments] == [60, 12, 120, 24]
    assert [argument.name for argument in meta.arguments][:2] == ["image", "gain"]
    assert [argument.friendly_name for argument in meta.arguments] == ["pixels", "gain", "scaled", "rest"]


def test_layouts_transpose(worker: Worker, picture: Files) -> None:
    line = '--inputs_layouts="image:NHWC gain:CN" --outputs_layouts="0:NHWC"'
    meta = worker.blob(job(picture, line), [picture.xml]).meta
    assert [argument.shape for argument in meta.arguments] == [(1, 4, 5, 3), (3, 2), (1, 4, 5, 3), (2, 3)]
    assert meta.inputs[0].layout == "[N,H,W,C]"


def test_what_a_model_has_already_changes_nothing(worker: Worker, picture: Files) -> None:
    line = (
        '--inputs_precisions="0:FP32 1:DYNAMIC" --inputs_layouts="0:NCHW 1:NC"'
        ' --outputs_precisions="0:fp32" --outputs_layouts="0:ANY"'
    )
    plain = worker.blob(picture.job(weights=()), [picture.xml])
    assert worker.blob(job(picture, line), [picture.xml]).blob == plain.blob


def test_arguments_go_by_index_alone_if_the_model_says_so(worker: Worker, tmp_path: Path) -> None:
    # an input that is called "1" must not be taken for input number 1
    first = ops.parameter([2], np.float32, name="1")
    second = ops.parameter([2], np.float32, name="second")
    model = ov.Model([ops.relu(first), ops.relu(second)], [first, second], "swapped")
    line = '--inputs_precisions="1:FP16"'
    files = Files(tmp_path, model, name="by_name")
    meta = worker.blob(job(files, line), [files.xml]).meta
    assert [argument.element_type for argument in meta.inputs] == ["f16", "f32"]
    files.close()
    model.set_rt_info("true", "use_indices_for_io_metadata")
    files = Files(tmp_path, model, name="by_index")
    meta = worker.blob(job(files, line), [files.xml]).meta
    assert [argument.element_type for argument in meta.inputs] == ["f32", "f16"]
    files.close()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('--inputs_precisions="nope:FP16"', ["input 'nope'", "'pixels'", "'gain'"]),
        ('--outputs_precisions="2:FP16"', ["output '2'", "'scaled'"]),
        ('--inputs_layouts="gain:NCHW"', ["NCHW", "2 dimensions"]),
        ('--inputs_precisions="gain:U4"', ["u4"]),
    ],
)
def test_what_the_model_does_not_have_is_refused(
    worker: Worker, picture: Files, line: str, words: list[str]
) -> None:
    info = worker.info(job(picture, line), [picture.xml])
    assert result(info) in (ZeResult.ERROR_INVALID_ARGUMENT, ZeResult.ERROR_UNSUPPORTED_FEATURE)
    assert all(word in str(info) for word in words), info


# ---------------------------------------------------------------- configuration


def test_the_options_of_the_real_plugin_are_known(worker: Worker, picture: Files) -> None:
    line = REAL[REAL.index("--config") :] + ' PERF_COUNT="YES" NPU_COMPILATION_MODE_PARAMS="a=1 b=2"'
    meta = worker.blob(job(picture, line), [picture.xml]).meta
    assert meta.config["PERF_COUNT"] == "YES"


def test_two_values_for_one_property_are_refused(worker: Worker, picture: Files) -> None:
    line = '--config PERF_COUNT="YES"'
    both = picture.job(weights=(), build_flags=line, config={"PERF_COUNT": "NO"})
    assert result(worker.info(both, [picture.xml])) == ZeResult.ERROR_INVALID_ARGUMENT
    same = picture.job(weights=(), build_flags=line, config={"PERF_COUNT": "YES"})
    assert worker.blob(same, [picture.xml]).meta.config["PERF_COUNT"] == "YES"


def test_the_profiling_flag_is_the_property(worker: Worker, picture: Files) -> None:
    assert worker.blob(picture.job(weights=(), flags=2), [picture.xml]).meta.config["PERF_COUNT"] == "YES"
    info = worker.info(picture.job(weights=(), flags=64), [picture.xml])
    assert result(info) == ZeResult.ERROR_INVALID_ENUMERATION


def test_strides_are_for_the_arguments_that_ask_for_them(worker: Worker, picture: Files) -> None:
    line = '--config NPU_ENABLE_STRIDES_FOR="pixels, out"'
    meta = worker.blob(job(picture, line), [picture.xml]).meta
    assert [argument.strides for argument in meta.arguments] == [True, False, True, False]
    info = worker.info(job(picture, line.replace("out", "nope")), [picture.xml])
    assert result(info) == ZeResult.ERROR_INVALID_ARGUMENT
    assert "'nope'" in info.found


def test_results_with_converted_arguments_are_those_of_the_model(worker: Worker, picture: Files) -> None:
    line = '--inputs_precisions="pixels:U8" --inputs_layouts="pixels:NHWC"'
    made = worker.blob(job(picture, line), [picture.xml])
    weights = np.frombuffer(made.reader.read(Section.WEIGHTS), np.uint8).copy()
    actual = offsets_in_space(made.reader.weights_reference(), None, SpaceLayout([]), weights.size)
    xml = placed(bytes(made.reader.read(Section.IR)), actual)
    model = ov.Core().read_model(xml, ov.Tensor(weights, shared_memory=True))
    compiled = ov.Core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    pixels = np.arange(60, dtype=np.uint8).reshape(1, 4, 5, 3)
    found = compiled([pixels, np.zeros((2, 3), np.float32)])[0]
    assert np.array_equal(found, pixels.transpose(0, 3, 1, 2).astype(np.float32))
