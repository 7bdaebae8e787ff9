"""The compiler worker: what a blob says of a model, and static shapes."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import openvino as ov
import pytest
from openvino import opset15 as ops

from softnpu.emulator.blob.container import Section
from softnpu.emulator.interface.result import ZeResult
from tests.support.compiler import PLATFORM, Files, Worker, elementwise, memory_file, result

ENGINE_CONFIG = {
    "INFERENCE_PRECISION_HINT": "f32",
    "PERFORMANCE_HINT": "LATENCY",
    "INFERENCE_NUM_THREADS": "0",
    "EXECUTION_MODE_HINT": "ACCURACY",
    "PERF_COUNT": "NO",
}


def test_a_blob_describes_the_model(worker: Worker, static: Files) -> None:
    made = worker.blob(static.job(), static.fds)
    meta = made.meta
    assert (meta.name, meta.platform, meta.precision) == ("digits", PLATFORM, "f32")
    assert meta.config == ENGINE_CONFIG
    assert meta.operations == 5
    assert meta.openvino == ov.get_version()
    assert meta.compiler == "softnpu-compiler 1.5"
    (image,), (scores,) = meta.inputs, meta.outputs
    assert (image.name, image.names, image.element_type) == ("image", ("image", "pixels"), "f32")
    assert (image.shape, image.layout, image.byte_size) == ((1, 3, 16, 16), "[N,C,H,W]", 4 * 3 * 16 * 16)
    assert (scores.name, scores.shape, scores.layout) == ("scores", (1, 4, 14, 14), "")
    assert scores.byte_size == 4 * 4 * 14 * 14
    assert (made.answer.log, made.answer.origin) == ("", "compiled")


def test_the_same_job_gives_the_same_blob(worker: Worker, dynamic: Files) -> None:
    job = dynamic.job(shapes={"image": (1, 3, 8, 8)}, config={"PERF_COUNT": "YES"})
    assert worker.blob(job, dynamic.fds) == worker.blob(job, dynamic.fds)


def test_a_model_without_constants_needs_no_weights(worker: Worker, tmp_path: Path) -> None:
    files = Files(tmp_path, elementwise(ov.Type.i32, [2, 3]))
    made = worker.blob(files.job(weights=()), [files.xml])
    assert made.placement == b""
    assert made.reader.weights_reference() is None
    files.close()


def test_every_stage_is_told_and_progress_never_falls(worker: Worker, static: Files) -> None:
    worker.blob(static.job(), static.fds)
    stages = list(dict.fromkeys(progress.stage for progress in worker.progress))
    assert stages == ["receive", "read", "shape", "check", "weights", "pack"]
    done = [progress.done for progress in worker.progress]
    assert done == sorted(done)
    assert 0 <= done[0] < done[-1] <= 1


def test_a_log_level_gives_a_build_log_with_times(worker: Worker, static: Files) -> None:
    log = worker.blob(static.job(config={"LOG_LEVEL": "LOG_INFO"}), static.fds).answer.log
    assert "weights: " in log
    assert " ms" in log
    assert "5 operations" in log


def test_arguments_that_share_their_tensor_names_get_names_of_their_own(
    worker: Worker, tmp_path: Path
) -> None:
    tensor = ops.parameter([2], np.float32, name="x")
    tensor.output(0).set_names({"x"})
    relu = ops.relu(tensor)
    relu.output(0).set_names({"r"})
    files = Files(tmp_path, ov.Model([relu, relu, tensor], [tensor], "shared"))
    made = worker.blob(files.job(weights=()), [files.xml])
    names = [argument.name for argument in made.meta.arguments]
    assert names[:2] == ["x", "r"]
    assert len(set(names)) == len(names) == 4
    files.close()


@pytest.mark.parametrize("prefix", ["vpux_ie_shape_", "vpux_ie_read_value_", "vpux_ie_assign_"])
def test_a_name_like_those_of_the_compiler_is_not_the_arguments_if_there_is_another(
    worker: Worker, tmp_path: Path, prefix: str
) -> None:
    tensor = ops.parameter([2], np.float32, name="input")
    tensor.output(0).set_names({f"{prefix}x", "x"})
    result = ops.result(ops.relu(tensor), name="output")
    result.input_value(0).set_names({f"{prefix}y"})
    files = Files(tmp_path, ov.Model([result], [tensor], "odd"))
    made = worker.blob(files.job(weights=()), [files.xml])
    assert [argument.name for argument in made.meta.arguments] == ["x", "output"]
    assert made.meta.arguments[0].names == (f"{prefix}x", "x")
    files.close()


def test_shapes_are_applied_and_the_dynamic_ones_told(worker: Worker, dynamic: Files) -> None:
    meta = worker.blob(dynamic.job(shapes={"pixels": (2, 3, 10, 12)}), dynamic.fds).meta
    assert [argument.shape for argument in meta.arguments] == [(2, 3, 10, 12), (2, 4, 8, 10)]
    assert [argument.model_shape for argument in meta.arguments] == [(-1, 3, -1, -1), (-1, 4, -1, -1)]


def test_the_ir_of_a_blob_has_static_shapes(worker: Worker, dynamic: Files) -> None:
    made = worker.blob(dynamic.job(shapes={"image": (1, 3, 8, 8)}), dynamic.fds)
    weights = ov.Tensor(np.frombuffer(dynamic.weights, np.uint8).copy(), shared_memory=True)
    model = ov.Core().read_model(bytes(made.reader.read(Section.IR)), weights)
    shapes = [tuple(port.shape) for port in [*model.inputs, *model.outputs]]
    assert shapes == [argument.shape for argument in made.meta.arguments]


def test_a_shape_that_the_model_has_already_changes_nothing(worker: Worker, static: Files) -> None:
    shaped = static.job(shapes={"image": (1, 3, 16, 16)})
    assert worker.blob(shaped, static.fds) == worker.blob(static.job(), static.fds)


def test_inputs_without_tensor_names_go_by_their_friendly_name(worker: Worker, tmp_path: Path) -> None:
    files = Files(tmp_path, elementwise(ov.Type.f32, [-1, 3]))
    xml = files.xml_data.replace(b' names="data"', b"")
    fd = memory_file(xml)
    job = files.job(xml_length=len(xml), weights=(), shapes={"data": (5, 3)})
    assert worker.blob(job, [fd]).meta.inputs[0].shape == (5, 3)
    os.close(fd)
    files.close()


def test_a_dynamic_model_stays_dynamic(worker: Worker, dynamic: Files) -> None:
    meta = worker.blob(dynamic.job(), dynamic.fds).meta
    assert [argument.partial_shape for argument in meta.inputs] == ["[?,3,?,?]", ""]
    assert meta.inputs[1].shape_of == 0


def test_an_output_whose_size_depends_on_the_data_has_an_upper_bound(worker: Worker, tmp_path: Path) -> None:
    tensor = ops.parameter([4, 4], np.float32, name="x")
    files = Files(tmp_path, ov.Model([ops.non_zero(tensor)], [tensor], "sparse"))
    places, told = worker.blob(files.job(weights=()), [files.xml]).meta.outputs
    assert (places.partial_shape, places.shape, told.shape) == ("[2,..16]", (2, 16), (2,))
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
    info = worker.info(dynamic.job(shapes=shapes), dynamic.fds)
    assert result(info) == ZeResult.ERROR_INVALID_ARGUMENT
    assert all(word in str(info) for word in words), info
    assert "\n" not in str(info)
    assert ".cpp" not in str(info)


def test_an_argument_of_absurd_size_is_refused(worker: Worker, dynamic: Files) -> None:
    info = worker.info(dynamic.job(shapes={"image": (1, 3, 2**30, 2**30)}), dynamic.fds)
    assert result(info) == ZeResult.ERROR_UNSUPPORTED_SIZE
